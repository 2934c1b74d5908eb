"""Checks the shapes in annotations of the package during tests, with jaxtyping and beartype.

An int is accepted for a float. jaxtyping's import hook wraps every function. The wrappers of functions without shapes,
and of local functions at each definition, took a tenth of the tests' time. Importing this module makes the hook skip
these functions; mypy checks their types.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def _with_shapes(*, typechecker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a decorator: jaxtyping's for functions and dataclasses with shapes in annotations, else none."""

    def decorate(decorated: Any) -> Any:
        function = decorated.fget if isinstance(decorated, property) else inspect.unwrap(decorated)
        annotations = inspect.get_annotations(function.__init__ if inspect.isclass(function) else function)
        is_local = "<locals>" in function.__qualname__
        is_checked = not is_local and any(map(_has_shape, annotations.values()))
        return _jaxtyped(decorated, typechecker=typechecker) if is_checked else decorated

    return decorate


def _has_shape(annotation: Any) -> bool:
    if inspect.isclass(annotation):
        return issubclass(annotation, jaxtyping.AbstractArray)
    return any(map(_has_shape, typing.get_args(annotation)))


jaxtyping.jaxtyped = _with_shapes

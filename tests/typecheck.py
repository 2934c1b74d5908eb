"""Type checker of the package in tests; it accepts an int for a float.

It checks functions whose annotations have shapes of arrays, except local functions, whose check is compiled at each
definition: in three files, 19 of 63 s (BUILD_NOTES.md). mypy checks the types of all functions.
"""

import inspect
import typing
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def typechecked(function: Any) -> Any:
    is_local = "<locals>" in getattr(function, "__qualname__", "")
    if inspect.isfunction(function) and (is_local or not any(map(_has_shape, function.__annotations__.values()))):
        return function
    return _checked(function)


def _has_shape(annotation: Any) -> bool:
    if inspect.isclass(annotation):
        return issubclass(annotation, AbstractArray)
    return any(map(_has_shape, typing.get_args(annotation)))

"""What the files of models in this package list: formats of weights in `FORMATS`, and in `DESCRIPTIONS` files that say
what model they are of.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asr_jax import pretrained
from asr_jax.audio.features import FrontEnd
from asr_jax.core.batch import OUTPUT
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import EncoderSettings, Model
from asr_jax.pretrained.keymap import NamedWeights

Symbols = Sequence[str | None]
Paths = tuple[dict[str, np.ndarray], list[str]]
"""Weights by our paths, `params/…` and `batch_stats/…`, as far as they are the model's, and the names there of those
that are not."""


class Format(NamedTuple):
    """Weights of an encoder, and of a CTC head on it, by the names of another system."""

    names: str
    """Whose, in a word."""
    of: str
    """Whose, and of what model."""
    encoder: type[EncoderSettings]
    claims: Callable[[NamedWeights], bool]
    """Whether the names are such."""
    find: Callable[..., Paths]
    """`find(weights, encoder's settings, **heads)`."""
    export: Callable[..., dict[str, np.ndarray]]
    """`export(variables, encoder's settings, **heads)`: the other way, or an error where a weight has no name."""
    folder: Callable[[Model, Symbols], dict[str, Any]] | None = None
    """What lies beside the weights in a folder of Hugging Face's: JSON files by name; None where none is written."""
    heads: Callable[[Model], dict[str, Any]] = lambda model: {"ctc_head": ctc_head(model)}
    """The heads that have names there."""


def ctc_head(model: Model) -> str | None:
    """Path of the parameters of the model's first CTC head on the encoder's output."""
    of_output = (name for name, head in model.heads.items() if isinstance(head, CTC) and head.tap == OUTPUT)
    return next((f"heads_{name}" for name in of_output), None)


class Description(NamedTuple):
    """Files or folders of another system that say what model they are of."""

    name: str
    """What they say: the class of the encoder in a `.nemo` file, the model_type of a folder of Hugging Face's; or their
    ending, .pt."""
    is_of: Callable[[Path], bool]
    """Whether a file or folder says so."""
    encoder: Callable[..., EncoderSettings]
    """`encoder(path, **changes of its fields)`."""
    front_end: Callable[[Path], FrontEnd]
    """The front-end that the model was trained with. Raises: UserError where there is none such here."""


def listed(name: str) -> tuple[Any, ...]:
    """What the files of this package list under a name, in the files' order: a file that is deleted takes with it what
    it lists.
    """
    found = sorted(each.name for each in pkgutil.iter_modules(pretrained.__path__))
    modules = [importlib.import_module(f"{pretrained.__name__}.{each}") for each in found if each not in COLLECT]
    return tuple(each for module in modules for each in getattr(module, name, ()))


COLLECT = ("formats", "encoders")
"""The files that collect what the others list."""

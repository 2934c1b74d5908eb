"""Types of the entries that modules of this package list: weight formats (`FORMATS`), model files (`DESCRIPTIONS`)."""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asr_jax import pretrained
from asr_jax.audio.features import FrontEnd
from asr_jax.core.batch import OUTPUT
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Transducer
from asr_jax.models.base import Model
from asr_jax.models.encoder import EncoderSettings
from asr_jax.pretrained.keymap import NamedWeights, Row
from asr_jax.text.tokenizers import Tokenizer

Symbols = Sequence[str | None]
"""Text of each label; None for the blank."""
Paths = tuple[dict[str, np.ndarray], list[str]]
"""Weights by parameter path (`params/…`, `batch_stats/…`), and the names of the file's weights that the model does not
have."""


class Format(NamedTuple):
    """Weight names that another system uses for an encoder and its heads."""

    names: str
    """Identifier of the system, such as `nemo`, as passed to `--names`."""
    of: str
    """System and model in words, for messages."""
    encoder: type[EncoderSettings]
    claims: Callable[[NamedWeights], bool]
    """`claims(weights)` returns whether the weights have this format's names."""
    find: Callable[..., Paths]
    """`find(weights, encoder_settings, **heads)` returns the weights by parameter path, and the names that are left."""
    export: Callable[..., dict[str, np.ndarray]]
    """`export(variables, encoder_settings, **heads)` returns the weights under this format's names. It raises a
    UserError if a parameter has no name."""
    json_files: Callable[[Model, Symbols], dict[str, Any]] | None = None
    """`json_files(model, symbols)` returns the JSON files of a Hugging Face folder, keyed by file name. None: such
    folders cannot be written."""
    checkpoint: Callable[[NamedWeights, Model, Symbols], dict[str, Any]] | None = None
    """`checkpoint(weights, model, symbols)` returns the content of a `.pt` file with everything that the system needs.
    None: such files contain only weights."""
    save_folder: Callable[[NamedWeights, Model, Tokenizer, Path], None] | None = None
    """`save_folder(weights, model, tokenizer, out)` writes a folder of the system's own kind. None: it has none."""
    heads: Callable[[Model], dict[str, Any]] = lambda model: {"ctc_head": ctc_head(model)}
    """`heads(model)` returns the keyword arguments of `find` and `export` that describe the model's heads, without its
    transducer."""
    transducer: Callable[[str, Transducer], list[Row]] | None = None
    """`transducer(path, settings)` returns the names of a transducer at a parameter path. None: the system has none on
    this encoder."""


def ctc_head(model: Model) -> str | None:
    """Returns the parameter path of the first CTC head on the encoder's output; None if the model has none."""
    of_output = (name for name, head in model.heads.items() if isinstance(head, CTC) and head.tap == OUTPUT)
    return next((f"heads_{name}" for name in of_output), None)


class Description(NamedTuple):
    """Reader of the encoder and front-end settings in one kind of file or folder of another system."""

    name: str
    """Name of the kind: encoder class in a `.nemo` file, `model_type` of a Hugging Face folder, system of a `.pt`."""
    is_of: Callable[[Path], bool]
    """`is_of(path)` returns whether the file or folder is of this kind."""
    encoder: Callable[..., EncoderSettings]
    """`encoder(path, **changes)` returns the encoder's settings, with `changes` of their fields."""
    front_end: Callable[[Path], FrontEnd]
    """`front_end(path)` returns the front-end that the model was trained with. It raises a UserError if this package
    has no such front-end."""
    heads: Callable[[Path], dict[str, HeadSettings]]
    """`heads(path)` returns the settings of the model's heads; empty for an encoder alone. It raises a UserError if
    texts come from a head that this package does not have."""
    tokenizer: Callable[[Path, Tokenizer | None], Tokenizer | None] = lambda path, given: given
    """`tokenizer(path, given)` returns a given tokenizer with the texts that the system writes for its labels. Without
    a given one, it returns the tokenizer in a file that `read_vocabulary` cannot read, or None."""
    unknown: Callable[[Path], str] = lambda path: ""
    """`unknown(path)` returns a message about a setting of the front-end that the file does not contain, so that
    `front_end` assumes it; empty if the file contains all."""
    others: str = ""
    """Regular expression for names of weights of other heads, such as those of pre-training, which the model lacks."""
    ctc: Callable[[Path], CTC] = lambda path: CTC()
    """`ctc(path)` returns the settings of the model's CTC head; the defaults if the file does not contain them."""


def listed(name: str) -> tuple[Any, ...]:
    """Returns the entries of the tuples called `name` in all modules of this package, in alphabetical order of modules.

    Deleting a module also removes its entries.
    """
    found = sorted(each.name for each in pkgutil.iter_modules(pretrained.__path__))
    modules = [importlib.import_module(f"{pretrained.__name__}.{each}") for each in found if each not in COLLECT]
    return tuple(each for module in modules for each in getattr(module, name, ()))


COLLECT = ("formats", "encoders", "published")
"""Modules that collect the entries of the others."""

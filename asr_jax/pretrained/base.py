"""Types of the entries that modules of this package list: weight formats (`FORMATS`), model files (`DESCRIPTIONS`)."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from asr_jax import pretrained
from asr_jax.audio.features import FrontEnd
from asr_jax.core.batch import OUTPUT
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.encoder import EncoderSettings
from asr_jax.pretrained.keymap import (
    LINEAR,
    NamedWeights,
    Replacements,
    Row,
    TensorLayout,
    export_params,
    find_params,
    renamed,
    rows_of,
)
from asr_jax.text.tokenizers import Tokenizer

Symbols = Sequence[str | None]
"""Text of each label; None for the blank."""
Paths = tuple[dict[str, np.ndarray], list[str]]
"""Weights by parameter path (`params/…`, `batch_stats/…`), and the names of the file's weights that the model does not
have."""


Heads = Mapping[str, HeadSettings]
"""Settings of heads by their parameter paths, such as `heads_ctc`."""
NO_NAME = r"(?!)"
"""Regular expression that matches no name."""


@dataclass(frozen=True)
class Format:
    """Weight names that another system uses for an encoder and its heads: a table that is read in both directions."""

    names: str
    """Identifier of the system, such as `nemo`, as passed to `--to`."""
    of: str
    """System and model in words, for messages."""
    encoder: type[EncoderSettings]
    mark: str
    """Regular expression that some name in each file of this format has, and no name of the encoder's other formats."""
    rows: Callable[[Any, Heads], list[Row]]
    """`rows(encoder_settings, heads)` returns the table of names."""
    unused: str = NO_NAME
    """Regular expression for names of weights that files may have and models never use."""
    versions: Replacements = ()
    """Replacements that turn the names of all versions of the system, and those of `rows`, into the same names."""
    newest: Callable[[NamedWeights], NamedWeights] = lambda weights: weights
    """`newest(weights)` returns weights with the names of the newest version, where `versions` cannot express them."""
    check: Callable[[Model], None] = lambda model: None
    """`check(model)` raises a UserError if the system computes something else with the weights of the model."""
    folder: Callable[[Model, Tokenizer], dict[str, str | bytes]] | None = None
    """`folder(model, tokenizer)` returns the files of a folder of the system, except its weights. It raises a UserError
    if the system does not have the model. None: such folders cannot be written."""
    folder_weights: str = "model.safetensors"
    """Name of the file with the weights in such a folder."""
    checkpoint: Callable[[NamedWeights, Model, Symbols], Mapping[str, Any]] = lambda weights, model, symbols: weights
    """`checkpoint(weights, model, symbols)` returns the content of a `.pt` file of the system."""

    def claims(self, weights: NamedWeights) -> bool:
        """Returns whether the weights have the names of this format."""
        return any(re.search(self.mark, name) for name in weights)

    def find(self, weights: NamedWeights, encoder: EncoderSettings, heads: Heads = MappingProxyType({})) -> Paths:
        """Returns the weights by parameter path, and the names of the weights that the model does not have.

        Parameters that the weights lack are not returned. Names that match `unused` are ignored.
        """
        weights = self.newest(weights)
        names = {renamed(name, self.versions): name for name in weights}
        rows = [row.renamed(self.versions) for row in self.rows(encoder, heads)]
        found = find_params({new: weights[name] for new, name in names.items()}, rows)
        return found.params, sorted(names[name] for name in found.left if not re.fullmatch(self.unused, name))

    def export(
        self, variables: Tree, encoder: EncoderSettings, heads: Heads = MappingProxyType({})
    ) -> dict[str, np.ndarray]:
        """Returns variables under the names of this format.

        Args:
            variables: `{"params": …, "batch_stats": …}`, a part of it, or a tree of the same structure.

        Raises:
            UserError: If a parameter has no name in the system.
        """
        return export_params(variables, self.rows(encoder, heads))


def heads_of(model: Model) -> Heads:
    """Returns the heads of a model by parameter path."""
    return {f"heads_{name}": head for name, head in model.heads.items()}


def first_head[H: HeadSettings](heads: Heads, kind: type[H]) -> list[tuple[str, H]]:
    """Returns the path and the settings of the first head of a kind on the encoder's output; empty without one."""
    found = ((path, head) for path, head in heads.items() if isinstance(head, kind))
    return list(islice((each for each in found if getattr(each[1], "tap", OUTPUT) == OUTPUT), 1))


def ctc_rows(theirs: str, heads: Heads, layout: TensorLayout = LINEAR) -> list[Row]:
    """Returns the names of the layer of the first CTC head on the encoder's output."""
    return [row for path, _ in first_head(heads, CTC) for row in rows_of([(theirs, f"{path}/output", layout)])]


class Description(NamedTuple):
    """Reader of the encoder and front-end settings in one kind of file or folder of another system."""

    name: str
    """Name of the kind: encoder class in a `.nemo` file, `model_type` of a Hugging Face folder, system of a `.pt`."""
    is_of: Callable[[Path], bool]
    """`is_of(path)` returns whether the file or folder is of this kind."""
    encoder: Callable[[Path], EncoderSettings]
    """`encoder(path)` returns the encoder's settings. It raises a UserError if one is not supported."""
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


def check_settings(where: str, settings: Mapping[str, Any], /, **expected: Any) -> None:
    """Checks settings against the values that this package supports; settings that are missing pass.

    Args:
        where: File and section that contain the settings, for messages.
        expected: Supported value of each setting, or a tuple of supported values.

    Raises:
        UserError: If a setting has another value.
    """
    for name, values in expected.items():
        choices = values if isinstance(values, tuple) else (values,)
        if name in settings and settings[name] not in choices:
            found, *known = ["empty" if each == "" else str(each) for each in (settings[name], *choices)]
            raise UserError(f"{where}.{name} is {found}, expected {' or '.join(dict.fromkeys(known))}")


def made[S](where: object, make: Callable[..., S], *given: Any, **named: Any) -> S:
    """Returns `make(*given, **named)`; an error of its values becomes a UserError that names the file `where`."""
    try:
        return make(*given, **named)
    except (ValueError, TypeError, SyntaxError) as error:
        raise UserError(f"{where}: {error}") from error


def listed(name: str) -> tuple[Any, ...]:
    """Returns the entries of the tuples called `name` in all modules of this package, in alphabetical order of modules.

    Deleting a module also removes its entries.
    """
    found = sorted(each.name for each in pkgutil.iter_modules(pretrained.__path__))
    modules = [importlib.import_module(f"{pretrained.__name__}.{each}") for each in found if each not in COLLECT]
    return tuple(each for module in modules for each in getattr(module, name, ()))


COLLECT = ("formats", "encoders", "published")
"""Modules that collect the entries of the others."""

"""Pre-trained weights from another run, a checkpoint or a file, and a report on which of them were loaded."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from asr_jax.config import Experiment
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree, digest_of, flatten, unflatten
from asr_jax.core.run_folder import CHECKPOINTS
from asr_jax.heads.base import LabelAxis
from asr_jax.inference.importing import run_and_checkpoint
from asr_jax.inference.trained import load_trained
from asr_jax.pretrained.formats import OURS, SUFFIXES, Symbols, imported, is_weights, load_weights
from asr_jax.pretrained.huggingface import has_settings_alone
from asr_jax.text.tokenizers import Tokenizer, given_tokenizer

SHOWN = 5
HEADS = "params/heads_"


@dataclass
class Account:
    """Paths of parameters and statistics, by whether and how they were loaded."""

    path: str
    loaded: list[str] = field(default_factory=list)
    kept_rows: dict[str, str] = field(default_factory=dict)
    """Heads with another vocabulary, and how many labels both vocabularies have."""
    missing: list[str] = field(default_factory=list)
    """Parameters that the weights lack. They stay random."""
    mismatched: dict[str, str] = field(default_factory=dict)
    """Parameters with another shape in the weights, and both shapes. They stay random."""
    unused: list[str] = field(default_factory=list)
    """Weights that the model lacks."""
    remark: str = ""

    def lines(self) -> list[str]:
        """Returns the report as lines of text."""
        lines = [f"initial weights of {self.path}: {len(self.loaded)} loaded"]
        lines += [f"  {path}: {what}" for path, what in self.kept_rows.items()]
        for what, paths in (
            ("missing", self.missing),
            ("of another shape", [*self.mismatched]),
            ("unused", self.unused),
        ):
            if paths:
                shapes = [f"{path} ({self.mismatched[path]})" if path in self.mismatched else path for path in paths]
                lines.append(f"  {len(paths)} {what}: {_listed(shapes)}")
        return lines + ([f"  {self.remark}"] if self.remark else [])


class Rows(NamedTuple):
    """Entries of a parameter that belong to labels of another vocabulary."""

    given: np.ndarray
    there: list[int]
    """Indices in the given array."""
    here: list[int]
    """Indices in the model's parameter."""
    axis: int


@dataclass(frozen=True)
class GivenWeights:
    """Given weights that match parameters of a model."""

    account: Account
    whole: dict[str, np.ndarray]
    """Values of whole arrays, by path."""
    rows: dict[str, Rows]
    """Rows of a head with another vocabulary, by path."""

    def digest(self) -> str:
        """Returns a digest of the initial weights.

        Equal digests give equal weights for the same random weights.
        """
        return digest_of({"whole": self.whole, "rows": {path: list(rows) for path, rows in self.rows.items()}})

    def fill(self, random: Tree) -> dict[str, Any]:
        """Returns random weights, `{"params": …, "batch_stats": …}`, on the host, with the given values filled in."""
        result = {path: np.array(value) for path, value in flatten(jax.device_get(random)).items()} | self.whole
        for path, (given, there, here, axis) in self.rows.items():
            np.moveaxis(result[path], axis, 0)[here] = np.moveaxis(given, axis, 0)[there]
        return unflatten(result)


def read_initial_weights(experiment: Experiment, tokenizer: Tokenizer, shapes: Tree) -> GivenWeights:
    """Reads the weights of `experiment.init` and matches them with the model's parameters.

    Raises:
        UserError: If the path has no weights, if none of them fits the model, or with `strict` if some do not.
    """
    path = Path(experiment.init.path)
    if has_settings_alone(path):
        remark = "there are no weights at this path, only settings: all parameters are random"
        return GivenWeights(Account(str(path), remark=remark), {}, {})
    weights, left, symbols = _read(path, experiment)
    ours = tokenizer.symbols
    theirs = tuple(symbols or ours)
    needed = flatten(shapes)
    account = Account(str(path), unused=sorted(weights.keys() - needed.keys()) + left)
    if not symbols and any(name.startswith(HEADS) for name in weights):
        account.remark = (
            "the weights contain no tokenizer, so the rows of their heads are not matched with the labels of this run; "
            "set --init.tokenizer to the tokenizer that the weights were trained with"
        )
    given = GivenWeights(account, {}, {})
    axes = {name: _label_axis(name, experiment) for name in {*needed, *weights} if name.startswith(HEADS)}
    for name, value in needed.items():
        if name not in weights:
            account.missing.append(name)
        elif theirs != ours and (found := _rows(axes.get(name), weights[name], value, theirs, ours)):
            given.rows[name] = found._replace(given=weights[name].astype(value.dtype))
            kept = len(_shared(theirs, ours)[1])
            account.kept_rows[name] = f"{kept} of {len(ours)} labels are in both vocabularies and keep their rows"
        elif weights[name].shape != value.shape:
            account.mismatched[name] = f"{weights[name].shape} in the weights, {value.shape} in the model"
        else:
            given.whole[name] = weights[name].astype(value.dtype)
            account.loaded.append(name)
    sizes = [weights[name].shape[axis.axis] - axis.more for name, axis in axes.items() if axis and name in weights]
    _check(experiment, account, len(theirs), sizes)
    return given


def _check(experiment: Experiment, account: Account, num_symbols: int, sizes: Sequence[int]) -> None:
    """Checks that the weights fit the tokenizer and the model."""
    if experiment.init.tokenizer and sizes and num_symbols not in sizes:
        raise UserError(
            f"init.tokenizer {experiment.init.tokenizer} has {num_symbols} symbols, and the heads of {account.path} "
            f"have {', '.join(sorted(map(str, {*sizes})))} labels: expected the tokenizer "
            "that the weights were trained with"
        )
    if not (account.loaded or account.kept_rows):
        raise UserError("\n".join([*account.lines(), "none of them fits the model; expected weights of this model"]))
    unmatched = [*account.missing, *account.mismatched, *account.unused]
    refused = [path for path in unmatched if not _may_be_new(path, experiment.init.new)]
    if experiment.init.strict and refused:
        message = (
            f"expected exactly the weights of the model, but not {_listed(refused)}; --init.new PATTERN allows such "
            "parameters to be new or unused, --init.strict False loads only the weights that fit"
        )
        raise UserError("\n".join([*account.lines(), message]))


def _listed(names: Sequence[str]) -> str:
    """Returns the first names and the number of the others."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _may_be_new(path: str, patterns: Sequence[str]) -> bool:
    """Returns whether a pattern matches a path of ours, or a name of another system that has no path of ours."""
    name = path.partition("/")[2] if path.startswith(OURS) else path
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _read(path: Path, experiment: Experiment) -> tuple[dict[str, np.ndarray], list[str], Symbols | None]:
    """Reads weights of a file, a folder or a run."""
    if is_weights(path):
        weights, symbols = load_weights(path)
        return *imported(weights, experiment.model), _given_symbols(experiment) or symbols
    run, updates = run_and_checkpoint(path)
    if not (run / CHECKPOINTS).is_dir():
        raise UserError(
            f"init.path {path}: expected the folder of a run, one of its checkpoints (RUN/{CHECKPOINTS}/NUMBER), or a "
            f"file of weights ({' '.join(SUFFIXES)}), or a Hugging Face folder"
        )
    trained = load_trained(run, updates=updates)
    given = {name: np.asarray(value) for name, value in flatten(trained.variables).items()}
    return given, [], _given_symbols(experiment) or trained.tokenizer.symbols


def _given_symbols(experiment: Experiment) -> Symbols | None:
    """Returns the symbols of the tokenizer `init.tokenizer`; None if it is not set."""
    if not experiment.init.tokenizer:
        return None
    return given_tokenizer(replace(experiment.data.tokenizer, path=experiment.init.tokenizer)).symbols


def _label_axis(name: str, experiment: Experiment) -> LabelAxis | None:
    """Returns the axis of a head's parameter or statistic that has labels; the last one for heads of other models."""
    head, _, rest = name.removeprefix(HEADS).partition("/")
    settings = experiment.model.heads.get(head)
    return settings.label_axis(rest) if settings else LabelAxis(-1)


def _rows(axis: LabelAxis | None, given: np.ndarray, value: Any, theirs: Symbols, ours: Symbols) -> Rows | None:
    """Returns the rows of shared labels; None if the parameter has no labels, or another shape apart from these."""
    if axis is None or not given.ndim or given.ndim != len(value.shape):
        return None
    sizes = given.shape[axis.axis], value.shape[axis.axis]
    others = [np.delete(shape, axis.axis).tolist() for shape in (given.shape, value.shape)]
    if others[0] != others[1] or sizes != (len(theirs) + axis.more, len(ours) + axis.more):
        return None
    there, here = _shared(theirs, ours)
    if axis.more < 0:  # the blank has no row
        there, here = (_without_blank(places, symbols) for places, symbols in ((there, theirs), (here, ours)))
    more = range(max(axis.more, 0))
    return Rows(given, there + [len(theirs) + n for n in more], here + [len(ours) + n for n in more], axis.axis)


def _without_blank(places: Sequence[int], symbols: Symbols) -> list[int]:
    """Returns indices of labels in an array that has no row for the blank."""
    blank = symbols.index(None)
    return [place - (place > blank) for place in places if place != blank]


def _shared(theirs: Symbols, ours: Symbols) -> tuple[list[int], list[int]]:
    """Returns their and our indices of the labels that both vocabularies have, including the blank.

    A label that they have only in the other case counts as the same, because many published models have capital
    letters.
    """
    place = {symbol: number for number, symbol in enumerate(theirs)}
    for symbol in {*ours} - place.keys():
        other = str(symbol).swapcase()
        if other in place and other not in ours:
            place[symbol] = place[other]
    here = [number for number, symbol in enumerate(ours) if symbol in place]
    return [place[ours[number]] for number in here], here

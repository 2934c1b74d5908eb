"""Weights that a run begins with, of another run, a checkpoint or a file, and an account of what became of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from asr_jax.config import Experiment
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree, digest_of, flatten, unflatten
from asr_jax.core.run_folder import CHECKPOINTS
from asr_jax.inference.trained import load_trained
from asr_jax.pretrained.formats import OURS, SUFFIXES, Symbols, imported, is_weights, load_weights
from asr_jax.text.tokenizers import Tokenizer, given_tokenizer

SHOWN = 5
HEADS = "params/heads_"


@dataclass
class Account:
    """Paths of parameters and statistics by what became of them."""

    path: str
    loaded: list[str] = field(default_factory=list)
    kept_rows: dict[str, str] = field(default_factory=dict)
    """Of heads with another vocabulary: how many pieces are shared."""
    missing: list[str] = field(default_factory=list)
    """The model has them and the weights do not: they stay random."""
    mismatched: dict[str, str] = field(default_factory=dict)
    """Of another shape: they stay random."""
    unused: list[str] = field(default_factory=list)
    """The weights have them and the model does not."""
    remark: str = ""

    def lines(self) -> list[str]:
        """For a person."""
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


@dataclass(frozen=True)
class Given:
    """Weights that are there, held against those that a model has."""

    account: Account
    whole: dict[str, np.ndarray]
    """By path: what takes the place of all of an array."""
    rows: dict[str, tuple[np.ndarray, list[int], list[int]]]
    """By path: what takes the place of labels, from these places of it to those."""

    def digest(self) -> str:
        """Equal where the same would become of the same random weights."""
        return digest_of({"whole": self.whole, "rows": {path: list(parts) for path, parts in self.rows.items()}})

    def fill(self, random: Tree) -> dict[str, Any]:
        """Random weights, `{"params": …, "batch_stats": …}`, on the host, with these in their place."""
        result = {path: np.array(value) for path, value in flatten(jax.device_get(random)).items()} | self.whole
        for path, (given, there, here) in self.rows.items():
            result[path][..., here] = given[..., there]
        return unflatten(result)


def read_initial_weights(experiment: Experiment, tokenizer: Tokenizer, shapes: Tree) -> Given:
    """The weights of `experiment.init`. `shapes`: of the model's parameters and statistics.

    Raises: UserError where there are none at the path, and with `strict` where they do not fit all of the model.
    """
    path = Path(experiment.init.path)
    weights, left, symbols = _read(path, experiment)
    ours = tokenizer.symbols
    theirs = tuple(symbols or ours)
    needed = flatten(shapes)
    account = Account(str(path), unused=sorted(weights.keys() - needed.keys()) + left)
    if not symbols and any(name.startswith(HEADS) for name in weights):
        account.remark = (
            "which piece each label of a head is there is not known: rows are taken as they are; --init.tokenizer "
            "names the tokenizer that the weights were trained with"
        )
    given = Given(account, {}, {})
    for name, value in needed.items():
        if name not in weights:
            account.missing.append(name)
        elif theirs != ours and _is_of_labels(name, weights[name], value, len(theirs), len(ours)):
            there, here = _shared(theirs, ours)
            given.rows[name] = (weights[name].astype(value.dtype), there, here)
            account.kept_rows[name] = f"{len(here)} of {len(ours)} pieces are shared and keep their rows"
        elif weights[name].shape != value.shape:
            account.mismatched[name] = f"{weights[name].shape} there, {value.shape} in the model"
        else:
            given.whole[name] = weights[name].astype(value.dtype)
            account.loaded.append(name)
    _check(experiment, account, len(theirs), [weights[name].shape for name in weights if name.startswith(HEADS)])
    return given


def _check(experiment: Experiment, account: Account, num_symbols: int, heads: Sequence[tuple[int, ...]]) -> None:
    """`heads`: shapes of the heads' parameters in what is given."""
    if experiment.init.tokenizer and heads and not any(shape[-1:] == (num_symbols,) for shape in heads):
        raise UserError(
            f"init.tokenizer {experiment.init.tokenizer} has {num_symbols} symbols, and the heads of {account.path} "
            f"have {', '.join(sorted({str(shape[-1]) for shape in heads if shape}))} labels: expected the tokenizer "
            "that they were trained with"
        )
    if not (account.loaded or account.kept_rows):
        raise UserError("\n".join([*account.lines(), "none of it fits this model: is it another one?"]))
    unmatched = [*account.missing, *account.mismatched, *account.unused]
    refused = [path for path in unmatched if not _may_be_new(path, experiment.init.new)]
    if experiment.init.strict and refused:
        mend = (
            f"expected weights for all of the model and no others, and not {_listed(refused)}; --init.new PATTERN "
            "names what may be new or left over, --init.strict False takes what fits"
        )
        raise UserError("\n".join([*account.lines(), mend]))


def _listed(names: Sequence[str]) -> str:
    """The first ones, and how many more there are."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _may_be_new(path: str, patterns: Sequence[str]) -> bool:
    """`path`: one of ours, or in another system's file a name that has none of ours."""
    name = path.partition("/")[2] if path.startswith(OURS) else path
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _read(path: Path, experiment: Experiment) -> tuple[dict[str, np.ndarray], list[str], Symbols | None]:
    """Weights by our paths, names of those that no model of these settings has, and the symbols of the tokenizer that
    they were trained with, where these are known.
    """
    if is_weights(path):
        weights, symbols = load_weights(path)
        return *imported(weights, experiment.model), _given_symbols(experiment) or symbols
    run, updates = path, None
    if path.parent.name == CHECKPOINTS and path.name.isdecimal():
        run, updates = path.parents[1], int(path.name)
    if not (run / CHECKPOINTS).is_dir():
        raise UserError(
            f"init.path {path}: expected the folder of a run, one of its checkpoints (RUN/{CHECKPOINTS}/NUMBER), or a "
            f"file of weights ({' '.join(SUFFIXES)}) or a folder of Hugging Face's"
        )
    trained = load_trained(run, updates=updates)
    given = {name: np.asarray(value) for name, value in flatten(trained.variables).items()}
    return given, [], _given_symbols(experiment) or trained.tokenizer.symbols


def _given_symbols(experiment: Experiment) -> Symbols | None:
    """Of the tokenizer that the settings name for the weights."""
    if not experiment.init.tokenizer:
        return None
    return given_tokenizer(replace(experiment.data.tokenizer, path=experiment.init.tokenizer)).symbols


def _is_of_labels(name: str, given: np.ndarray, value: Any, there: int, here: int) -> bool:
    """Whether the last axis of a head's parameter are the labels, of their number there and here, and all others are
    alike.
    """
    return name.startswith(HEADS) and given.shape == (*value.shape[:-1], there) and value.shape[-1] == here


def _shared(theirs: Symbols, ours: Symbols) -> tuple[list[int], list[int]]:
    """Places of the pieces (the blank among them) that both have: theirs, and ours. A piece that is there in the other
    case alone is the same: many published models have capital letters.
    """
    place = {symbol: number for number, symbol in enumerate(theirs)}
    for symbol in {*ours} - place.keys():
        other = str(symbol).swapcase()
        if other in place and other not in ours:
            place[symbol] = place[other]
    here = [number for number, symbol in enumerate(ours) if symbol in place]
    return [place[ours[number]] for number in here], here

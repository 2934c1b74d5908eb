"""Weights that a run begins with, of another run, a checkpoint or a file, and an account of what became of them."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from asr_jax.config import Experiment
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree, flatten, unflatten
from asr_jax.pretrained.formats import Symbols, imported, load_weights
from asr_jax.text.tokenizer import Tokenizer, given_tokenizer
from asr_jax.training.run import CHECKPOINTS
from asr_jax.training.trained import load_trained

SHOWN = 5


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
                more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
                shapes = [f"{path} ({self.mismatched[path]})" if path in self.mismatched else path for path in paths]
                lines.append(f"  {len(paths)} {what}: {', '.join(shapes[:SHOWN])}{more}")
        return lines + ([f"  {self.remark}"] if self.remark else [])


def initial_weights(experiment: Experiment, tokenizer: Tokenizer, random: Tree) -> tuple[dict[str, Any], Account]:
    """The weights of `experiment.init` in the place of random ones, where they fit, on the host. `random`: parameters
    of the model and statistics, `{"params": …, "batch_stats": …}`.

    Raises: UserError where there are none at the path, and with `strict` where they do not fit all of the model.
    """
    path = Path(experiment.init.path)
    given, left, symbols = _read(path, experiment)
    ours = tokenizer.symbols
    theirs = tuple(symbols or ours)
    result = {name: np.asarray(value) for name, value in flatten(jax.device_get(random)).items()}
    account = Account(str(path), unused=sorted(given.keys() - result.keys()) + left)
    if not symbols:
        account.remark = (
            "which piece each label of a head is there is not known: rows are taken as they are; --init.tokenizer "
            "names the tokenizer that the weights were trained with"
        )
    for name, value in result.items():
        if name not in given:
            account.missing.append(name)
        elif theirs != ours and _is_of_labels(name, given[name], value, len(theirs), len(ours)):
            result[name], shared = _rows_of(given[name], value, theirs, ours)
            account.kept_rows[name] = f"{shared} of {len(ours)} pieces are shared and keep their rows"
        elif given[name].shape != value.shape:
            account.mismatched[name] = f"{given[name].shape} there, {value.shape} in the model"
        else:
            result[name] = given[name].astype(value.dtype)
            account.loaded.append(name)
    if not (account.loaded or account.kept_rows):
        raise UserError("\n".join([*account.lines(), "none of it fits this model: is it another one?"]))
    if experiment.init.strict and (account.missing or account.mismatched or account.unused):
        mend = "expected weights for all of the model and no others; --init.strict False takes what fits"
        raise UserError("\n".join([*account.lines(), mend]))
    return unflatten(result), account


def _read(path: Path, experiment: Experiment) -> tuple[dict[str, np.ndarray], list[str], Symbols | None]:
    """Weights by our paths, names of those that no model of these settings has, and the symbols of the tokenizer that
    they were trained with, where these are known."""
    if path.suffix == ".safetensors":
        weights, symbols = load_weights(path)
        return *imported(weights, experiment.model), _given_symbols(experiment) or symbols
    run, updates = path, None
    if path.parent.name == CHECKPOINTS and path.name.isdecimal():
        run, updates = path.parents[1], int(path.name)
    if not (run / CHECKPOINTS).is_dir():
        raise UserError(
            f"init.path {path}: expected the folder of a run, one of its checkpoints (RUN/{CHECKPOINTS}/NUMBER), or a "
            ".safetensors file"
        )
    trained = load_trained(run, updates=updates)
    given = {name: np.asarray(value) for name, value in flatten(trained.variables).items()}
    return given, [], _given_symbols(experiment) or trained.tokenizer.symbols


def _given_symbols(experiment: Experiment) -> Symbols | None:
    """Of the tokenizer that the settings name for the weights."""
    if not experiment.init.tokenizer:
        return None
    return given_tokenizer(replace(experiment.data.tokenizer, path=experiment.init.tokenizer)).symbols


def _is_of_labels(name: str, given: np.ndarray, value: np.ndarray, there: int, here: int) -> bool:
    """Whether the last axis of a head's parameter are the labels, of their number there and here, and all others are
    alike."""
    return name.startswith("params/heads_") and given.shape == (*value.shape[:-1], there) and value.shape[-1] == here


def _rows_of(given: np.ndarray, random: np.ndarray, theirs: Symbols, ours: Symbols) -> tuple[np.ndarray, int]:
    """Random weights with those of shared pieces (the blank among them) in their place, and how many these are."""
    place = {symbol: number for number, symbol in enumerate(theirs)}
    pairs = [(number, place[symbol]) for number, symbol in enumerate(ours) if symbol in place]
    result = np.array(random)
    if pairs:
        here, there = map(list, zip(*pairs, strict=True))
        result[..., here] = given[..., there]
    return result, len(pairs)

"""Mean weights of several checkpoints, saved as a run."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from asr_jax.checkpoints.store import checkpoints_in, replace_average
from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.core.pytrees import Tree
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT, PLAN, TOKENIZER
from asr_jax.inference.trained import load_trained
from asr_jax.inference.weights import WeightKind, restore_weights


def choose(run: Path, *, last: int = 0, first: int = 0, to: int = 0) -> list[int]:
    """Returns the numbers of the chosen checkpoints of a run, in increasing order.

    Args:
        last: Number of the newest checkpoints to choose, of those in the range. 0: all.
        first: Smallest number.
        to: Largest number. 0: no limit.

    Raises:
        UserError: If there are none, or fewer than `last`.
    """
    known = checkpoints_in(run / CHECKPOINTS)
    found = [number for number in known if first <= number and (not to or number <= to)]
    if not known:
        raise UserError(f"{run} has no complete checkpoint: its first validation is not done yet; continue the run")
    if not found:
        raise UserError(
            f"{run} has no checkpoint from {first} to {to or 'the last'}: there are {', '.join(map(str, known))}; "
            "change --from or --to"
        )
    if len(found) < last:
        raise UserError(
            f"--last {last}: {run} has {counted(len(found), 'checkpoint')}, {', '.join(map(str, found))}; use --last "
            f"{len(found)}, or keep more in training with --training.saving.keep-last {last}"
        )
    return found[-last:]


def mean_weights(run: Path, chosen: Sequence[int], *, live: bool = False) -> Tree:
    """Computes the mean of the averaged or live parameters of several checkpoints, in float64.

    Args:
        live: Whether the live parameters are used instead of the averaged ones.

    Returns:
        Variables with the mean of all floating-point arrays. Integer arrays, such as counts, are those of the last
        checkpoint.
    """
    trained = load_trained(run, updates=chosen[-1])
    kept: WeightKind = "live" if live else "averaged"
    total: Tree = None
    for number in chosen:
        restored = restore_weights(run, number, trained.experiment, trained.variables, mesh=trained.mesh, weights=kept)
        weights = jax.tree.map(_wide, jax.device_get(restored))
        total = weights if total is None else jax.tree.map(_added, total, weights)
    return jax.tree.map(lambda t, like: _narrow(t, len(chosen), like), total, trained.variables)


def save_run(run: Path, number: int, weights: Tree, out: Path) -> None:
    """Writes a run with one checkpoint: a copy of checkpoint `number` with other averaged parameters."""
    out.mkdir(parents=True)
    for name in (EXPERIMENT, PLAN):
        shutil.copy(run / name, out / name)
    shutil.copytree(run / TOKENIZER, out / TOKENIZER)
    shutil.copytree(run / CHECKPOINTS / str(number), out / CHECKPOINTS / str(number))
    replace_average(out / CHECKPOINTS, number, weights)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array


def _added(total: np.ndarray, array: np.ndarray) -> np.ndarray:
    return total + array if np.issubdtype(array.dtype, np.floating) else array


def _narrow(total: np.ndarray, number: int, like: jax.Array) -> np.ndarray:
    mean = total / number if np.issubdtype(total.dtype, np.floating) else total
    return np.asarray(mean, like.dtype)

"""Mean weights of several checkpoints, saved as a run."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from asr_jax.checkpoints.integrity import seal
from asr_jax.checkpoints.store import METRICS, checkpoints_in
from asr_jax.core.errors import UserError
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
        UserError: If there are none.
    """
    known = checkpoints_in(run / CHECKPOINTS)
    chosen = [number for number in known if first <= number and (not to or number <= to)][-last:]
    if not chosen:
        raise UserError(
            f"{run / CHECKPOINTS} has no such checkpoint: there are {', '.join(map(str, known)) or 'none'}; choose "
            "among these"
        )
    return chosen


def mean_weights(run: Path, chosen: Sequence[int], *, live: bool = False) -> Tree:
    """Computes the mean of the averaged or live parameters of several checkpoints, in float64.

    Args:
        chosen: Numbers of the checkpoints, in increasing order.
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
    """Writes a run with one checkpoint: a copy of checkpoint `number` with other averaged parameters.

    Args:
        run: Folder of the run to copy.
        weights: New averaged parameters.
        out: New folder.
    """
    out.mkdir(parents=True)
    for name in (EXPERIMENT, PLAN):
        shutil.copy(run / name, out / name)
    shutil.copytree(run / TOKENIZER, out / TOKENIZER)
    checkpoint = out / CHECKPOINTS / str(number)
    shutil.copytree(run / CHECKPOINTS / str(number), checkpoint)
    shutil.rmtree(checkpoint / "average")
    shutil.rmtree(checkpoint / METRICS.partition("/")[0], ignore_errors=True)  # they belong to the previous weights
    with ocp.StandardCheckpointer() as writer:
        writer.save(checkpoint.absolute() / "average", weights)
    seal(checkpoint)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array


def _added(total: np.ndarray, array: np.ndarray) -> np.ndarray:
    return total + array if np.issubdtype(array.dtype, np.floating) else array


def _narrow(total: np.ndarray, number: int, like: jax.Array) -> np.ndarray:
    mean = total / number if np.issubdtype(total.dtype, np.floating) else total
    return np.asarray(mean, like.dtype)

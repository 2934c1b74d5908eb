"""Calibration of a run's word confidences: fitted on data that was not used for training, saved in the run's folder."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from asr_jax.checkpoints.integrity import seal_digest
from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.run_folder import CALIBRATION, CHECKPOINTS
from asr_jax.core.text_files import read_text
from asr_jax.inference.weights import WeightKind
from asr_jax.metrics.confidence import Calibration, confidence_report, fit_calibration
from asr_jax.search.base import Decoding


def read_calibration(
    run: Path, updates: int, weights: WeightKind, decoding: Decoding, *, head: str = ""
) -> Calibration | None:
    """Reads the calibration of a checkpoint's weights and a decoding.

    Args:
        updates: Number of the checkpoint.
        head: Name of the head. Empty: the primary head.

    Returns:
        The calibration; None if none was fitted.

    Raises:
        UserError: If the file is damaged.
    """
    found = _all(run).get(_key(run, updates, weights, decoding, head))
    return None if found is None else Calibration(found["slope"], found["offset"])


def calibrate(
    run: Path,
    updates: int,
    weights: WeightKind,
    decoding: Decoding,
    confidences: Float[np.ndarray, " N"],
    is_right: Bool[np.ndarray, " N"],
    *,
    head: str = "",
) -> dict[str, Any]:
    """Fits a calibration and adds it to those in the run's folder. With fewer than two words, none is fitted.

    Args:
        confidences: Confidence of each word without calibration, in 0..1.
        head: Name of the head. Empty: the primary head.

    Returns:
        `words`, their number; `error_before`, the calibration error of the given confidences; `error_after`, that of
        calibrated ones, where each half of the words is calibrated by a fit to the other half; `file`.
    """
    if len(confidences) < 2:
        return {"words": len(confidences)}
    crossed = np.zeros_like(confidences)
    for half in (0, 1):  # Every second word, so that both halves contain words of every source.
        fitted = fit_calibration(confidences[1 - half :: 2], is_right[1 - half :: 2])
        crossed[half::2] = fitted(confidences[half::2])
    before, after = (confidence_report(each, is_right)["calibration_error"] for each in (confidences, crossed))
    about = {"words": len(confidences), "error_before": before, "error_after": after}
    entry = asdict(fit_calibration(confidences, is_right)) | {"decoding": str(decoding)} | about
    everything = _all(run) | {_key(run, updates, weights, decoding, head): entry}
    write_whole(run / CALIBRATION, json.dumps(everything, indent=2) + "\n")
    return about | {"file": str(run / CALIBRATION)}


def _key(run: Path, updates: int, weights: WeightKind, decoding: Decoding, head: str) -> str:
    seal = seal_digest(run / CHECKPOINTS / str(updates))  # the number alone may be that of other weights
    return " ".join([str(updates), *[seal] * bool(seal), weights, decoding.digest(), *[head] * bool(head)])


def _all(run: Path) -> dict[str, Any]:
    path = run / CALIBRATION
    try:
        found: dict[str, Any] = json.loads(read_text(path)) if path.exists() else {}
        for entry in found.values():
            float(entry["slope"]), float(entry["offset"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read: {error!r}; delete it, and fit it again with evaluate --calibrate"
        ) from error
    return found

"""The calibration of a run's word confidences: fitted on data that it was not trained on, kept in its folder."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.decoding.ctc import Decoding
from asr_jax.metrics.confidence import Calibration, confidence_report, fit_calibration
from asr_jax.training.run import CALIBRATION


def read_calibration(run: Path, updates: int, decoding: Decoding) -> Calibration | None:
    """Of a checkpoint and a decoding; None where it was never fitted.

    Raises: UserError where the file is damaged.
    """
    found = _all(run).get(_key(updates, decoding))
    return None if found is None else Calibration(found["slope"], found["offset"])


def write_calibration(
    run: Path, updates: int, decoding: Decoding, calibration: Calibration, *, about: dict[str, Any]
) -> None:
    """Keeps it beside those of other checkpoints and decodings. `about`: what it was fitted on, for people."""
    entry = asdict(calibration) | {"decoding": str(decoding)} | about
    write_whole(run / CALIBRATION, json.dumps(_all(run) | {_key(updates, decoding): entry}, indent=2) + "\n")


def calibrate(
    run: Path,
    updates: int,
    decoding: Decoding,
    confidences: Float[np.ndarray, " N"],
    is_right: Bool[np.ndarray, " N"],
) -> dict[str, Any]:
    """Fits the calibration to raw confidences of words, and keeps it in the run's folder; without words it keeps none.

    Gives `words`, `error_before` and `error_after`: the calibration error of the raw confidences and, on each half of
    the words, of what was fitted to the other half; `file`.
    """
    if len(confidences) < 2:
        return {"words": len(confidences)}
    first, second = slice(len(confidences) // 2), slice(len(confidences) // 2, None)
    crossed = [
        fit_calibration(confidences[a], is_right[a])(confidences[b]) for a, b in ((second, first), (first, second))
    ]
    before, after = (
        confidence_report(each, is_right)["calibration_error"] for each in (confidences, np.concatenate(crossed))
    )
    about = {"words": len(confidences), "error_before": before, "error_after": after}
    write_calibration(run, updates, decoding, fit_calibration(confidences, is_right), about=about)
    return about | {"file": str(run / CALIBRATION)}


def _key(updates: int, decoding: Decoding) -> str:
    return f"{updates} {decoding.digest()}"


def _all(run: Path) -> dict[str, Any]:
    path = run / CALIBRATION
    try:
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        for entry in found.values():
            float(entry["slope"]), float(entry["offset"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read: {error!r}; delete it and fit it again: evaluate --calibrate"
        ) from error
    return found

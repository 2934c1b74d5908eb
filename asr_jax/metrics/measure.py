"""Measure by which the best checkpoint is chosen: the word error rate, or the loss if no head recognises text."""

from collections.abc import Mapping
from typing import Any, Literal

Measure = Literal["wer", "loss"]
"""Name of a measure of a validation. Lower values are better."""
NAMES: dict[Measure, str] = {"wer": "WER", "loss": "loss"}


def measure_of(figures: Mapping[str, Any]) -> Measure:
    """Returns the measure in the figures of a validation or of a checkpoint; WER is preferred if there are both."""
    return "wer" if "wer" in figures else "loss"


def shown(measure: Measure, value: float | None) -> str:
    """Returns a measure as text: `8.12 %` for an error rate, `2.345` for a loss, `nan` for None (not finite)."""
    if value is None:
        return "nan"
    return f"{100 * value:.2f} %" if measure == "wer" else f"{value:.4g}"

"""The measure that the best checkpoint is chosen by: the word error rate or, where nothing is recognised, the loss."""

from collections.abc import Mapping
from typing import Any, Literal

Measure = Literal["wer", "loss"]
"""Of a validation; the lower the better."""
NAMES: dict[Measure, str] = {"wer": "WER", "loss": "loss"}


def measure_of(figures: Mapping[str, Any]) -> Measure:
    """Of the figures of a validation, which may have both, or of what a checkpoint says of its own."""
    return "wer" if "wer" in figures else "loss"


def shown(measure: Measure, value: float | None) -> str:
    """`8.12 %` of an error rate, `2.345` of a loss; `nan` for what was not finite."""
    if value is None:
        return "nan"
    return f"{100 * value:.2f} %" if measure == "wer" else f"{value:.4g}"

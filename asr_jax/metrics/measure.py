"""Measure by which the best checkpoint is chosen: an error rate, or the loss if no head recognises text.

The error rate is that of words (WER), or of characters (CER) if most words of the references follow each other without
a space, as in Chinese and Thai: their words are a matter of segmentation. With several validation sets, it is that of
all utterances together, the mean of the sets, or that of one set.
"""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from asr_jax.text.segmentation import mostly_without_spaces

Measure = Literal["wer", "cer", "loss"]
"""Name of a measure of a validation. Lower values are better."""
NAMES: dict[Measure, str] = {"wer": "WER", "cer": "CER", "loss": "loss"}
ALL, MEAN = "all", "mean"
"""Values of `training.saving.best_of` that are not the name of a set: all utterances together, the mean of the sets."""
RATES = ("wer", "cer", "loss")
"""Figures of a set that have a mean over the sets, and that summaries contain."""


def measure_of(figures: Mapping[str, Any]) -> Measure:
    """Returns the measure that the figures of a validation or of a checkpoint name, otherwise the first that they have.

    The order is WER, CER, loss.
    """
    own: Measure = next((name for name in NAMES if name in figures), "loss")
    return figures.get("measure", own)


def rate_of(references: Iterable[str]) -> Literal["wer", "cer"]:
    """Returns the error rate by which recognised texts are judged."""
    return "cer" if mostly_without_spaces(references) else "wer"


def shown(measure: Measure, value: float | None) -> str:
    """Returns a measure as text: `8.12 %` for an error rate, `2.345` for a loss, `nan` for None (not finite)."""
    if value is None:
        return "nan"
    return f"{value:.4g}" if measure == "loss" else f"{100 * value:.2f} %"


def mean_of(sets: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Returns the unweighted mean over the sets of each of the `RATES` that all have; None if a set has no value."""
    of_sets = list(sets)
    values = {name: [each[name] for each in of_sets] for name in RATES if all(name in each for each in of_sets)}
    return {name: None if None in rates else statistics.fmean(rates) for name, rates in values.items()}


def by_set(figures: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the figures of each validation set, their mean and those of all utterances; for one set only the last."""
    sets = figures.get("sets", {})
    whole = {name: value for name, value in figures.items() if name not in ("sets", "mean")}
    return {**sets, **({MEAN: figures["mean"]} if sets else {}), ALL: whole}


def deciding(figures: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the part of the figures of a validation that chooses the best checkpoint (`training.saving.best_of`)."""
    return by_set(figures)[figures.get("best_of", ALL)]


def without_value(figures: Mapping[str, Any]) -> list[str]:
    """Returns the sets that choose the best checkpoint and of which no utterance could be measured."""
    parts, best_of, measure = by_set(figures), figures.get("best_of", ALL), measure_of(figures)
    counting = figures["sets"] if best_of == MEAN else {best_of: parts[best_of]}
    return [name for name, each in counting.items() if not each.get("utterances") or each[measure] is None]


def deciding_text(figures: Mapping[str, Any]) -> str:
    """Returns the measure that chooses the best checkpoint as text, such as `WER 8.12 %` or `WER 8.12 % (mean)`."""
    measure, of = measure_of(figures), figures.get("best_of", ALL)
    return f"{NAMES[measure]} {shown(measure, deciding(figures).get(measure))}" + (f" ({of})" if of != ALL else "")

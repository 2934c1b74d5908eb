"""Figures of a report: one or two systems on the same utterances, as a whole, by groups, and by kinds of errors."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int64

from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.metrics.comparison import compare, named_alike
from asr_jax.metrics.confidence import confidence_report, judged_words, reliability
from asr_jax.metrics.measure import rate_of
from asr_jax.metrics.scoring import (
    COUNTS,
    Recognised,
    count_utterances,
    group_name,
    length_classes,
    length_name,
    rates_of,
)
from asr_jax.observe.transcripts import Pair, align
from asr_jax.reporting.predictions import Predictions
from asr_jax.text.normalise import normalise

MOST_GROUPS = 50
"""Largest number of rows of a table of groups."""
MOST_EDITS = 20
"""Largest number of rows of a table of kinds of errors."""


@dataclass(frozen=True)
class System:
    """Predictions of one system, and the errors of each utterance."""

    name: str
    recognised: Sequence[Recognised]
    rows: Sequence[dict[str, Any]]
    """JSON object of each utterance."""
    normaliser: str
    counts: Int64[np.ndarray, "N 16"]
    """`metrics.scoring.COUNTS` of each utterance."""

    @functools.cached_property
    def errors(self) -> Int64[np.ndarray, " N"]:
        """Number of word errors of each utterance."""
        return self.counts[:, :3].sum(axis=1)

    @property
    def words(self) -> Int64[np.ndarray, " N"]:
        """Number of words of each reference."""
        return self.counts[:, COUNTS.index("words")]

    @functools.cached_property
    def alignments(self) -> dict[int, list[Pair]]:
        """Aligned words of the utterances with errors, by row."""
        return {row: self.aligned(row) for row in self.errors.nonzero()[0].tolist()}

    def aligned(self, row: int) -> list[Pair]:
        """Returns the aligned words of an utterance after normalising."""
        return align(*self.normalised(row))

    def normalised(self, row: int) -> tuple[str, str]:
        """Returns reference and hypothesis of an utterance after normalising."""
        each = self.recognised[row]
        return normalise(each.reference, self.normaliser), normalise(each.hypothesis, self.normaliser)

    def rates(self, rows: Sequence[int] | None = None) -> dict[str, Any]:
        """Returns the figures of some utterances, as `metrics.scoring.rates_of`. Default: all."""
        chosen = range(len(self.recognised)) if rows is None else rows
        return rates_of(self.counts[list(chosen)], [self.recognised[row].speaker for row in chosen])

    def about(self) -> dict[str, str]:
        """Returns the fields that describe the system, `head` and `decoding`; they are empty if no line has a value."""
        fields = {name: {str(row[name]) for row in self.rows if row.get(name)} for name in ("head", "decoding")}
        return {name: ", ".join(sorted(values)) for name, values in fields.items()}


def system(name: str, recognised: Sequence[Recognised], rows: Sequence[dict[str, Any]], normaliser: str) -> System:
    """Counts the errors of each utterance of a system after normalising."""
    return System(name, recognised, rows, normaliser, count_utterances(recognised, normaliser=normaliser))


def matched(
    files: Mapping[str, Predictions], normaliser: str
) -> tuple[list[System], dict[str, Any] | None, dict[str, int]]:
    """Returns the systems on the utterances that all of them have.

    Returns:
        The systems; for two, the result of `metrics.comparison.compare`; the numbers of utterances that only one of
        them has, and which are left out.

    Raises:
        UserError: If an id comes twice in a set, or as `compare`.
    """
    if len(files) == 1:
        [(name, predictions)] = files.items()
        times = Counter((each.set, each.id) for each in predictions.recognised)
        if repeated := [each for (_, each), number in times.items() if number > 1]:
            raise UserError(
                f"{name}: of {counted(len(times), 'id')}, {len(repeated)} occur more than once in a set, such as "
                f"{repeated[0]!r}: expected one line for each utterance"
            )
        return [system(name, predictions.recognised, predictions.rows, normaliser)], None, {}
    (name, first), (other, second) = files.items()
    try:
        found = compare(first.recognised, second.recognised, normaliser=normaliser)
    except UserError as error:
        raise UserError(f"{name} (first) and {other} (second): {error}") from error
    alike = named_alike(first.recognised, second.recognised)
    places = [{(each.set, each.id): row for row, each in enumerate(of_system)} for of_system in alike]
    pairs = [(row, places[1][key]) for key, row in places[0].items() if key in places[1]]
    systems = [
        system(label, [of.recognised[row] for row in rows], [of.rows[row] for row in rows], normaliser)
        for (label, of), rows in zip(files.items(), zip(*pairs, strict=True), strict=True)
    ]
    only = {name: len(found["only_first_ids"]), other: len(found["only_second_ids"])}
    return systems, found, {label: number for label, number in only.items() if number}


def groups(systems: Sequence[System]) -> list[dict[str, Any]]:
    """Returns the groups of utterances by set, source, speaker and duration.

    Returns:
        For each grouping with at least two groups, or with a named one: `by`, its name; `rows`, with the `name` of the
        group, its number of `utterances` and the `rates` of each system; `left_out`, the number of groups beyond
        `MOST_GROUPS`, which are those with the fewest errors of the first system.
    """
    first = systems[0].recognised
    classes = length_classes(np.array([each.duration_s for each in first], np.float64)).tolist()
    keys: dict[str, Sequence[Any]] = {
        "set": [each.set for each in first],
        "source": [each.source for each in first],
        "speaker": [each.speaker for each in first],
        "duration": classes,
    }
    found = []
    for by, of_rows in keys.items():
        members: dict[Any, list[int]] = {}
        for row, key in enumerate(of_rows):
            members.setdefault(key, []).append(row)
        if set(members) <= {"", -1}:
            continue
        errors = Counter({key: int(systems[0].errors[own].sum()) for key, own in members.items()})
        shown = sorted(key for key, _ in errors.most_common(MOST_GROUPS))
        rows = [
            {
                "name": group_name(by, length_name(key) if by == "duration" else key),
                "utterances": len(members[key]),
                "rates": [each.rates(members[key]) for each in systems],
            }
            for key in shown
        ]
        found.append({"by": by, "rows": rows, "left_out": len(members) - len(shown)})
    return found


def edits(systems: Sequence[System], parts: Callable[[str], Iterable[str]] | None = None) -> dict[str, Any]:
    """Returns the most frequent kinds of errors.

    Args:
        parts: Function that splits a text into the units to align. None: words.

    Returns:
        `rows`: `mark` (`S`, `D` or `I`), `reference`, `hypothesis`, and `times` for each system, in order of the sum
        of times; `left_out`: the number of further kinds.
    """
    times = []
    for each in systems:
        counter = Counter[Pair]()
        for row, words in each.alignments.items():
            pairs = align(*each.normalised(row), parts=parts) if parts else words
            counter.update(pair for pair in pairs if pair.mark)
        times.append(counter)
    total: Counter[Pair] = sum(times, Counter())
    rows = [
        {
            "mark": pair.mark,
            "reference": pair.reference,
            "hypothesis": pair.hypothesis,
            "times": [counter[pair] for counter in times],
        }
        for pair, _ in total.most_common(MOST_EDITS)
    ]
    return {"rows": rows, "left_out": len(total) - len(rows)}


def confidence(of: System) -> dict[str, Any] | None:
    """Returns the `confidence_report` of a system's words, with the `bins` of `reliability`; None without confidences.

    Words have a confidence if lines have `words` with `text` and `confidence`.
    """
    confidences, is_right = list[float](), list[bool]()
    for utterance, row in zip(of.recognised, of.rows, strict=True):
        words = [(word, value) for word, value in words_of(row) if value is not None]
        judged = judged_words(words, utterance.reference, of.normaliser)
        confidences += judged[0]
        is_right += judged[1]
    if not confidences:
        return None
    values, right = np.clip(np.array(confidences, np.float64), 0, 1), np.array(is_right, bool)
    return confidence_report(values, right) | {"bins": reliability(values, right)}


def words_of(row: Mapping[str, Any]) -> list[tuple[str, float | None]]:
    """Returns text and confidence of the recognised words of a line."""
    return [(word["text"], number(word.get("confidence"))) for word in row.get("words") or ()]


def number(value: Any) -> float | None:
    """Returns a finite number of a line as a float; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def utterance_rates(of: System) -> Float[np.ndarray, " N"]:
    """Returns the word errors per reference word of each utterance; NaN without reference words."""
    return np.where(of.words > 0, of.errors / np.maximum(of.words, 1), np.nan)


def measure(systems: Sequence[System]) -> Literal["wer", "cer"]:
    """Returns the rate by which the systems are judged: `wer` or `cer`."""
    return rate_of(each.reference for each in systems[0].recognised)


def worst(systems: Sequence[System], most: int) -> list[int]:
    """Returns the rows with the most word errors of all systems together, the most first, without those with none."""
    errors = np.sum([each.errors for each in systems], axis=0)
    return [row for row in np.argsort(-errors, kind="stable")[:most].tolist() if errors[row]]

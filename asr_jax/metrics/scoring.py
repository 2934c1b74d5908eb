"""Results of a set: word and character errors of all utterances and by source, speaker and length, with intervals."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from asr_jax.metrics.bootstrap import Bootstrap, percentiles, rates, resampled, resampling_units, sums_by
from asr_jax.metrics.errors import EDITS, TOKEN_EDITS, Alignment, ErrorCounts, count_errors, count_token_errors
from asr_jax.metrics.measure import rate_of
from asr_jax.text.normalise import normalise

COUNTS = (*EDITS, *TOKEN_EDITS, "utterances", "utterances_with_errors", "empty_references", "empty_hypotheses")
"""Counts of each utterance, which are summed over groups. A text without words is empty."""

LENGTHS_S = (2, 5, 10, 20, 30)
"""Boundaries of the classes of length in seconds of audio. An utterance of exactly 2 s is in the second class."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """Reference and hypothesis of an utterance."""

    id: str
    reference: str
    hypothesis: str
    source: str = ""
    speaker: str = ""
    duration_s: float = math.nan
    """Duration of the audio in seconds; NaN if unknown."""
    set: str = ""
    """Name of the set; needed if the ids of several sets may be equal."""
    reference_tokens: Sequence[int] = ()
    """Label ids of the reference; -1 for parts that have none. Empty: token errors are not counted."""
    hypothesis_tokens: Sequence[int] = ()
    """Label ids of the hypothesis."""


def score(
    recognised: Sequence[Recognised],
    *,
    normaliser: str,
    bootstrap: Bootstrap | None = None,
    alignment: Alignment = "fewest_edits",
) -> dict[str, Any]:
    """Computes the rates and counts of a set.

    Args:
        normaliser: Name of the normaliser for references and hypotheses.
        bootstrap: Settings of the intervals. None: the defaults.

    Returns:
        A JSON object:

        - `wer`, `cer`, `ter` (token error rate), `mer` (match error rate), `wil` (word information lost) and `COUNTS`,
          for the set and for each row of `by_source`, `by_speaker` and `by_length`. `wer` and `cer` are None without
          reference words, and `ter` without tokens. Groups without a name have the key `""`.
        - `measure`: the rate by which the set is judged, `wer` or `cer` (`measure.rate_of`).
        - `normaliser` and `alignment`.
        - `wer_interval`, `cer_interval`: lower and upper bound; None with fewer than two units.
        - `bootstrap`: its settings, a description of the units (`over`) and their number (`units`).
        - `empty_reference_ids`, `empty_hypothesis_ids`.

    Raises:
        UserError: If the normaliser is unknown.
    """
    counts = count_utterances(recognised, normaliser=normaliser, alignment=alignment)
    empty = {what: counts[:, COUNTS.index(what)].nonzero()[0].tolist() for what in COUNTS[-2:]}
    durations_s = np.array([utterance.duration_s for utterance in recognised], np.float64)
    by_length = _by(length_classes(durations_s).tolist(), counts)
    return {
        **rates_of(counts, [utterance.speaker for utterance in recognised], bootstrap),
        "measure": rate_of(utterance.reference for utterance in recognised),
        "normaliser": normaliser,
        "alignment": alignment,
        "empty_reference_ids": [recognised[row].id for row in empty["empty_references"]],
        "empty_hypothesis_ids": [recognised[row].id for row in empty["empty_hypotheses"]],
        "by_source": _by([utterance.source for utterance in recognised], counts),
        "by_speaker": _by([utterance.speaker for utterance in recognised], counts),
        "by_length": {length_name(number): row for number, row in by_length.items()},
    }


def count_utterances(
    recognised: Sequence[Recognised], *, normaliser: str, alignment: Alignment = "fewest_edits"
) -> Int64[np.ndarray, "N 16"]:
    """Returns the `COUNTS` of each utterance after normalising references and hypotheses."""
    tidy = functools.partial(normalise, name=normaliser)
    edits = count_errors(
        [tidy(utterance.reference) for utterance in recognised],
        [tidy(utterance.hypothesis) for utterance in recognised],
        alignment=alignment,
    )
    substitutions, deletions, insertions, words = edits.T[:4]
    errors = substitutions + deletions + insertions
    is_empty = (words == 0, words - deletions + insertions == 0)
    tokens = count_token_errors(
        [utterance.reference_tokens for utterance in recognised],
        [utterance.hypothesis_tokens for utterance in recognised],
    )
    return np.column_stack((edits, tokens, np.ones_like(words), errors > 0, *is_empty))


def rates_of(
    counts: Int64[np.ndarray, "N 16"], speakers: Sequence[str], bootstrap: Bootstrap | None = None
) -> dict[str, Any]:
    """Returns the rates, sums, intervals and `bootstrap` of `score` for utterances that are counted already.

    Args:
        counts: Rows of `count_utterances`.
        bootstrap: Settings of the intervals. None: the defaults.
    """
    return _row(counts.sum(axis=0)) | _intervals(counts, speakers, bootstrap or Bootstrap())


def length_classes(durations_s: Float64[np.ndarray, " N"]) -> Int64[np.ndarray, " N"]:
    """Returns the number of the class of `LENGTHS_S` of each duration in seconds; -1 if it is NaN."""
    return np.where(np.isnan(durations_s), -1, np.searchsorted(LENGTHS_S, durations_s, side="right"))


def _row(sums: Int64[np.ndarray, " 16"]) -> dict[str, Any]:
    counts = dict(zip(COUNTS, sums.tolist(), strict=True))
    words, characters, tokens = (
        ErrorCounts(*(counts[name] for name in names)) for names in (EDITS[:4], EDITS[4:], TOKEN_EDITS)
    )
    return {
        "wer": words.rate if words.words else None,
        "cer": characters.rate if characters.words else None,
        "ter": tokens.rate if tokens.words else None,
        "mer": words.match_error_rate,
        "wil": words.information_lost,
        **counts,
    }


def _by(keys: Iterable[Any], counts: Int64[np.ndarray, "N 16"]) -> dict[Any, dict[str, Any]]:
    """Returns a row of figures for each key, sorted by key."""
    numbers: dict[Any, int] = {}
    groups = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    sums = sums_by(groups, counts)
    return {key: _row(sums[numbers[key]]) for key in sorted(numbers)}


def group_name(by: str, key: str) -> str:
    """Returns the name of a group for people and for other programs, such as `no source` for a key that is empty.

    Args:
        by: What groups the utterances: `source`, `speaker` or another one.
    """
    return key or f"no {by}"


def length_name(number: int) -> str:
    """Returns the name of a class of `length_classes`, such as `2 to 5 s`; empty for -1."""
    if number < 0:
        return ""
    if number in (0, len(LENGTHS_S)):
        return f"under {LENGTHS_S[0]} s" if number == 0 else f"{LENGTHS_S[-1]} s and more"
    return f"{LENGTHS_S[number - 1]} to {LENGTHS_S[number]} s"


def _intervals(counts: Int64[np.ndarray, "N 16"], speakers: Sequence[str], bootstrap: Bootstrap) -> dict[str, Any]:
    units, over = resampling_units(speakers)
    sums = sums_by(units, counts[:, : len(EDITS)])
    found: dict[str, Any] = {"wer_interval": None, "cer_interval": None}
    if len(sums) > 1:
        drawn = resampled(sums, bootstrap)
        for name, (*edits, lengths) in (("wer_interval", drawn.T[:4]), ("cer_interval", drawn.T[4:])):
            found[name] = percentiles(rates(np.sum(edits, axis=0), lengths), bootstrap)
    return found | {"bootstrap": dataclasses.asdict(bootstrap) | {"over": over, "units": len(sums)}}

"""Significance of the difference between two systems: the matched pairs sentence segment word error (MAPSSWE) test.

Sources: Gillick and Cox, "Some statistical issues in the comparison of speech recognition algorithms", ICASSP 1989;
Pallett, Fisher and Fiscus, "Tools for the analysis of benchmark speech recognition tests", ICASSP 1990 (the segments of
NIST's sc_stats). Differs from: sc_stats uses its own alignments; these have the fewest edits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from rapidfuzz.distance import Levenshtein

from asr_jax.text.segmentation import words_of

MIN_CORRECT_WORDS = 2
"""Number of consecutive words, recognised by both systems, that separates two segments (NIST's choice). Errors in
different segments are assumed to be independent."""


@dataclass(frozen=True)
class MatchedPairs:
    """Result of the test on the segments in which at least one system has an error.

    A difference is the number of errors of the second system less that of the first.
    """

    segments: int
    """Number of segments."""
    mean_difference: float | None
    """Mean difference per segment; None if there are no segments."""
    z: float | None
    """Mean difference divided by its standard error; None with fewer than two segments or equal differences."""
    p_value: float | None
    """Two-sided p-value of the null hypothesis that both systems are equally good. The normal approximation needs some
    tens of segments. 1 if all differences are 0; otherwise None if `z` is None."""


def matched_pairs(references: Sequence[str], *, first: Sequence[str], second: Sequence[str]) -> MatchedPairs:
    """Tests whether two systems differ on the same utterances.

    Raises:
        ValueError: If the numbers of texts differ.
    """
    differences = segment_differences(references, first=first, second=second)
    num = len(differences)
    if not differences.any():
        return MatchedPairs(num, 0.0 if num else None, None, 1.0)
    mean = float(differences.mean())
    deviation = float(differences.std(ddof=1)) if num > 1 else 0.0
    if deviation == 0.0:
        return MatchedPairs(num, mean, None, None)
    z = mean / (deviation / math.sqrt(num))
    return MatchedPairs(num, mean, z, math.erfc(abs(z) / math.sqrt(2)))


def segment_differences(
    references: Sequence[str], *, first: Sequence[str], second: Sequence[str]
) -> Int64[np.ndarray, " S"]:
    """Returns the errors of the second system less those of the first, for each segment with errors.

    A segment ends with the utterance, or before `MIN_CORRECT_WORDS` consecutive words that both systems recognise.
    """
    words = [words_of(reference) for reference in references]
    places = [_places_of_errors(words, hypotheses) for hypotheses in (first, second)]
    all_places = np.concatenate(places)
    order = np.argsort(all_places, kind="stable")
    sorted_places = all_places[order]
    # Words have odd positions, so this is the number of words between neighbouring errors.
    between = sorted_places[1:] // 2 - (sorted_places[:-1] + 1) // 2
    segments = np.concatenate(([0], np.cumsum(between >= MIN_CORRECT_WORDS)))[: len(order)]
    signs = np.repeat((-1, 1), [len(of_system) for of_system in places])[order]
    differences = np.zeros(int(segments.max(initial=-1)) + 1, np.int64)
    np.add.at(differences, segments, signs)
    return differences


def _places_of_errors(references: Sequence[Sequence[str]], hypotheses: Sequence[str]) -> Int64[np.ndarray, " E"]:
    """Returns the position of each error of a system, in a common numbering of all utterances.

    Word w of an utterance has position 2w + 1 from the utterance's start; insertions before it have position 2w. The
    gaps between utterances are so large that no segment spans two of them.
    """
    places: list[int] = []
    beginning = 0
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        edits = Levenshtein.editops(reference, words_of(hypothesis))
        places += [beginning + 2 * edit.src_pos + (edit.tag != "insert") for edit in edits]
        beginning += 2 * (len(reference) + MIN_CORRECT_WORDS)
    return np.array(places, np.int64)

"""Whether two systems differ by more than chance: the matched pairs sentence segment word error test.

Sources: Gillick and Cox, "Some statistical issues in the comparison of speech recognition algorithms", ICASSP 1989;
Pallett, Fisher and Fiscus, "Tools for the analysis of benchmark speech recognition tests", ICASSP 1990 (the segments of
NIST's sc_stats). Differs from: sc_stats, in the alignments alone, which here have the fewest edits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from rapidfuzz.distance import Levenshtein

MIN_CORRECT_WORDS = 2
"""So many words in a row that both systems recognised part two segments (NIST's choice): errors that far apart are
taken to be independent."""


@dataclass(frozen=True)
class MatchedPairs:
    """Errors of the second system less those of the first, over segments in which either erred."""

    segments: int
    mean_difference: float | None
    """Errors per segment; None of no segments."""
    z: float | None
    """Mean over its standard error; None where there are fewer than two segments, or all differ equally."""
    p_value: float | None
    """Two-sided, of the normal approximation, which wants some tens of segments: that systems which are equally good
    differ as much. 1 where nothing differs; None where z is None for another reason."""


def matched_pairs(references: Sequence[str], *, first: Sequence[str], second: Sequence[str]) -> MatchedPairs:
    """The test on two systems' hypotheses of the same utterances, normalised before.

    Raises: ValueError where the numbers of texts differ.
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
    """Errors of the second system less those of the first, of each segment in which either erred.

    Segments end with the utterance, and where `MIN_CORRECT_WORDS` in a row are recognised by both.
    """
    words = [reference.split() for reference in references]
    places = [_places_of_errors(words, hypotheses) for hypotheses in (first, second)]
    all_places = np.concatenate(places)
    order = np.argsort(all_places, kind="stable")
    sorted_places = all_places[order]
    # Words are at odd places, so this is the number of words between neighbouring errors.
    between = sorted_places[1:] // 2 - (sorted_places[:-1] + 1) // 2
    segments = np.concatenate(([0], np.cumsum(between >= MIN_CORRECT_WORDS)))[: len(order)]
    signs = np.repeat((-1, 1), [len(of_system) for of_system in places])[order]
    differences = np.zeros(int(segments.max(initial=-1)) + 1, np.int64)
    np.add.at(differences, segments, signs)
    return differences


def _places_of_errors(references: Sequence[Sequence[str]], hypotheses: Sequence[str]) -> Int64[np.ndarray, " E"]:
    """A place for each error of a system, in one row for all utterances.

    Word w of an utterance is at 2w + 1 from its beginning, words inserted before it are at 2w; utterances lie so far
    apart that no segment reaches over.
    """
    places: list[int] = []
    beginning = 0
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        edits = Levenshtein.editops(reference, hypothesis.split())
        places += [beginning + 2 * edit.src_pos + (edit.tag != "insert") for edit in edits]
        beginning += 2 * (len(reference) + MIN_CORRECT_WORDS)
    return np.array(places, np.int64)

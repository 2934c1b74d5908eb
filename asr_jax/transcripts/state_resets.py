"""State resets: long audio in windows that are decoded on their own and joined by the frames and labels of tokens.

A recurrent model that was trained on short utterances loses accuracy in long ones. Its state is therefore reset for
each window. Source: `evaluate/state_resets` of CAIMAN-ASR at version 1.14.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.transcripts.seams import WindowPart, sequence_of

LOOKAHEAD = 3
"""Number of last tokens of a window that the first tokens of the next one may repeat; as many are looked at."""


@dataclass(frozen=True)
class StateResets:
    """Sizes of the windows. The defaults are CAIMAN-ASR's."""

    window_s: float = 15.0
    """Length of a window in seconds (`--sr_segment`). Audio that is not longer is not divided."""
    overlap_s: float = 3.0
    """Overlap of consecutive windows in seconds (`--sr_overlap`)."""


def joined_by_resets(windows: Iterable[WindowPart]) -> TokenSequence:
    """Joins the tokens of consecutive windows, of which the later ones have the overlap as context alone.

    Tokens of a window that begin in a frame of the window before are dropped. Of its next `LOOKAHEAD` tokens, those are
    dropped that are, in the same order, among the last `LOOKAHEAD` tokens of the window before, since both windows may
    contain a word at the border. The score is the sum of the windows' scores, each multiplied by the share of its
    frames that are used.
    """
    rows, score, end_frame = list[tuple[int, int, int, float]](), 0.0, 0
    before = list[int]()
    for number, window in enumerate(windows):
        found = [row for row in window.rows() if number == 0 or row[1] >= end_frame]
        first = end_frame if number else window.first_frame
        score += window.tokens.score * (window.end_frame - first) / max(window.end_frame - window.first_frame, 1)
        kept = _without_repeats(found, before[-LOOKAHEAD:])
        rows += kept
        before, end_frame = [token for token, *_ in kept], window.end_frame
    return sequence_of(rows, score)


def _without_repeats(found: list[tuple[int, int, int, float]], last: list[int]) -> list[tuple[int, int, int, float]]:
    """Returns the tokens of a window without those of its first ones that repeat the last ones before it."""
    kept = []
    for row in found[:LOOKAHEAD]:
        if row[0] in last:
            last = last[last.index(row[0]) + 1 :]
        else:
            kept.append(row)
    return kept + found[LOOKAHEAD:]

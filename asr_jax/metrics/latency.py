"""Emission latency: how long after a word was spoken the model emits it."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from asr_jax.metrics.errors import right_pairs
from asr_jax.text.normalise import normalise
from asr_jax.text.segmentation import words_of

PERCENTILES = (90, 99)
"""Percentiles of `latency_report` beside the median."""


class TimedWord(NamedTuple):
    """A word with its time in seconds from the start of the recording."""

    text: str
    start_s: float
    """Spoken words: start. Recognised words: start of the frame in which the first label was emitted."""
    end_s: float
    """Spoken words: end. Recognised words: end of the frame in which the last label was emitted."""


class Latency(NamedTuple):
    """Latencies of a word in seconds. Negative: the model emits before the word begins or ends."""

    head_s: float
    """Start of the recognised word less start of the spoken word."""
    tail_s: float
    """End of the recognised word less end of the spoken word."""


def latencies(spoken: Sequence[TimedWord], recognised: Sequence[TimedWord], normaliser: str) -> list[Latency]:
    """Returns the latencies of the words of a recording that are right, by an alignment with the fewest edits.

    Words that the normaliser removes or divides do not count.

    Source: `align_transcripts` of CAIMAN-ASR 1.14.
    Differs from: CAIMAN-ASR, in which words are aligned by the longest common sequences (Python's difflib) and
    normalised to lower-case letters.

    Args:
        recognised: Recognised words in their order.
        normaliser: Name of the normaliser of both texts.
    """
    one, other = (list(_parts(words, normaliser)) for words in (spoken, recognised))
    pairs = right_pairs([text for text, _ in one], [text for text, _ in other]).tolist()
    timed = [(one[place][1], other[at][1]) for place, at in pairs]
    return [Latency(b.start_s - a.start_s, b.end_s - a.end_s) for a, b in timed if a and b]


def num_words(words: Iterable[TimedWord], normaliser: str) -> int:
    """Returns the number of words after normalising."""
    return sum(1 for _ in _parts(words, normaliser))


def latency_report(found: Sequence[Latency], *, frame_s: float) -> dict[str, Any]:
    """Returns the statistics of latencies, in seconds: mean, median, and the `PERCENTILES`. None: no words.

    `emission` is the latency of the ends of words less half a frame, which is the mean delay that frames cause. `head`
    and `tail` are the latencies of the starts and of the ends of words.

    Source: `compute_latency_metrics` of CAIMAN-ASR 1.14, with the same percentiles.

    Args:
        found: Latencies of all words.
        frame_s: Duration in seconds of a frame of the encoder's output.
    """
    heads, tails = [each.head_s for each in found], [each.tail_s for each in found]
    emission = [each - frame_s / 2 for each in tails]
    return {"emission": _statistics(emission), "head": _statistics(heads), "tail": _statistics(tails)}


def _parts(words: Iterable[TimedWord], normaliser: str) -> Iterator[tuple[str, TimedWord | None]]:
    """Yields the words after normalising, each with its time; parts of a divided word have none."""
    for word in words:
        parts = words_of(normalise(word.text, normaliser))
        for part in parts:
            yield part, word if len(parts) == 1 else None


def _statistics(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    percentiles = {f"p{percent}": ordered[int(len(ordered) * percent / 100)] for percent in PERCENTILES}
    return {"mean": statistics.fmean(ordered), "p50": statistics.median(ordered), **percentiles}

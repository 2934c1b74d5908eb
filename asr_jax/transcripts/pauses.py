"""Recordings cut at pauses: which words stay together, and the parts as utterances."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Utterance


def stretches(spans: Sequence[tuple[float, float]], *, least: float, most: float, max_pause: float) -> Iterator[slice]:
    """Neighbouring spans (start and end, in one unit), as many as fit into `most` without a pause beyond `max_pause`.

    Of several cuts behind `least` that at the longest pause is taken, of equal ones the last. A span that is longer
    than `most` is alone.
    """

    def pause(place: int) -> float:
        return spans[place][0] - spans[place - 1][1]

    first = 0
    while first < len(spans):
        begin, end = spans[first][0], first + 1
        while end < len(spans) and spans[end][1] - begin <= most and pause(end) <= max_pause:
            end += 1
        if end < len(spans):
            late = (place for place in range(first + 1, end + 1) if spans[place - 1][1] - begin >= least)
            end = max(late, key=lambda place: (pause(place), place), default=end)
        yield slice(first, end)
        first = end


def part_of(utterance: Utterance, number: int, start_s: float, end_s: float) -> Utterance:
    """A part of a recording, which may be a part itself: without labels, its times to milliseconds, rounded down so
    that no part ends after its recording.
    """
    location = Location.parse(utterance.location)
    start_ms, end_ms = int(start_s * 1000), int(end_s * 1000)
    length_s = (end_ms - start_ms) / 1000
    begin_s = round(location.start_s + start_ms / 1000, 6)
    part = replace(location, start_s=begin_s, length_s=length_s, may_overshoot=False)
    return replace(utterance, id=f"{utterance.id}-{number:05}", location=str(part), duration_s=length_s, labels=None)

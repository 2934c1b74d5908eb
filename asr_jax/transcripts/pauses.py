"""Cutting of recordings at pauses: groups of consecutive words, and parts of recordings as utterances."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Utterance


def stretches(spans: Sequence[tuple[float, float]], *, least: float, most: float, max_pause: float) -> Iterator[slice]:
    """Groups consecutive spans: as many as fit into `most` without a pause above `max_pause`.

    If a group has to end because of `most`, it ends at its longest pause after `least`, or at the last of equal ones.
    A span longer than `most` is a group of its own.

    Args:
        spans: Start and end of each span. All arguments have the same unit.
        least: Length of a group before which it is not cut, if possible.
        most: Largest length of a group.
        max_pause: Largest pause within a group.

    Yields:
        The slice of each group.
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
    """Returns a part of a recording, without labels. The recording may be a part of an audio file itself.

    Times are rounded down to milliseconds, because no part may end after its recording.

    Args:
        start_s: Start in seconds from the start of the recording.
        end_s: End in seconds from the start of the recording.
    """
    location = Location.parse(utterance.location)
    start_ms, end_ms = int(start_s * 1000), int(end_s * 1000)
    length_s = (end_ms - start_ms) / 1000
    begin_s = round(location.start_s + start_ms / 1000, 6)
    part = replace(location, start_s=begin_s, length_s=length_s, may_overshoot=False)
    return replace(utterance, id=f"{utterance.id}-{number:05}", location=str(part), duration_s=length_s, labels=None)

"""Times of words that file formats allow: in order, without overlap, of a positive length, and within the audio."""

import math
from collections.abc import Sequence
from itertools import groupby


def apart(
    spans: Sequence[tuple[float, float]], *, tick_s: float, last_s: float = math.inf
) -> list[tuple[float, float]]:
    """Returns times of consecutive words that are in order and do not overlap. Valid times only change by rounding.

    Decoders can write several words in the same frame: these share its time. Words that begin before the word before
    them begin after it.

    Args:
        spans: Start and end of each word in seconds, in the order of the text. Any numbers are allowed, and those that
            are not finite are ignored.
        tick_s: Unit of the results in seconds, and their smallest length.
        last_s: End of the audio in seconds; NaN or infinity if it is unknown. If the audio is shorter than a tick for
            each word, later words end after it.
    """
    if not spans:
        return []
    num, per_s = len(spans), round(1 / tick_s)
    last = max(round(last_s * per_s), num) if math.isfinite(last_s) else None
    starts, ends = list[int](), list[int]()
    for start_s, end_s in spans:
        before = starts[-1] if starts else 0
        start = max(round(start_s * per_s), before) if math.isfinite(start_s) else before
        starts.append(start if last is None else min(start, last))
        ends.append(max(round(end_s * per_s), starts[-1]) if math.isfinite(end_s) else starts[-1])
    first = 0
    for start, group in groupby(starts.copy()):
        size = len(list(group))
        stop = max(ends[first : first + size])
        stop = min([stop, *starts[first + size : first + size + 1]])
        for place in range(size):
            starts[first + place] = start + (stop - start) * place // size
        first += size
    for place in range(1, num):
        starts[place] = max(starts[place], starts[place - 1] + 1)
    limit = last if last is not None else max(starts[-1] + 1, ends[-1])
    for place in reversed(range(num)):
        starts[place] = min(starts[place], limit - 1)
        ends[place] = min(max(ends[place], starts[place] + 1), limit)
        limit = starts[place]
    return [(start / per_s, end / per_s) for start, end in zip(starts, ends, strict=True)]

"""Limits of the batches of inference, and the few batch shapes within them that are chosen for a set of lengths.

Inference does not use the shapes of training, which have room for the backward pass and for the longest utterance of
the training set, and whose number of rows fits an update.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from asr_jax.data.batching.buckets import TOKEN_MULTIPLE, Bucket, Scale, round_up
from asr_jax.data.batching.edges import least_padding

MAX_SHAPES = 4
"""Maximum number of shapes of a set. A program is compiled for each. On lengths like those of LibriSpeech's test sets,
3 shapes have 34 % of padding, 4 have 27 % and 8 have 14 %."""
PROGRAM_S = 200.0
"""Padding in seconds that a further shape must save. Compiling its program takes as long as a model of 1 M parameters
takes to recognise 1,500 s on the same CPU. The limit is lower, because larger models take longer for the same
audio, and because a compiled program is used again."""
COARSE, FINE = 2, 8
"""Number of row lengths per octave. COARSE is for sets of at most FEW batches, so that small sets share compiled
shapes. FINE is for larger sets, whose padding takes more time than a compilation. A row of at least LEAST_S is at most
1.5 (COARSE) or 1.125 times (FINE) as long as its utterance."""
FEW = 4
"""Maximum number of batches of a set with coarse lengths."""
LEAST_S = 0.5
"""Shortest length of rows in seconds."""
SLACK_S = 0.05
"""Room of a row beyond its length in seconds, because manifests round durations."""
MAX_ROWS = 512
MOST_ROWS = 1.25
"""Maximum number of rows of all batches, as a multiple of the number of utterances, if there are several batches."""


@dataclass(frozen=True)
class BatchLimits:
    """Limits of the batches of inference."""

    seconds: float
    """Maximum padded audio per batch in seconds, over all devices. A batch has at least one row for each device."""
    rows: int = MAX_ROWS
    """Maximum number of rows per batch, over all devices."""
    longest_s: float = math.inf
    """Longest audio in seconds that is computed at once. Longer audio is computed in windows."""
    multiple: int = 1
    """Number that divides the number of rows of a batch, unless the limits allow only fewer rows."""

    def rows_of(self, seconds: float, num: int, *, num_devices: int) -> int:
        """Returns the number of rows of a batch.

        Args:
            num: Number of utterances that have rows of this length.

        Returns:
            As many rows as are within the limits; fewer, a power of two for each device, if there are fewer utterances
            or if the last batch would otherwise be mostly empty.
        """
        most = min(self.rows, int(self.seconds / seconds))
        unit = math.lcm(self.multiple, num_devices)
        unit = unit if unit <= most else num_devices
        needed, most = -(-max(num, 1) // unit), max(most // unit, 1)
        if needed <= most:
            return unit * min(1 << (needed - 1).bit_length(), most)
        powers = (1 << power for power in reversed(range(most.bit_length())))
        return unit * next(n for n in (most, *powers) if -(-needed // n) * n <= MOST_ROWS * needed)


def shapes_of(
    lengths: Int[np.ndarray, " R"], limits: BatchLimits, *, scale: Scale, num_devices: int
) -> tuple[Bucket, ...]:
    """Chooses batch shapes without labels for a set.

    A further shape is chosen if it saves at least a batch and `PROGRAM_S` of padding. Lengths of rows and numbers of
    rows come from a grid that does not depend on the set, so that compiled programs can be used for other sets.

    Args:
        lengths: Length of each utterance that is computed at once, in units of `scale` [R].

    Returns:
        Buckets, shortest first; at least one.
    """
    if not len(lengths):  # all utterances of the set are computed in windows
        lengths = np.array([round(LEAST_S * scale.per_s)])
    is_small = lengths.sum(dtype=np.int64) / scale.per_s <= FEW * limits.seconds
    rounded = _on_grid(lengths, limits, scale, COARSE if is_small else FINE)
    edges = least_padding(rounded, 1)
    for num in range(2, MAX_SHAPES + 1):
        more = least_padding(rounded, num)
        if _padded(rounded, edges) - _padded(rounded, more) < max(limits.seconds, PROGRAM_S) * scale.per_s:
            break
        edges = more
    number_of = np.bincount(np.searchsorted(edges, rounded), minlength=len(edges))
    return tuple(
        bucket_of(int(edge), limits.rows_of(edge / scale.per_s, int(num), num_devices=num_devices), scale)
        for edge, num in zip(edges, number_of, strict=True)
    )


def bucket_of(longest: int, rows: int, scale: Scale) -> Bucket:
    """Returns a bucket without labels, with room for utterances of `longest` units of the scale."""
    return Bucket(round_up(longest + round(SLACK_S * scale.per_s), scale.hop), 0, rows, longest)


def with_labels(
    shapes: tuple[Bucket, ...], lengths: Int[np.ndarray, " R"], num_labels: Int[np.ndarray, " R"]
) -> tuple[Bucket, ...]:
    """Adds room for the labels of R utterances to shapes: numbers of labels of a coarse grid."""
    bucket_of_row = np.searchsorted([shape.longest for shape in shapes], lengths)
    return tuple(
        replace(shape, num_tokens=_token_room(int(num_labels[bucket_of_row == number].max(initial=1))))
        for number, shape in enumerate(shapes)
    )


def _token_room(num: int) -> int:
    power_below = 1 << (num.bit_length() - 1)
    return round_up(num, max(power_below // (2 * COARSE), TOKEN_MULTIPLE))


def _on_grid(lengths: np.ndarray, limits: BatchLimits, scale: Scale, per_octave: int) -> np.ndarray:
    """Lengths rounded up to a grid, at most to the longest audio that is computed at once."""
    seconds = np.maximum(lengths / scale.per_s, LEAST_S)
    step = np.exp2(np.floor(np.log2(seconds))) / per_octave
    rounded = np.rint(np.ceil(seconds / step - 1e-9) * step * scale.per_s).astype(np.int64)
    most = max(min(limits.longest_s * scale.per_s, float(rounded.max())), float(lengths.max()))
    return np.minimum(rounded, math.ceil(most))


def _padded(lengths: np.ndarray, edges: np.ndarray) -> int:
    """Total length of all utterances, each padded to its edge."""
    return int(edges[np.searchsorted(edges, lengths)].sum(dtype=np.int64))

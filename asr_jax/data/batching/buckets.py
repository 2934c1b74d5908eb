"""Buckets: the few static shapes of batches, with the utterances that each has and the rows that it gets."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Int32, UInt

from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.edges import equal_count, equal_duration, least_padding
from asr_jax.data.batching.filters import Violations
from asr_jax.data.batching.pools import Pool, largest

TOKEN_MULTIPLE = 8
SLACK_S = 0.01
"""Room of each bucket beyond its longest utterance in seconds, because manifests round durations."""
MORE_ROWS = 1.1
"""Rows of a part of a batch by duration, as a multiple of the number of utterances of mean length that fill it. The
number varies by the square root of that number times the relative deviation of durations; on LibriSpeech, 1.1 is three
standard deviations above the mean."""
LEAST_UTTERANCES = 3
"""Number of longest utterances that a batch by duration must have room for, so that no batch is empty."""
ANY = int(np.iinfo(np.int32).max)
"""Number of labels of a bucket without a limit."""
METHODS = {"least-padding": least_padding, "equal-duration": equal_duration, "equal-count": equal_count}


@dataclass(frozen=True)
class Scale:
    """Unit of lengths: samples of audio, or frames of ready features."""

    per_s: float
    """Units per second."""
    hop: int
    """Units per frame of the front-end."""
    num_values: int
    """Feature values per frame."""
    of_features: bool = False
    """Whether lengths are counted in frames of ready features."""


@dataclass(frozen=True)
class Bucket:
    """Static shape of a batch.

    Audio is [batch_size, length] or features are [batch_size, length, F]; labels are [batch_size, num_tokens].
    """

    length: int
    """Padded length of a row, in samples of audio or frames of ready features."""
    num_tokens: int
    """Padded number of labels of a row."""
    batch_size: int
    """Rows of a batch over all devices."""
    longest: int
    """Length of the longest entry of this bucket. `length` is slightly larger."""


class Buckets(NamedTuple):
    """Shapes of batches, shortest first, and how batches are composed of utterances of any length."""

    shapes: tuple[Bucket, ...]
    pool: Pool | None = None
    """None: a batch has entries of one bucket."""
    warnings: tuple[str, ...] = ()
    """Messages on batches that exceed the budget."""


@dataclass(frozen=True)
class Entries:
    """Utterances at all speeds.

    An entry is a pair of utterance and speed: all utterances at the first speed, then all at the second, … (E = R ×
    speeds).
    """

    lengths: Int[np.ndarray, " R"]
    """Length of each utterance in units of `scale`."""
    num_labels: Int[np.ndarray, " R"]
    scale: Scale
    speeds: tuple[float, ...] = (1.0,)
    """Playback speeds; 1.1 is faster and shorter."""
    jitter: float = 0.0
    """Largest random change of each speed."""
    is_cropped: Bool[np.ndarray, " R"] | None = None
    """Whether each utterance is a random part of a longer one. None: none is."""

    def played(self) -> Int32[np.ndarray, " E"]:
        """Length of each entry."""
        return perturbed_lengths(self.lengths, self.speeds)

    def longest(self) -> Int32[np.ndarray, " E"]:
        """Length of each entry at its slowest speed. Buckets must have room for it."""
        return perturbed_lengths(self.lengths, [speed - self.jitter for speed in self.speeds])

    def labels(self) -> Int[np.ndarray, " E"]:
        """Number of labels of each entry."""
        return np.tile(self.num_labels, len(self.speeds))


def round_up[N: (int, np.ndarray)](number: N, multiple: int) -> N:
    """The number, or each, rounded up to a multiple."""
    return -(-number // multiple) * multiple


def perturbed_lengths(lengths: Int[np.ndarray, " R"], speeds: Sequence[float]) -> Int32[np.ndarray, " E"]:
    """Lengths at the first speed, then all at the second, … (E = R × speeds)."""
    at_speed = (lengths if speed == 1 else np.rint(lengths / speed) for speed in speeds)
    return np.concatenate([each.astype(np.int32) for each in at_speed])


FitRows = Callable[..., Sequence[int]]
"""Function that returns the most rows of each bucket, over all devices, whose compiled step fits a memory budget, as
`training.memory_fit.MemoryFit`. The `batch_size` of a bucket is the most that is useful."""


def make_buckets(
    entries: Entries,
    batching: Batching,
    *,
    devices: int = 1,
    row_parts: int = 1,
    seed: int = 0,
    weights: Float[np.ndarray, " R"] | None = None,
    fit_rows: FitRows | None = None,
) -> Buckets:
    """Chooses the shapes of batches. Each has room for every entry of its bucket.

    Args:
        entries: Utterances that fit a bucket, without those that `unfit` returns.
        row_parts: Number that must divide the rows of a batch, as in `models.base.Model`.
        seed: Seed of the epoch from which the shapes of batches of any length are chosen.
        weights: Mean number of times that an epoch contains each utterance [R]. None: once.

    Raises:
        UserError: If there are no entries, or if rows or seconds do not fit them.
    """
    if not len(entries.lengths):
        raise UserError("no utterances to plan: the manifests are empty or every utterance was rejected")
    parts = batching.num_parts(devices)
    unit = math.lcm(batching.row_multiple, parts, row_parts)
    if batching.any_length:
        return _any_length(entries, batching, parts=parts, row_parts=row_parts, seed=seed)
    times = None if weights is None else np.tile(weights, len(entries.speeds))
    shapes, warnings = list[Bucket](), list[str]()
    for k, bucket, lengths, of_epoch in _divided(entries, batching, times):
        useful = round_up(max(round(float(of_epoch.sum())), 1), unit)  # more rows would never be filled
        if batching.rows:
            rows = batching.rows[k if len(batching.rows) > 1 else 0] * parts
            _check_whole(rows, row_parts)
        elif batching.fits_memory:
            rows = useful
        else:
            most = parts * _within_budget(bucket, lengths, of_epoch, batching, entries.scale)
            if most < unit:
                warnings.append(
                    f"batches of {bucket.length / entries.scale.per_s:.2f} s exceed the budget ({batching.budget:g} "
                    f"{batching.unit}): they have {unit} rows (data.batching.row_multiple), but only {most} would fit; "
                    "raise data.batching.budget, or lower data.batching.row_multiple or data.filters.max_duration_s"
                )
            rows = min(max(most // unit * unit, unit), useful)
            if batching.devices is None:  # spread evenly over the same number of batches
                rows = round_up(-(-useful // -(-useful // rows)), unit)
        shapes.append(replace(bucket, batch_size=rows))
    if batching.fits_memory:
        if fit_rows is None:
            raise UserError("data.batching.unit memory-gb needs the model, which this command does not build")
        fitted = fit_rows(shapes, scale=entries.scale, unit=unit, devices=parts)
        shapes = [replace(bucket, batch_size=rows) for bucket, rows in zip(shapes, fitted, strict=True)]
    if not batching.random_epochs:
        return Buckets(tuple(shapes), None, tuple(warnings))
    shapes[-1] = replace(shapes[-1], num_tokens=max(bucket.num_tokens for bucket in shapes))  # it has room for all
    return Buckets(tuple(shapes), Pool(parts, batching.rows[0], until=batching.random_epochs))


def unfit(entries: Entries, batching: Batching) -> list[Violations]:
    """Utterances with an entry that fits no bucket. None without given edges."""
    edges, limits = _given(batching, entries.scale)
    num, per_s = len(entries.lengths), entries.scale.per_s
    if not len(edges) or not num:
        return []
    lengths, num_labels = entries.longest(), entries.num_labels
    fits = (first_fit(lengths, entries.labels(), edges, limits) < len(edges)).reshape(-1, num).all(axis=0)
    longest = lengths.reshape(-1, num).max(axis=0)
    is_long = longest > edges[-1]
    long, others = np.flatnonzero(~fits & is_long), np.flatnonzero(~fits & ~is_long)
    # The most labels of the buckets that are long enough depend on the duration.
    most = np.array([limits[edges >= length].max() for length in longest[others]])
    found = [Violations("longer than the last bucket", long, longest[long] / per_s, float(edges[-1] / per_s))]
    for limit in np.unique(most):
        at = others[most == limit]
        reason = "more labels than the buckets for its duration"
        found.append(Violations(reason, at, num_labels[at].astype(np.float64), float(limit)))
    return [each for each in found if len(each.places)]


def first_fit(
    lengths: Int[np.ndarray, " E"],
    num_labels: Int[np.ndarray, " E"],
    longest: Int[np.ndarray, " K"],
    num_tokens: Int[np.ndarray, " K"],
) -> UInt[np.ndarray, " E"]:
    """Number of the first of K buckets that has room for each of E entries, by length and labels; K if none has."""
    if (np.diff(longest) >= 0).all() and (np.diff(num_tokens) >= 0).all():  # a later bucket fits whatever one fits
        return np.maximum(first_at_least(longest, lengths), first_at_least(num_tokens, num_labels))
    bucket_of = np.full(len(lengths), len(longest), np.min_scalar_type(len(longest)))
    for k in reversed(range(len(longest))):
        np.copyto(bucket_of, k, where=(lengths <= longest[k]) & (num_labels <= num_tokens[k]))
    return bucket_of


def first_at_least(edges: Int[np.ndarray, " K"], values: Int[np.ndarray, " E"]) -> UInt[np.ndarray, " E"]:
    """Number of the first of the ascending edges that is at least each value; K if none is. As `np.searchsorted`."""
    kind = np.min_scalar_type(len(edges))
    if not len(values) or values.min() < 0 or values.max() > len(values):
        return np.searchsorted(edges, values).astype(kind)
    return np.searchsorted(edges, np.arange(int(values.max()) + 1)).astype(kind)[values]  # faster for many values


def room_of(buckets: Sequence[Bucket]) -> tuple[Int[np.ndarray, " K"], Int[np.ndarray, " K"]]:
    """Longest length and largest number of labels of each bucket, for `first_fit`."""
    return np.array([each.longest for each in buckets]), np.array([each.num_tokens for each in buckets])


def assign(
    lengths: Int[np.ndarray, " E"], num_labels: Int[np.ndarray, " E"], buckets: Sequence[Bucket]
) -> Int32[np.ndarray, " E"]:
    """Index of the first bucket that each entry fits by length and number of labels.

    Raises:
        ValueError: If an entry fits no bucket.
    """
    bucket_of = first_fit(lengths, num_labels, *room_of(buckets))
    if (bucket_of == len(buckets)).any():
        entry = int(np.argmax(bucket_of))
        raise ValueError(f"entry {entry} with {lengths[entry]} samples and {num_labels[entry]} labels fits no bucket")
    return bucket_of.astype(np.int32)


def largest_first(buckets: Sequence[Bucket]) -> list[int]:
    """Bucket indices in the order of compilation, largest batches first: a batch that exceeds memory fails at once."""

    def size(number: int) -> tuple[int, int]:
        bucket = buckets[number]
        return bucket.length * bucket.batch_size, bucket.num_tokens

    return sorted(range(len(buckets)), key=size, reverse=True)


def _given(batching: Batching, scale: Scale) -> tuple[Int[np.ndarray, " K"], Int[np.ndarray, " K"]]:
    """Longest length and largest number of labels of each given bucket."""
    edges = np.rint(np.array(batching.edges_s) * scale.per_s).astype(np.int64)
    return edges, np.array(batching.edges_labels or [ANY] * len(edges), np.int64)


def _divided(
    entries: Entries, batching: Batching, times: np.ndarray | None
) -> Iterator[tuple[int, Bucket, np.ndarray, np.ndarray]]:
    """Yields the buckets that have entries.

    Each has the number of its edge, its shape without rows, the lengths of its entries, and the mean number of times
    that an epoch contains each entry.
    """
    lengths, labels, scale = entries.longest(), entries.labels(), entries.scale
    edges, limits = _given(batching, scale)
    if not len(edges):
        edges = METHODS[batching.edges](lengths, batching.num_buckets, times)
        limits = np.full(len(edges), ANY)
    least = TOKEN_MULTIPLE if labels.any() else 0  # training on audio alone has no labels
    # Entries in the order of their buckets: a bucket is then a slice instead of a mask of all entries.
    bucket_of = first_fit(lengths, labels, edges, limits)
    order, numbers = np.argsort(bucket_of, kind="stable"), np.bincount(bucket_of)
    lengths, labels = lengths[order], labels[order]
    times = np.broadcast_to(1.0, len(order)) if times is None else times[order]
    starts = np.cumsum(numbers) - numbers
    for k in np.flatnonzero(numbers).tolist():
        of = slice(starts[k], starts[k] + numbers[k])
        shape = Bucket(_padded(int(edges[k]), scale), int(limits[k]), 0, int(edges[k]))
        if limits[k] != ANY:
            yield k, shape, lengths[of], times[of]
            continue
        rounded = np.maximum(round_up(labels[of], TOKEN_MULTIPLE), least)
        rooms = least_padding(rounded, batching.num_by_labels, times[of])
        part_of = np.searchsorted(rooms, rounded)
        for part, num_tokens in enumerate(rooms.tolist()):
            chosen = part_of == part if len(rooms) > 1 else slice(None)
            yield k, replace(shape, num_tokens=num_tokens), lengths[of][chosen], times[of][chosen]


def _within_budget(bucket: Bucket, lengths: np.ndarray, times: np.ndarray, batching: Batching, scale: Scale) -> int:
    """Number of rows of these entries that the budget fits."""
    mean = max(float(np.average(lengths, weights=times)), 1.0)
    # A budget of each device is compared with the given edge, which is a round number of seconds.
    padded = bucket.length if batching.devices is None else bucket.longest
    fitting = (
        batching.budget
        * {
            "utterances": 1.0,
            "seconds": scale.per_s / mean,
            "padded-seconds": scale.per_s / padded,
            "frames": scale.hop / mean,
            "padded-frames": scale.hop / padded,
            "feature-values": scale.hop / padded / scale.num_values,
        }[batching.unit]
    )
    return min(int(fitting), batching.max_rows or int(fitting))


def _any_length(entries: Entries, batching: Batching, *, parts: int, row_parts: int, seed: int) -> Buckets:
    """Shapes of batches of any length, chosen from the longest utterance of each batch of a simulated epoch."""
    lengths, num_labels, scale = entries.longest(), entries.labels(), entries.scale
    longest, limit, rows = int(lengths.max()), 0, (*batching.rows, 0)[0]
    if batching.by_duration:
        limit = int(batching.budget * scale.per_s)
        if limit < LEAST_UTTERANCES * longest:
            raise UserError(
                f"data.batching.budget is {batching.budget:g} seconds, and the longest utterance takes "
                f"{longest / scale.per_s:.2f} s: expected at least {LEAST_UTTERANCES} times as much, or a lower "
                "data.filters.max_duration_s"
            )
        rows = rows or round_up(math.ceil(MORE_ROWS * limit / float(lengths.mean(dtype=np.float64))), row_parts)
    _check_whole(rows * parts, row_parts)
    pool = Pool(parts, rows, limit, longest)
    order = np.random.default_rng(seed).permutation(len(lengths)).astype(np.int32)
    num_batches = pool.num_batches(lengths)
    batches = pool.fill(order, lengths[order], num_batches).reshape(num_batches, -1)
    longest_of, most_labels = largest(batches, lengths), largest(batches, num_labels)
    edges = least_padding(longest_of, batching.num_buckets)
    edges[-1] = longest
    shape_of = np.searchsorted(edges, longest_of)
    labels = np.array([most_labels[shape_of == k].max(initial=0) for k in range(len(edges))])
    labels[-1] = num_labels.max()
    labels = round_up(np.maximum.accumulate(labels), TOKEN_MULTIPLE)
    shapes = (
        Bucket(_padded(edge, scale), num_tokens, pool.batch_rows, edge)
        for edge, num_tokens in zip(edges.tolist(), labels.tolist(), strict=True)
    )
    return Buckets(tuple(shapes), pool)


def _padded(longest: int, scale: Scale) -> int:
    """Length of rows with slack, a whole number of front-end hops."""
    return round_up(longest + int(SLACK_S * scale.per_s), scale.hop)


def _check_whole(rows: int, row_parts: int) -> None:
    if rows % row_parts:
        raise UserError(
            f"a batch has {counted(rows, 'row')} over all devices (data.batching.rows), and the model splits batches "
            f"into {row_parts} parts (model.sub_batches, model.heads.*.split): expected a multiple of {row_parts}"
        )

"""Buckets of the sampling modes: their shapes, rows and, for utterances of any length, the composition of batches."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.data.batching.buckets import TOKEN_MULTIPLE, Bucket, Scale, perturbed_lengths
from asr_jax.data.batching.edges import equal_count, equal_duration, least_padding
from asr_jax.data.batching.filters import Violations
from asr_jax.data.batching.pools import Pool, largest
from asr_jax.data.batching.sampling import NUM_BY_LABELS, NUM_SHAPES, Sampling

MORE_ROWS = 1.1
"""Rows of a part in mode duration, as a multiple of the number of utterances of mean length that fill it. The number
varies by the square root of that number times the relative deviation of durations; on LibriSpeech, 1.1 is three
standard deviations above the mean."""
LEAST_UTTERANCES = 3
"""Number of longest utterances that `device_seconds` of mode duration must have room for, so that no batch is empty."""
ANY = np.iinfo(np.int32).max
"""Number of labels of a bin without a limit."""


@runtime_checkable
class FitRows(Protocol):
    """Function that returns the largest number of rows of each bucket whose compiled step fits a memory budget."""

    def __call__(self, buckets: Sequence[Bucket], *, scale: Scale, unit: int, devices: int) -> Sequence[int]:
        """Returns rows over all devices.

        Args:
            buckets: Buckets. Their `batch_size` is the most that is useful: more rows would never be filled.
            scale: Unit of lengths.
            unit: Divisor of the rows.
            devices: Number of devices that rows are for.
        """


class Sampled(NamedTuple):
    """Shapes of a mode's batches and, for utterances of any length, their composition."""

    buckets: tuple[Bucket, ...]
    pool: Pool | None


class Entries(NamedTuple):
    """Lengths at the slowest speeds, in units of `scale`, and labels of all entries [E]."""

    lengths: np.ndarray
    num_labels: np.ndarray
    scale: Scale


def entries_of(
    lengths: Int[np.ndarray, " R"], num_labels: Int[np.ndarray, " R"], scale: Scale, speeds: Sequence[float]
) -> Entries:
    """Entries of utterances at several speeds.

    Args:
        lengths: Length of each utterance [R].
        num_labels: Number of labels of each utterance [R].
        scale: Unit of lengths.
        speeds: Playback speeds; with jitter, the result of `buckets.slowest`.
    """
    return Entries(perturbed_lengths(lengths, speeds), np.tile(num_labels, len(speeds)), scale)


def unfit(entries: Entries, settings: Sampling, num_utterances: int) -> list[Violations]:
    """Utterances with an entry that fits no bin of the settings. None without given bins.

    Args:
        entries: Entries of all utterances.
        num_utterances: Number of utterances R.
    """
    bins = _given_bins(entries, settings)
    if not bins or not num_utterances:
        return []
    fits = (_first_bin(entries, bins) >= 0).reshape(-1, num_utterances).all(axis=0)
    longest = entries.lengths.reshape(-1, num_utterances).max(axis=0)
    is_long, per_s = longest > bins[-1][0], entries.scale.per_s
    long, others = np.flatnonzero(~fits & is_long), np.flatnonzero(~fits & ~is_long)
    num_labels = entries.num_labels[others].astype(np.float64)
    # The most labels of the bins that are long enough depend on the duration.
    limits = np.array([max(labels for edge, labels in bins if edge >= length) for length in longest[others]])
    found = [Violations("longer than the last bucket", long, longest[long] / per_s, bins[-1][0] / per_s)]
    for limit in np.unique(limits):
        at = limits == limit
        reason = "more labels than the buckets for its duration"
        found.append(Violations(reason, others[at], num_labels[at], float(limit)))
    return [each for each in found if len(each.places)]


def sampled_buckets(
    entries: Entries,
    settings: Sampling,
    *,
    devices: int,
    slack_s: float = 0.0,
    row_parts: int = 1,
    seed: int = 0,
    fit_rows: FitRows | None = None,
) -> Sampled:
    """Chooses the buckets of a mode other than planned.

    Args:
        entries: Entries of the utterances that fit, without those that `unfit` returns.
        devices: Number of devices that rows are for.
        slack_s: Room of each bucket beyond its longest utterance in seconds, as in `Buckets`.
        row_parts: Number that must divide the rows of a batch, as in `models.base.Model`.
        seed: Seed of the epoch from which the shapes of batches of any length are chosen.
        fit_rows: Fits rows to a memory budget, for `memory_gb`.

    Raises:
        UserError: If there are no entries, or if rows or seconds do not fit them.
    """
    if not len(entries.lengths):
        raise UserError("no utterances to plan: the manifests are empty or every utterance was rejected")
    if settings.is_pooled:
        return _pooled(entries, settings, devices=devices, slack_s=slack_s, row_parts=row_parts, seed=seed)
    bins = _given_bins(entries, settings) or _estimated_bins(entries, settings)
    bin_of = _first_bin(entries, bins)
    numbers = np.bincount(bin_of, minlength=len(bins))
    there, unit = np.flatnonzero(numbers).tolist(), math.lcm(devices, row_parts)
    buckets = [
        _bucket(entries, bins[k][0], _tokens(entries, bins[k][1], bin_of == k), _up(int(numbers[k]), unit), slack_s)
        for k in there
    ]
    if settings.memory_gb:
        if fit_rows is None:
            raise UserError("data.sampling.memory_gb needs the model, which this command does not build: expected 0")
        rows = list(fit_rows(buckets, scale=entries.scale, unit=unit, devices=devices))
    elif settings.device_seconds:
        rows = _rows_within(buckets, settings, entries.scale, devices=devices, unit=unit)
    else:
        given = dict(zip(settings.bins, settings.bin_rows, strict=True)) if settings.bin_rows else {}
        ordered = [given[each] for each in sorted(given)]
        each = [ordered[k] if ordered else settings.device_rows for k in there]
        _check_whole(each, devices, row_parts)
        rows = [number * devices for number in each]
    found = [replace(bucket, batch_size=size) for bucket, size in zip(buckets, rows, strict=True)]
    if not settings.random_epochs:
        return Sampled(tuple(found), None)
    found[-1] = replace(found[-1], num_tokens=max(bucket.num_tokens for bucket in found))  # it has room for all
    return Sampled(tuple(found), Pool(devices, settings.device_rows, until=settings.random_epochs))


def _given_bins(entries: Entries, settings: Sampling) -> list[tuple[int, int]]:
    """Longest length and most labels of each bin of the settings, smallest first; empty without given bins."""
    bins = [(seconds, labels) for seconds, labels in settings.bins] or [(edge, ANY) for edge in settings.edges_s]
    return sorted((round(seconds * entries.scale.per_s), labels) for seconds, labels in bins)


def _estimated_bins(entries: Entries, settings: Sampling) -> list[tuple[int, int]]:
    """Bins with `num_buckets` lengths; in the 2D modes, each is divided by labels as well."""
    method = equal_count if settings.mode == "fixed" else equal_duration
    edges = method(entries.lengths, settings.num_buckets)
    if not settings.mode.startswith("2D"):
        return [(int(edge), ANY) for edge in edges]
    bucket_of, bins = np.searchsorted(edges, entries.lengths), []
    for k, edge in enumerate(edges):
        rounded = _round_up_tokens(entries.num_labels[bucket_of == k])
        bins += [(int(edge), int(labels)) for labels in least_padding(rounded, NUM_BY_LABELS)]
    return bins


def _first_bin(entries: Entries, bins: Sequence[tuple[int, int]]) -> np.ndarray:
    """Index of the first bin that each entry fits; -1 without one."""
    bin_of = np.full(len(entries.lengths), -1, np.int32)
    for k in reversed(range(len(bins))):
        bin_of[(entries.lengths <= bins[k][0]) & (entries.num_labels <= bins[k][1])] = k
    return bin_of


def _rows_within(buckets: Sequence[Bucket], settings: Sampling, scale: Scale, *, devices: int, unit: int) -> list[int]:
    """Rows of each bucket within `device_seconds`, over all devices; `batch_size` of the buckets is the most useful."""
    limit, longest = settings.device_seconds * scale.per_s, buckets[-1].longest
    if longest * (unit // devices) > limit:
        raise UserError(
            f"data.sampling.device_seconds is {settings.device_seconds:g}, and a bucket has utterances of "
            f"{longest / scale.per_s:.2f} s: expected at least {longest * (unit // devices) / scale.per_s:.2f}"
        )
    each = [int(limit // bucket.longest) * devices for bucket in buckets]
    return [min(rows // unit * unit, bucket.batch_size) for rows, bucket in zip(each, buckets, strict=True)]


def _pooled(
    entries: Entries, settings: Sampling, *, devices: int, slack_s: float, row_parts: int, seed: int
) -> Sampled:
    """Shapes of batches of any length, chosen from the longest utterance of each batch of a simulated epoch."""
    rows, limit, longest = settings.device_rows, 0, int(entries.lengths.max())
    if settings.mode == "duration":
        limit = int(settings.device_seconds * entries.scale.per_s)
        if limit < LEAST_UTTERANCES * longest:
            raise UserError(
                f"data.sampling.device_seconds is {settings.device_seconds:g}, and the longest utterance takes "
                f"{longest / entries.scale.per_s:.2f} s: expected at least {LEAST_UTTERANCES} times as much, or a "
                "lower data.filters.max_duration_s"
            )
        mean = float(entries.lengths.mean(dtype=np.float64))
        rows = rows or _up(math.ceil(MORE_ROWS * limit / mean), row_parts)
    _check_whole([rows], devices, row_parts)
    pool = Pool(devices, rows, limit, longest)
    order = np.random.default_rng(seed).permutation(len(entries.lengths)).astype(np.int32)
    num_batches = pool.num_batches(entries.lengths)
    batches = pool.fill(order, entries.lengths[order], num_batches).reshape(num_batches, -1)
    longest_of, most_labels = largest(batches, entries.lengths), largest(batches, entries.num_labels)
    edges = least_padding(longest_of, settings.num_shapes or NUM_SHAPES)
    edges[-1] = entries.lengths.max()
    shape_of = np.searchsorted(edges, longest_of)
    labels = np.array([most_labels[shape_of == k].max(initial=0) for k in range(len(edges))])
    labels[-1] = entries.num_labels.max()
    tokens = _round_up_tokens(np.maximum.accumulate(labels)) if entries.num_labels.any() else labels
    buckets = tuple(
        _bucket(entries, int(edge), int(of_shape), pool.batch_rows, slack_s)
        for edge, of_shape in zip(edges, tokens, strict=True)
    )
    return Sampled(buckets, pool)


def _bucket(entries: Entries, longest: int, num_tokens: int, rows: int, slack_s: float) -> Bucket:
    hop = entries.scale.hop
    length = -(-(longest + int(slack_s * entries.scale.per_s)) // hop) * hop
    return Bucket(length, num_tokens, rows, longest)


def _tokens(entries: Entries, limit: int, member: np.ndarray) -> int:
    """Room for labels: the limit of the bin or, without one, as much as its entries need."""
    return limit if limit != ANY else int(_round_up_tokens(entries.num_labels[member]).max())


def _round_up_tokens(num_labels: np.ndarray) -> np.ndarray:
    return -(-num_labels // TOKEN_MULTIPLE) * TOKEN_MULTIPLE


def _up(rows: int, unit: int) -> int:
    return -(-rows // unit) * unit


def _check_whole(rows: Sequence[int], devices: int, row_parts: int) -> None:
    for each in rows:
        if each * devices % row_parts:
            raise UserError(
                f"a batch has {each} rows on each of {counted(devices, 'device')} (data.sampling), and the model "
                f"splits batches into {row_parts} parts (model.sub_batches, model.heads.*.split): expected rows whose "
                f"total is a multiple of {row_parts}"
            )

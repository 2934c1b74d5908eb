"""Buckets: the few static shapes that all batches have, their edges chosen from the data."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, Int32

from asr_jax.core.errors import UserError
from asr_jax.data.batching.edges import equal_count, equal_duration, least_padding

TOKEN_MULTIPLE = 8
logger = logging.getLogger(__name__)

EDGES = {"least-padding": least_padding, "equal-duration": equal_duration, "equal-count": equal_count}
Unit = Literal["samples", "frames", "padded-frames", "feature-values", "values", "duration-ms", "padded-duration-ms"]


@dataclass(frozen=True)
class Buckets:
    """How utterances are grouped by duration into batches of few shapes."""

    num: int = 8
    """Number of buckets by duration; each is compiled once. 8 reach 93 % padding efficiency on LibriSpeech, 12 reach
    95 %."""
    num_by_labels: int = 1
    """Each of them is divided into so many by the number of labels: for transducers, whose cost is their product."""
    edges: Literal["least-padding", "equal-duration", "equal-count"] = "least-padding"
    """Where one bucket ends and the next begins: where padding is least (found by dynamic programming), or with as much
    audio or as many utterances in each."""
    edges_s: tuple[float, ...] = ()
    """Longest duration of each bucket, seconds, rising, instead of `num` and `edges`."""
    batch_seconds: float = 240.0
    """Padded audio per global batch, seconds: a bucket of longer utterances has fewer rows."""
    budget: float = 0.0
    """Of a global batch in another measure, `unit`, instead of `batch_seconds`; 0: none. Both are set together."""
    unit: Unit | Literal[""] = ""
    """samples: utterances. frames, duration-ms: the sum over the batch, in the mean over a bucket's batches.
    padded-frames, padded-duration-ms: with padding. feature-values, or values: padded frames times their values."""
    max_batch: int = 512
    """Most rows of a batch."""
    batch_multiple: int = 8
    """Rows of every batch are a multiple of this, and at least this many; the number of devices must divide it."""
    slack_s: float = 0.01
    """Room in each bucket beyond its longest utterance, seconds: manifests round durations."""
    order: Literal["shuffled", "sorted"] = "shuffled"
    """shuffled: utterances within their bucket, and batches among each other, anew in every epoch. sorted: longest first
    within windows of `sort_buffer` utterances as they stand in the manifests, the same in every epoch."""
    sort_buffer: int = 4096
    """Utterances of a window, where they are sorted."""

    def __post_init__(self) -> None:
        for name in ("num", "num_by_labels", "max_batch", "batch_multiple", "sort_buffer"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 1 or more")
        if not 0 < self.batch_seconds < math.inf:
            raise ValueError(f"batch_seconds {self.batch_seconds}: expected seconds > 0")
        if not 0 <= self.budget < math.inf or bool(self.budget) != bool(self.unit):
            raise ValueError(f"budget {self.budget} and unit {self.unit!r}: expected both, a budget > 0, or neither")
        if self.max_batch < self.batch_multiple:
            raise ValueError(f"max_batch {self.max_batch}: expected at least batch_multiple {self.batch_multiple}")
        if not self.slack_s >= 0:
            raise ValueError(f"slack_s {self.slack_s}: expected seconds ≥ 0")
        if any(low >= high for low, high in zip((0.0, *self.edges_s), self.edges_s, strict=False)):
            raise ValueError(f"edges_s {self.edges_s}: expected rising seconds > 0")


@dataclass(frozen=True)
class Scale:
    """What lengths are counted in: samples of audio, or frames of ready features."""

    per_s: float
    """Units per second."""
    hop: int
    """Units per frame of the front-end."""
    num_values: int
    """Of a frame."""
    of_features: bool = False


@dataclass(frozen=True)
class Bucket:
    """One static shape: audio [batch_size, length] or features [batch_size, length, F], and labels
    [batch_size, num_tokens].
    """

    length: int
    """Room of a row: samples of audio, or frames of ready features."""
    num_tokens: int
    batch_size: int
    """Rows of a global batch."""
    longest: int
    """The longest entry that belongs here; `length` has room for a little more."""


def perturbed_lengths(samples: Int[np.ndarray, " R"], speeds: Sequence[float]) -> Int32[np.ndarray, " E"]:
    """Samples of every entry: all utterances at the first speed, then all at the second … (E = R × speeds)."""
    return np.concatenate([np.rint(samples / speed).astype(np.int32) for speed in speeds])


def slowest(speeds: Sequence[float], jitter: float) -> tuple[float, ...]:
    """Each speed as slow as it gets: what buckets must have room for."""
    return tuple(speed - jitter for speed in speeds)


def make_buckets(
    lengths: Int[np.ndarray, " R"],
    num_labels: Int[np.ndarray, " R"],
    settings: Buckets,
    *,
    scale: Scale,
    speeds: Sequence[float] = (1.0,),
    num_devices: int = 1,
    sub_batches: int = 1,
    shares: Float[np.ndarray, " R"] | None = None,
) -> tuple[Bucket, ...]:
    """The buckets that hold every utterance at every speed, shortest first; each `length` is whole front-end hops.

    `shares`: how often each utterance comes, in the mean of all epochs; None: once in each.

    Where a bucket's last batch would be short, its rows are spread evenly over the same number of batches instead.

    Raises: UserError for no utterances, for edges below the longest utterance, and where `num_devices` or `sub_batches` do
    not divide `batch_multiple`.
    """
    multiple = math.lcm(num_devices, sub_batches)
    if settings.batch_multiple % multiple:
        parts = f" and into {sub_batches} sub-batches (model.sub_batches)" if sub_batches > 1 else ""
        raise UserError(
            f"batch_multiple {settings.batch_multiple} cannot be split over {num_devices} devices{parts}; "
            f"set data.buckets.batch_multiple to a multiple of {multiple}"
        )
    if not len(lengths):
        raise UserError("no utterances to plan: the manifests are empty or every utterance was dropped")
    entries = perturbed_lengths(lengths, speeds)
    labels = np.tile(num_labels, len(speeds))
    least = TOKEN_MULTIPLE if labels.any() else 0  # of audio alone
    weights = np.ones(len(entries)) if shares is None else np.tile(shares, len(speeds))
    edges = _edges(entries, settings, scale, weights)
    bucket_of = np.searchsorted(edges, entries)
    buckets = []
    for k in np.flatnonzero(np.bincount(bucket_of)):
        member = bucket_of == k
        length = _round_up(int(edges[k]) + int(settings.slack_s * scale.per_s), scale.hop)
        for num_tokens, of_labels in _by_labels(labels[member], settings.num_by_labels, weights[member], least):
            rows = _rows(entries[member][of_labels], length, settings, scale, weights[member][of_labels])
            buckets.append(Bucket(length, num_tokens, rows, int(edges[k])))
    return tuple(buckets)


def assign(
    lengths: Int[np.ndarray, " E"], num_labels: Int[np.ndarray, " E"], buckets: Sequence[Bucket]
) -> Int32[np.ndarray, " E"]:
    """The first bucket that each entry fits by samples and labels.

    Raises: ValueError where an entry fits none.
    """
    bucket_of = np.full(len(lengths), -1, np.int32)
    for k in reversed(range(len(buckets))):
        bucket_of[(lengths <= buckets[k].longest) & (num_labels <= buckets[k].num_tokens)] = k
    if (bucket_of < 0).any():
        entry = int(np.argmin(bucket_of))
        raise ValueError(f"entry {entry} with {lengths[entry]} samples and {num_labels[entry]} labels fits no bucket")
    return bucket_of


def largest_first(buckets: Sequence[Bucket]) -> list[int]:
    """Positions of the buckets in the order to compile them: what does not fit in memory shows at once."""
    return sorted(range(len(buckets)), key=lambda k: -buckets[k].length * buckets[k].batch_size)


def _edges(lengths: np.ndarray, settings: Buckets, scale: Scale, weights: np.ndarray) -> np.ndarray:
    """The rising longest lengths of the buckets by duration."""
    if not settings.edges_s:
        return EDGES[settings.edges](lengths, settings.num, weights)
    edges = np.rint(np.array(settings.edges_s) * scale.per_s).astype(np.int64)
    if lengths.max() > edges[-1]:
        raise UserError(
            f"edges_s ends at {settings.edges_s[-1]} s but the longest utterance takes {lengths.max() / scale.per_s:.2f} "
            "s (at its slowest speed); add an edge or lower max_duration_s"
        )
    return edges


def _by_labels(num_labels: np.ndarray, num: int, weights: np.ndarray, least: int) -> list[tuple[int, np.ndarray]]:
    """Room for labels, at least so many, and which entries have it, of each part of a bucket."""
    rounded = np.maximum(-(-num_labels // TOKEN_MULTIPLE) * TOKEN_MULTIPLE, least)
    edges = least_padding(rounded, num, weights)
    part_of = np.searchsorted(edges, rounded)
    return [(int(edge), part_of == part) for part, edge in enumerate(edges)]


def _rows(lengths: np.ndarray, length: int, settings: Buckets, scale: Scale, weights: np.ndarray) -> int:
    """Rows of a batch of these entries."""
    multiple = settings.batch_multiple
    mean = float(np.average(lengths, weights=weights))
    rows = min(int(_budget(settings) / _cost(mean, length, settings, scale)), settings.max_batch)
    if rows < multiple:
        logger.warning(
            "batches of %.2f s are above the budget (%g %s): they have %d rows, the batch_multiple, where %d would fit",
            length / scale.per_s, _budget(settings), settings.unit or "padded-duration-ms", multiple, rows,
        )  # fmt: skip
    rows = max(rows // multiple * multiple, multiple)
    num = max(round(float(weights.sum())), 1)
    num_batches = -(-num // rows)
    return _round_up(-(-num // num_batches), multiple)


def _budget(settings: Buckets) -> float:
    return settings.budget or settings.batch_seconds * 1000


def _cost(mean: float, length: int, settings: Buckets, scale: Scale) -> float:
    """Of one row that holds `mean` of `length`, in the unit of the budget."""
    costs = {
        "samples": 1.0,
        "frames": mean / scale.hop,
        "padded-frames": length / scale.hop,
        "feature-values": length / scale.hop * scale.num_values,
        "values": length / scale.hop * scale.num_values,
        "duration-ms": mean / scale.per_s * 1000,
        "padded-duration-ms": length / scale.per_s * 1000,
    }
    return max(costs[settings.unit or "padded-duration-ms"], 1e-9)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple

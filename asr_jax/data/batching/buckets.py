"""Buckets: the few static shapes of batches, with edges chosen from the data."""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Int32, UInt

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.data.batching.edges import equal_count, equal_duration, least_padding

TOKEN_MULTIPLE = 8
AGAIN = "make it again with python -m asr_jax.plan --target DEVICES --fit OUT.json"
"""Fix of a file of buckets."""
LARGEST = int(np.iinfo(np.int32).max)
"""Largest number in a file of buckets."""
logger = logging.getLogger(__name__)

EDGES = {"least-padding": least_padding, "equal-duration": equal_duration, "equal-count": equal_count}
Unit = Literal["samples", "frames", "padded-frames", "feature-values", "values", "duration-ms", "padded-duration-ms"]


@dataclass(frozen=True)
class Buckets:
    """Grouping of utterances by duration into batches of few static shapes."""

    num: int = 8
    """Number of buckets by duration; a program is compiled for each. On LibriSpeech, 8 buckets reach 93 % padding
    efficiency and 12 reach 95 %."""
    num_by_labels: int = 1
    """Number of parts into which each duration bucket is divided by the number of labels. This is useful for
    transducers, because their cost is the product of frames and labels."""
    edges: Literal["least-padding", "equal-duration", "equal-count"] = "least-padding"
    """Method that chooses the edges between buckets. least-padding: minimises padding by dynamic programming.
    equal-duration: the same amount of audio in each bucket. equal-count: the same number of utterances in each
    bucket."""
    edges_s: tuple[float, ...] = ()
    """Longest duration of each bucket in seconds, in ascending order. Replaces `num` and `edges`."""
    batch_seconds: float = 240.0
    """Padded audio of a batch over all devices in seconds. Buckets of longer utterances have fewer rows."""
    budget: float = 0.0
    """Size of a batch over all devices in the measure `unit`, instead of `batch_seconds`. 0: `batch_seconds` is used.
    `budget` and `unit` are set together."""
    unit: Unit | Literal[""] = ""
    """Measure of `budget`. samples: utterances. frames, duration-ms: sum over the batch without padding, as the mean
    over the batches of a bucket. padded-frames, padded-duration-ms: with padding. feature-values, values: padded frames
    times values per frame."""
    max_batch: int = 512
    """Maximum number of rows per batch."""
    batch_multiple: int = 8
    """Divisor of the number of rows of every batch, and its minimum. If the number of devices does not divide it,
    padding rows are added to each batch."""
    slack_s: float = 0.01
    """Room of each bucket beyond its longest utterance in seconds, because manifests round durations."""
    order: Literal["shuffled", "sorted"] = "shuffled"
    """Order of an epoch. shuffled: utterances within their bucket, then batches, are permuted again in every epoch.
    sorted: longest first within windows of `sort_buffer` utterances in manifest order, the same in every epoch."""
    sort_buffer: int = 4096
    """Window of the sorted order, in utterances."""
    file: str = ""
    """File of `python -m asr_jax.plan --target DEVICES --fit OUT.json` with the shapes of the batches. The other
    settings of shapes are then not used."""

    def __post_init__(self) -> None:
        for name in ("num", "num_by_labels", "max_batch", "batch_multiple", "sort_buffer"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected 1 or more")
        if not 0 < self.batch_seconds < math.inf:
            raise ValueError(f"batch_seconds {self.batch_seconds}: expected seconds > 0")
        if not 0 <= self.budget < math.inf or bool(self.budget) != bool(self.unit):
            raise ValueError(
                f"budget {self.budget} and unit {self.unit!r}: expected a budget > 0 together with a unit, or neither"
            )
        if self.max_batch < self.batch_multiple:
            raise ValueError(f"max_batch {self.max_batch}: expected at least batch_multiple {self.batch_multiple}")
        if not self.slack_s >= 0:
            raise ValueError(f"slack_s {self.slack_s}: expected seconds ≥ 0")
        if any(low >= high for low, high in zip((0.0, *self.edges_s), self.edges_s, strict=False)):
            raise ValueError(f"edges_s {self.edges_s}: expected ascending seconds > 0")


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


def perturbed_lengths(samples: Int[np.ndarray, " R"], speeds: Sequence[float]) -> Int32[np.ndarray, " E"]:
    """Lengths of all entries: all utterances at the first speed, then all at the second, … (E = R × speeds)."""
    at_speed = (samples if speed == 1 else np.rint(samples / speed) for speed in speeds)
    return np.concatenate([lengths.astype(np.int32) for lengths in at_speed])


def slowest(speeds: Sequence[float], jitter: float) -> tuple[float, ...]:
    """Slowest value of each speed with jitter. Buckets must have room for it."""
    return tuple(speed - jitter for speed in speeds)


def make_buckets(
    lengths: Int[np.ndarray, " R"],
    num_labels: Int[np.ndarray, " R"],
    settings: Buckets,
    *,
    scale: Scale,
    speeds: Sequence[float] = (1.0,),
    row_parts: int = 1,
    shares: Float[np.ndarray, " R"] | None = None,
) -> tuple[Bucket, ...]:
    """Chooses buckets that have room for every utterance at every speed.

    If the last batch of a bucket would have few rows, the rows are spread evenly over the same number of batches.

    Args:
        lengths: Length of each utterance in units of `scale` [R].
        num_labels: Number of labels of each utterance [R].
        scale: Unit of lengths.
        speeds: Playback speeds; with jitter, those of `slowest`.
        row_parts: Number that must divide the rows of a batch, as in `models.base.Model`.
        shares: Mean number of times that an epoch contains each utterance [R]. None: once.

    Returns:
        Buckets, shortest first. Each `length` is a whole number of front-end hops.

    Raises:
        UserError: If there are no utterances, if `edges_s` ends below the longest utterance, or if `row_parts` does not
            divide `batch_multiple`.
    """
    if settings.batch_multiple % row_parts:
        raise UserError(
            f"data.buckets.batch_multiple is {settings.batch_multiple}, and the model splits batches into {row_parts} "
            f"parts (model.sub_batches, model.heads.*.split): expected a multiple of {row_parts}"
        )
    if not len(lengths):
        raise UserError("no utterances to plan: the manifests are empty or every utterance was rejected")
    entries = perturbed_lengths(lengths, speeds)
    labels = np.tile(num_labels, len(speeds))
    if settings.file:
        return read_buckets(Path(settings.file), entries, labels, scale, row_parts=row_parts)
    least = TOKEN_MULTIPLE if labels.any() else 0  # training on audio alone has no labels
    weights = np.broadcast_to(1.0, len(entries)) if shares is None else np.tile(shares, len(speeds))
    edges = _edges(entries, settings, scale, None if shares is None else weights)
    bucket_of = first_at_least(edges, entries)
    # Entries in the order of their buckets: a bucket is then a slice instead of a mask of all entries.
    order = np.argsort(bucket_of, kind="stable")
    entries, labels = entries[order], labels[order]
    weights = weights if shares is None else weights[order]
    numbers = np.bincount(bucket_of)
    starts, buckets = np.cumsum(numbers) - numbers, []
    for k in np.flatnonzero(numbers):
        member = slice(starts[k], starts[k] + numbers[k])
        length = _round_up(int(edges[k]) + int(settings.slack_s * scale.per_s), scale.hop)
        for num_tokens, of_labels in _by_labels(labels[member], settings.num_by_labels, weights[member], least):
            rows = _rows(entries[member][of_labels], length, settings, scale, weights[member][of_labels])
            buckets.append(Bucket(length, num_tokens, rows, int(edges[k])))
    return tuple(buckets)


def write_buckets(
    path: Path, buckets: Sequence[Bucket], scale: Scale, *, target: str, devices: str, margin: float, quick: bool
) -> None:
    """Writes the shapes of batches for `Buckets.file`.

    Args:
        scale: Unit of lengths.
        target: Name of the devices that the rows fit, as in `core.targets.target_of`.
        devices: Their number and kind, as in `core.meshes.described_devices`.
        margin: Share of their memory that is left free.
        quick: Whether they were compiled with `--quick`.
    """
    content = {
        "target": target,
        "devices": devices,
        "margin": margin,
        "quick": quick,
        "per_s": scale.per_s,
        "buckets": [asdict(each) for each in buckets],
    }
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


class BucketsFile(NamedTuple):
    """Content of a file of `write_buckets`."""

    per_s: float
    """Units of length per second."""
    buckets: tuple[Bucket, ...]
    devices: str
    """Number and kind of the devices that the rows fit."""


def load_buckets(path: Path) -> BucketsFile:
    """Reads a file of `write_buckets`.

    Raises:
        UserError: If the file cannot be read, or if a value in it cannot be used.
    """
    try:
        content = json.loads(path.read_text())
        per_s, devices = _number(content, "per_s", whole=False), content.get("devices", "unknown devices")
        if not isinstance(devices, str):
            raise ValueError(
                f"devices is {json.dumps(devices)}: expected their number and kind, such as '8 × NVIDIA H100'"
            )
        each = content.get("buckets")
        if not isinstance(each, list) or not each:
            raise ValueError(f"buckets is {json.dumps(each)}: expected a list of at least one bucket")
        buckets = tuple(_bucket(values, f"buckets[{number}]") for number, values in enumerate(each))
        shapes = [(bucket.length, bucket.longest, bucket.num_tokens) for bucket in buckets]
        for number, (shape, after) in enumerate(pairwise(shapes)):
            if shape >= after:
                raise ValueError(
                    f"buckets[{number}] has length, longest and num_tokens {shape}, and buckets[{number + 1}] has "
                    f"{after}: expected ascending lengths, and of one length, ascending numbers of labels"
                )
    except (OSError, ValueError) as error:
        raise UserError(f"data.buckets.file {path}: {error}; {AGAIN}") from error
    return BucketsFile(per_s, buckets, devices)


def _bucket(values: Any, of: str) -> Bucket:
    """Bucket of an object of JSON.

    Raises:
        ValueError: If a field is missing, not known, or outside of its limits.
    """
    names = [each.name for each in fields(Bucket)]
    if not isinstance(values, dict) or set(values) != set(names):
        raise ValueError(f"{of} is {json.dumps(values)}: expected an object with {', '.join(names)}")
    bucket = Bucket(**{name: _number(values, name, of=f"{of}.", least=int(name != "num_tokens")) for name in names})
    if bucket.longest > bucket.length:
        raise ValueError(f"{of}.longest is {bucket.longest}: expected at most its length {bucket.length}")
    return bucket


def _number(values: Any, name: str, *, of: str = "", least: int = 1, whole: bool = True) -> Any:
    """Number of an object of JSON.

    Raises:
        ValueError: If it is missing, has another type, or is not between `least` and `LARGEST`.
    """
    value: Any = values.get(name) if isinstance(values, dict) else None
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not (is_number and least <= value <= LARGEST):
        found = "missing" if value is None else json.dumps(value)
        raise ValueError(f"{of}{name} is {found}: expected a {'whole ' * whole}number from {least} to {LARGEST}")
    return value


def read_buckets(
    path: Path, lengths: Int[np.ndarray, " E"], num_labels: Int[np.ndarray, " E"], scale: Scale, *, row_parts: int = 1
) -> tuple[Bucket, ...]:
    """Reads the buckets of a file of `write_buckets` for entries.

    Args:
        lengths: Length of each entry in units of `scale` [E].
        num_labels: Number of labels of each entry [E].
        scale: Unit of lengths.
        row_parts: Number that must divide the rows of a batch, as in `models.base.Model`.

    Returns:
        Buckets that have entries.

    Raises:
        UserError: As `load_buckets`, or if the file has another unit, lengths that are not whole frames, rows that
            `row_parts` does not divide, or no bucket with room for an entry.
    """
    per_s, buckets, _ = load_buckets(path)
    if per_s != scale.per_s:
        raise UserError(
            f"data.buckets.file {path} has lengths in units of 1/{per_s:g} s, and the data have 1/{scale.per_s:g} s; "
            f"{AGAIN}"
        )
    if odd := [bucket.length for bucket in buckets if bucket.length % scale.hop]:
        raise UserError(
            f"data.buckets.file {path} has rows of length {odd[0]}, and a frame of the front-end has {scale.hop}: "
            f"expected a multiple of {scale.hop}; {AGAIN}"
        )
    if odd := [bucket.batch_size for bucket in buckets if bucket.batch_size % row_parts]:
        raise UserError(
            f"data.buckets.file {path} has batches of {odd[0]} rows, and the model splits batches into {row_parts} "
            f"parts (model.sub_batches, model.heads.*.split): expected a multiple of {row_parts}; {AGAIN}"
        )
    try:
        numbers = np.bincount(assign(lengths, num_labels, buckets), minlength=len(buckets))
    except ValueError as error:
        longest, most = max(each.longest for each in buckets), max(each.num_tokens for each in buckets)
        raise UserError(
            f"data.buckets.file {path} has room for {longest / scale.per_s:.2f} s and {most} labels, but an utterance "
            f"has {lengths.max() / scale.per_s:.2f} s (at its slowest speed), or one has {num_labels.max()} labels; "
            f"{AGAIN}, or lower --data.filters.max-duration-s"
        ) from error
    return tuple(bucket for bucket, number in zip(buckets, numbers, strict=True) if number)


def assign(
    lengths: Int[np.ndarray, " E"], num_labels: Int[np.ndarray, " E"], buckets: Sequence[Bucket]
) -> Int32[np.ndarray, " E"]:
    """Index of the first bucket that each entry fits by length and number of labels.

    Args:
        lengths: Length of each entry [E].
        num_labels: Number of labels of each entry [E].
        buckets: Buckets in order of preference.

    Raises:
        ValueError: If an entry fits no bucket.
    """
    longest, num_tokens = (np.array([getattr(each, name) for each in buckets]) for name in ("longest", "num_tokens"))
    if (np.diff(longest) >= 0).all() and (np.diff(num_tokens) >= 0).all():  # a later bucket fits whatever one fits
        bucket_of = np.maximum(first_at_least(longest, lengths), first_at_least(num_tokens, num_labels))
    else:
        bucket_of = np.full(len(lengths), len(buckets), np.min_scalar_type(len(buckets)))
        for k in reversed(range(len(buckets))):
            fits = (lengths <= buckets[k].longest) & (num_labels <= buckets[k].num_tokens)
            np.copyto(bucket_of, k, where=fits)
    if (bucket_of == len(buckets)).any():
        entry = int(np.argmax(bucket_of))
        raise ValueError(f"entry {entry} with {lengths[entry]} samples and {num_labels[entry]} labels fits no bucket")
    return bucket_of.astype(np.int32)


def first_at_least(edges: Int[np.ndarray, " K"], values: Int[np.ndarray, " E"]) -> UInt[np.ndarray, " E"]:
    """Number of the first of the ascending edges that is at least each value; K if none is. As `np.searchsorted`."""
    kind = np.min_scalar_type(len(edges))
    if not len(values) or values.min() < 0 or values.max() > len(values):
        return np.searchsorted(edges, values).astype(kind)
    return np.searchsorted(edges, np.arange(int(values.max()) + 1)).astype(kind)[values]  # faster for many values


def largest_first(buckets: Sequence[Bucket]) -> list[int]:
    """Bucket indices in the order of compilation, largest batches first: a batch that exceeds memory fails at once."""

    def size(number: int) -> tuple[int, int]:
        bucket = buckets[number]
        return bucket.length * bucket.batch_size, bucket.num_tokens

    return sorted(range(len(buckets)), key=size, reverse=True)


def _edges(lengths: np.ndarray, settings: Buckets, scale: Scale, weights: np.ndarray | None) -> np.ndarray:
    """Longest length of each duration bucket, in ascending order."""
    if not settings.edges_s:
        return EDGES[settings.edges](lengths, settings.num, weights)
    edges = np.rint(np.array(settings.edges_s) * scale.per_s).astype(np.int64)
    if lengths.max() > edges[-1]:
        raise UserError(
            f"edges_s ends at {settings.edges_s[-1]} s but the longest utterance takes "
            f"{lengths.max() / scale.per_s:.2f} s (at its slowest speed); add an edge or lower max_duration_s"
        )
    return edges


def _by_labels(num_labels: np.ndarray, num: int, weights: np.ndarray, least: int) -> list[tuple[int, np.ndarray]]:
    """Padded number of labels, at least `least`, and mask of the entries of each part of a bucket."""
    rounded = np.maximum(-(-num_labels // TOKEN_MULTIPLE) * TOKEN_MULTIPLE, least)
    edges = least_padding(rounded, num, weights)
    if len(edges) == 1:
        return [(int(edges[0]), np.ones(len(rounded), bool))]
    part_of = np.searchsorted(edges, rounded)
    return [(int(edge), part_of == part) for part, edge in enumerate(edges)]


def _rows(lengths: np.ndarray, length: int, settings: Buckets, scale: Scale, weights: np.ndarray) -> int:
    """Number of rows of a batch of these entries."""
    multiple = settings.batch_multiple
    mean = float(np.average(lengths, weights=weights))
    rows = min(int(_budget(settings) / _cost(mean, length, settings, scale)), settings.max_batch)
    if rows < multiple:
        logger.warning(
            "batches of %.2f s exceed the budget (%g %s): they have %d rows (batch_multiple), but only %d would fit",
            length / scale.per_s, _budget(settings), settings.unit or "padded-duration-ms", multiple, rows,
        )  # fmt: skip
    rows = max(rows // multiple * multiple, multiple)
    num = max(round(float(weights.sum())), 1)
    num_batches = -(-num // rows)
    return _round_up(-(-num // num_batches), multiple)


def _budget(settings: Buckets) -> float:
    return settings.budget or settings.batch_seconds * 1000


def _cost(mean: float, length: int, settings: Buckets, scale: Scale) -> float:
    """Cost of one row with `mean` of `length` filled, in the unit of the budget."""
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

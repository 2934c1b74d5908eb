"""Files with the shapes of batches, which `plan --fit` writes and `Batching.file` names."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.text_files import json_text, read_text
from asr_jax.data.batching.buckets import Bucket, Entries, Scale, assign

AGAIN = "make it again with python -m asr_jax.plan --target DEVICES --fit OUT.json"
"""Fix of a file of buckets."""
LARGEST = int(np.iinfo(np.int32).max)
"""Largest number in a file of buckets."""


def write_buckets(
    path: Path, buckets: Sequence[Bucket], scale: Scale, *, target: str, devices: str, margin: float, quick: bool
) -> None:
    """Writes the shapes of batches for `Batching.file`.

    Args:
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
    write_whole(path, json_text(content, indent=1) + "\n")


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
        content = json.loads(read_text(path))
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
        raise UserError(f"data.batching.file {path}: {error}; {AGAIN}") from error
    return BucketsFile(per_s, buckets, devices)


def _bucket(values: Any, of: str) -> Bucket:
    """Bucket of an object of JSON. Raises a ValueError if a field is missing, not known, or outside of its limits."""
    names = [each.name for each in fields(Bucket)]
    if not isinstance(values, dict) or set(values) != set(names):
        raise ValueError(f"{of} is {json.dumps(values)}: expected an object with {', '.join(names)}")
    bucket = Bucket(**{name: _number(values, name, of=f"{of}.", least=int(name != "num_tokens")) for name in names})
    if bucket.longest > bucket.length:
        raise ValueError(f"{of}.longest is {bucket.longest}: expected at most its length {bucket.length}")
    return bucket


def _number(values: Any, name: str, *, of: str = "", least: int = 1, whole: bool = True) -> Any:
    """Number of an object of JSON. Raises a ValueError if there is none of this kind from `least` to `LARGEST`."""
    value: Any = values.get(name) if isinstance(values, dict) else None
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not (is_number and least <= value <= LARGEST):
        found = "missing" if value is None else json.dumps(value)
        raise ValueError(f"{of}{name} is {found}: expected a {'whole ' * whole}number from {least} to {LARGEST}")
    return value


def read_buckets(path: Path, entries: Entries, *, row_parts: int = 1) -> tuple[Bucket, ...]:
    """Reads the buckets of a file of `write_buckets`, and returns those that have entries.

    Args:
        row_parts: Number that must divide the rows of a batch, as in `models.base.Model`.

    Raises:
        UserError: As `load_buckets`, or if the file has another unit, lengths that are not whole frames, rows that
            `row_parts` does not divide, or no bucket with room for an entry.
    """
    (per_s, buckets, _), scale = load_buckets(path), entries.scale
    if per_s != scale.per_s:
        raise UserError(
            f"data.batching.file {path} has lengths in units of 1/{per_s:g} s, and the data have 1/{scale.per_s:g} s; "
            f"{AGAIN}"
        )
    if odd := [bucket.length for bucket in buckets if bucket.length % scale.hop]:
        raise UserError(
            f"data.batching.file {path} has rows of length {odd[0]}, and a frame of the front-end has {scale.hop}: "
            f"expected a multiple of {scale.hop}; {AGAIN}"
        )
    if odd := [bucket.batch_size for bucket in buckets if bucket.batch_size % row_parts]:
        raise UserError(
            f"data.batching.file {path} has batches of {odd[0]} rows, and the model splits batches into {row_parts} "
            f"parts (model.sub_batches, model.heads.*.split): expected a multiple of {row_parts}; {AGAIN}"
        )
    lengths, num_labels = entries.longest(), entries.labels()
    try:
        numbers = np.bincount(assign(lengths, num_labels, buckets), minlength=len(buckets))
    except ValueError as error:
        longest, most = max(each.longest for each in buckets), max(each.num_tokens for each in buckets)
        raise UserError(
            f"data.batching.file {path} has room for {longest / scale.per_s:.2f} s and {most} labels, but an utterance "
            f"has {lengths.max() / scale.per_s:.2f} s (at its slowest speed), or one has {num_labels.max()} labels; "
            f"{AGAIN}, or lower --data.filters.max-duration-s"
        ) from error
    return tuple(bucket for bucket, number in zip(buckets, numbers, strict=True) if number)

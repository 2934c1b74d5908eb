"""Evaluation and alignment sets: every record once, in the shapes of training and, for somewhat longer ones, more."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int32

from asr_jax.audio.features import FrontEnd
from asr_jax.core.errors import UserError
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.buckets import TOKEN_MULTIPLE, Bucket, Scale
from asr_jax.data.batching.dataset import PlannedData, scale_of_records
from asr_jax.data.batching.filters import Dropped, Filters
from asr_jax.data.batching.index import FramesNeeded, Index, OutputLength, build_index
from asr_jax.data.manifests.reading import Records
from asr_jax.text.tokenizers import Tokenizer

WHOLE = 4
"""Times training's longest: audio up to there is computed at once, what is longer by windows (`training.long_audio`).
A shape of ten minutes took more than 16 GB."""


class NoRecords(UserError):
    """No record of a set is left."""

    def __init__(self, what: str, dropped: Dropped) -> None:
        super().__init__(f"{what}: {'; '.join(dropped.lines())}")
        self.what, self.dropped = what, dropped


def plan_evaluation(
    records: Records,
    buckets: Sequence[Bucket],
    *,
    scale: Scale,
    front_end: FrontEnd,
    tokenizer: Tokenizer,
    takes_ids: bool,
    num_devices: int,
    has_windows: bool = False,
) -> PlannedData:
    """Index and plan of an evaluation set. `scale`: that the lengths of the buckets are in; `takes_ids`: whether token
    ids of a manifest are the tokenizer's; `has_windows`: whether audio that is longer than WHOLE may be among
    `PlannedData.windowed_rows`; if not, it makes shapes as long.

    Nothing is dropped for its length or text, since that would change what an error rate means; only records are that
    have no readable duration, or token ids that nobody can read, and counted.

    Raises: NoRecords where none is left; UserError for token ids that are not the tokenizer's.
    """
    kept, unreadable = _with_reference(records, tokenizer, takes_ids=takes_ids)
    index, dropped = build_index(kept, scale=scale_of_records(kept, front_end), tokenizer=None, filters=Filters.none())
    dropped.merge(unreadable)
    if not len(index):
        raise NoRecords("no record can be read", dropped)
    index, num = _windowed_last(index, buckets, scale) if has_windows else (index, len(index))
    shapes = _shapes(index.lengths[:num], buckets, scale, index.scale, num_devices)
    plan = BatchPlan(index.lengths[:num], index.num_labels()[:num], shapes, order="unshuffled")
    return PlannedData(index, plan, dropped)


def plan_with_labels(
    records: Records,
    buckets: Sequence[Bucket],
    *,
    scale: Scale,
    front_end: FrontEnd,
    tokenizer: Tokenizer,
    takes_ids: bool,
    output_length: OutputLength,
    frames_needed: FramesNeeded,
    num_devices: int,
    has_windows: bool,
) -> PlannedData:
    """As `plan_evaluation`, and with labels, for which each shape has room. What has none (no text, or one with what no
    symbol stands for), and what has fewer frames (`output_length`) than they need (`frames_needed`), is dropped and
    named.

    Raises: NoRecords where none is left; UserError for token ids that are not the tokenizer's.
    """
    kept, unreadable = _with_reference(records, tokenizer, takes_ids=takes_ids)
    own = scale_of_records(kept, front_end)
    index, dropped = build_index(
        kept, scale=own, tokenizer=tokenizer, given_labels=takes_ids, filters=Filters.none(),
        output_length=functools.partial(output_length, of_features=own.of_features), frames_needed=frames_needed,
    )  # fmt: skip
    dropped.merge(unreadable)
    if not len(index):
        raise NoRecords("no record can be aligned", dropped)
    index, num = _windowed_last(index, buckets, scale) if has_windows else (index, len(index))
    lengths, num_labels = index.lengths[:num], index.num_labels()[:num]
    by_length = {bucket.longest: bucket for bucket in _shapes(lengths, buckets, scale, own, num_devices)}
    shapes = [by_length[longest] for longest in sorted(by_length)]
    bucket_of = np.searchsorted([shape.longest for shape in shapes], lengths)
    for number, shape in enumerate(shapes):
        most = int(num_labels[bucket_of == number].max(initial=1))
        shapes[number] = replace(shape, num_tokens=-(-most // TOKEN_MULTIPLE) * TOKEN_MULTIPLE)
    return PlannedData(index, BatchPlan(lengths, num_labels, shapes, order="unshuffled"), dropped)


def _windowed_last(index: Index, buckets: Sequence[Bucket], scale: Scale) -> tuple[Index, int]:
    """The index with audio that is too long to be computed at once behind the rest, and how many rows the rest has."""
    longest = WHOLE * in_scale(buckets, scale, index.scale)[-1].longest
    is_long = (index.lengths > longest) & (not index.scale.of_features)
    order = np.argsort(is_long, kind="stable")
    moved = replace(index, records=index.records.select(order), lengths=index.lengths[order])
    return moved, int((~is_long).sum())


def _shapes(
    lengths: Int32[np.ndarray, " R"], buckets: Sequence[Bucket], old: Scale, own: Scale, num_devices: int
) -> tuple[Bucket, ...]:
    longest = int(lengths.max(initial=0))
    return evaluation_buckets(in_scale(buckets, old, own), longest, hop=own.hop, num_devices=num_devices)


def evaluation_buckets(buckets: Sequence[Bucket], longest: int, *, hop: int, num_devices: int) -> tuple[Bucket, ...]:
    """The buckets, and as many more as records of up to `longest` need, each half as long again, with fewer rows, down
    to one per device."""
    shapes = list(buckets)
    while shapes[-1].longest < longest:
        last = shapes[-1]
        length = -(-last.length * 3 // 2 // hop) * hop
        rows = max(last.batch_size * last.length // length // num_devices, 1) * num_devices
        shapes.append(Bucket(length, last.num_tokens, rows, length - hop))  # manifests round
    return tuple(shapes)


def in_scale(buckets: Sequence[Bucket], old: Scale, new: Scale) -> Sequence[Bucket]:
    """Buckets as long in seconds: a run on audio is evaluated on ready features, or the other way round."""
    if old == new:
        return buckets

    def whole_hops(length: int) -> int:
        return -(-round(length * new.per_s / old.per_s) // new.hop) * new.hop

    return [
        replace(bucket, length=whole_hops(bucket.length) + new.hop, longest=whole_hops(bucket.longest))
        for bucket in buckets
    ]


def _with_reference(records: Records, tokenizer: Tokenizer, *, takes_ids: bool) -> tuple[Records, Dropped]:
    """The records that say what is said, and the others: without labels nobody asks."""
    columns, dropped = records.columns, Dropped()
    if not tokenizer.has_labels:
        return records, dropped
    ids_alone = columns.has_labels[records.rows] & (columns.num_chars[records.rows] == 0)
    for place in np.flatnonzero(ids_alone).tolist():
        record = records[place]
        if not takes_ids:
            dropped.add(
                "token ids without a text", name=record.id, location=record.location, duration_s=record.duration_s,
                value="the run's tokenizer was made from texts: nobody knows what they stand for",
            )  # fmt: skip
        elif wrong := [n for n in record.labels or () if n == tokenizer.blank_id or n >= tokenizer.vocab_size]:
            raise UserError(
                f"record {record.id}: label {wrong[0]} is the blank ({tokenizer.blank_id}) or outside of the "
                f"vocabulary of {tokenizer.vocab_size}: the run's tokenizer did not make it"
            )
    return (records.select(~ids_alone) if len(dropped.entries) else records), dropped

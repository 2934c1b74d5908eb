"""Evaluation and alignment sets: every utterance once, in the shapes of training and, for somewhat longer ones, more."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int32

from asr_jax.audio.features import FrontEnd
from asr_jax.core.errors import UserError
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.buckets import TOKEN_MULTIPLE, Bucket, Scale
from asr_jax.data.batching.dataset import PlannedData, scale_of_utterances
from asr_jax.data.batching.filters import Filters, Rejections
from asr_jax.data.batching.index import FramesNeeded, Index, OutputLength, build_index
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Rejected
from asr_jax.text.tokenizers import Tokenizer

WHOLE = 4
"""Times training's longest: audio up to there is computed at once, what is longer by windows (`training.long_audio`).
A shape of ten minutes took more than 16 GB."""


class NoUtterances(UserError):
    """No utterance of a set is left."""

    def __init__(self, what: str, rejections: Rejections) -> None:
        super().__init__(f"{what}: {'; '.join(rejections.lines())}")
        self.what, self.rejections = what, rejections


def plan_evaluation(
    utterances: Utterances,
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

    Nothing is dropped for its length or text, since that would change what an error rate means; only utterances are that
    have no readable duration, or token ids that nobody can read, and counted.

    Raises: NoUtterances where none is left; UserError for token ids that are not the tokenizer's.
    """
    kept, unreadable = _with_reference(utterances, tokenizer, takes_ids=takes_ids)
    index, rejections = build_index(
        kept, scale=scale_of_utterances(kept, front_end), tokenizer=None, filters=Filters.none()
    )
    rejections.merge(unreadable)
    if not len(index):
        raise NoUtterances("no utterance can be read", rejections)
    index, num = _windowed_last(index, buckets, scale) if has_windows else (index, len(index))
    shapes = _shapes(index.lengths[:num], buckets, scale, index.scale, num_devices)
    plan = BatchPlan(index.lengths[:num], index.num_labels()[:num], shapes, order="unshuffled")
    return PlannedData(index, plan, rejections)


def plan_with_labels(
    utterances: Utterances,
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

    Raises: NoUtterances where none is left; UserError for token ids that are not the tokenizer's.
    """
    kept, unreadable = _with_reference(utterances, tokenizer, takes_ids=takes_ids)
    own = scale_of_utterances(kept, front_end)
    index, rejections = build_index(
        kept, scale=own, tokenizer=tokenizer, given_labels=takes_ids, filters=Filters.none(),
        output_length=functools.partial(output_length, of_features=own.of_features), frames_needed=frames_needed,
    )  # fmt: skip
    rejections.merge(unreadable)
    if not len(index):
        raise NoUtterances("no utterance can be aligned", rejections)
    index, num = _windowed_last(index, buckets, scale) if has_windows else (index, len(index))
    lengths, num_labels = index.lengths[:num], index.num_labels()[:num]
    by_length = {bucket.longest: bucket for bucket in _shapes(lengths, buckets, scale, own, num_devices)}
    shapes = [by_length[longest] for longest in sorted(by_length)]
    bucket_of = np.searchsorted([shape.longest for shape in shapes], lengths)
    for number, shape in enumerate(shapes):
        most = int(num_labels[bucket_of == number].max(initial=1))
        shapes[number] = replace(shape, num_tokens=-(-most // TOKEN_MULTIPLE) * TOKEN_MULTIPLE)
    return PlannedData(index, BatchPlan(lengths, num_labels, shapes, order="unshuffled"), rejections)


def _windowed_last(index: Index, buckets: Sequence[Bucket], scale: Scale) -> tuple[Index, int]:
    """The index with audio that is too long to be computed at once behind the rest, and how many rows the rest has."""
    longest = WHOLE * in_scale(buckets, scale, index.scale)[-1].longest
    is_long = (index.lengths > longest) & (not index.scale.of_features)
    order = np.argsort(is_long, kind="stable")
    moved = replace(index, utterances=index.utterances.select(order), lengths=index.lengths[order])
    return moved, int((~is_long).sum())


def _shapes(
    lengths: Int32[np.ndarray, " R"], buckets: Sequence[Bucket], old: Scale, own: Scale, num_devices: int
) -> tuple[Bucket, ...]:
    longest = int(lengths.max(initial=0))
    return evaluation_buckets(in_scale(buckets, old, own), longest, hop=own.hop, num_devices=num_devices)


def evaluation_buckets(buckets: Sequence[Bucket], longest: int, *, hop: int, num_devices: int) -> tuple[Bucket, ...]:
    """The buckets, and as many more as utterances of up to `longest` need, each half as long again, with fewer rows, down
    to one per device.
    """
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


def _with_reference(utterances: Utterances, tokenizer: Tokenizer, *, takes_ids: bool) -> tuple[Utterances, Rejections]:
    """The utterances that say what is said, and the others: without labels nobody asks."""
    columns, rejections = utterances.columns, Rejections()
    if not tokenizer.has_labels:
        return utterances, rejections
    ids_alone = columns.has_labels[utterances.rows] & (columns.num_chars[utterances.rows] == 0)
    for place in np.flatnonzero(ids_alone).tolist():
        utterance = utterances[place]
        if not takes_ids:
            why = "the run's tokenizer was made from texts, and the tokens of these ids are unknown"
            rejected = Rejected(utterance.id, utterance.location, "token ids without a text", "filter", why)
            rejections.add(rejected, duration_s=utterance.duration_s)
        elif wrong := [n for n in utterance.labels or () if n == tokenizer.blank_id or n >= tokenizer.vocab_size]:
            raise UserError(
                f"utterance {utterance.id}: label {wrong[0]} is the blank ({tokenizer.blank_id}) or outside of the "
                f"vocabulary of {tokenizer.vocab_size}: the run's tokenizer did not make it"
            )
    return (utterances.select(~ids_alone) if len(rejections.entries) else utterances), rejections

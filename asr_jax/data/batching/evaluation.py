"""Plans of evaluation and alignment sets: every utterance once, in the shapes of training and some longer ones."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int, Int32

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
"""Longest audio that is computed at once, as a multiple of training's longest. Longer audio is computed in windows
(`inference.long_audio`). A shape of ten minutes took more than 16 GB."""


class NoUtterances(UserError):
    """Error: no utterance of a set is left."""

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
    has_windows: bool = False,
) -> PlannedData:
    """Builds the index and the batch plan of an evaluation set.

    No utterance is rejected for its length or text, because that would change the meaning of an error rate. Only
    utterances without a readable duration, and utterances with token ids that cannot be decoded, are rejected and
    counted.

    Args:
        utterances: Evaluation set.
        buckets: Buckets of training.
        scale: Unit of the lengths of the buckets.
        front_end: Front-end of the model.
        tokenizer: Tokenizer of the run.
        takes_ids: Whether token ids of manifests are ids of the tokenizer.
        has_windows: Whether audio that is longer than WHOLE times training's longest is left to
            `PlannedData.windowed_rows`. Otherwise, buckets of its length are added.

    Raises:
        NoUtterances: If no utterance is left.
        UserError: If token ids are not ids of the tokenizer.
    """
    kept, unreadable = _with_reference(utterances, tokenizer, takes_ids=takes_ids)
    index, rejections = build_index(
        kept, scale=scale_of_utterances(kept, front_end), tokenizer=None, filters=Filters.none()
    )
    rejections.merge(unreadable)
    if not len(index):
        raise NoUtterances("no utterance can be read", rejections)
    index, num = _windowed_last(index, buckets, scale) if has_windows else (index, len(index))
    shapes = _shapes(index.lengths[:num], buckets, scale, index.scale)
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
    has_windows: bool,
) -> PlannedData:
    """Builds the index and the batch plan of a set with labels; the shapes have room for them.

    Differs from `plan_evaluation` in that utterances without labels (no text, or characters outside of the vocabulary)
    and utterances with fewer frames than their labels need are rejected.

    Args:
        utterances: Set to align.
        buckets: Buckets of training.
        scale: Unit of the lengths of the buckets.
        front_end: Front-end of the model.
        tokenizer: Tokenizer of the run.
        takes_ids: Whether token ids of manifests are ids of the tokenizer.
        output_length: Maps input lengths to numbers of encoder frames.
        frames_needed: Minimum number of frames for numbers of labels.
        has_windows: Whether audio that is longer than WHOLE times training's longest is left to
            `PlannedData.windowed_rows`. Otherwise, buckets of its length are added.

    Raises:
        NoUtterances: If no utterance is left.
        UserError: If token ids are not ids of the tokenizer.
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
    by_length = {bucket.longest: bucket for bucket in _shapes(lengths, buckets, scale, own)}
    shapes = [by_length[longest] for longest in sorted(by_length)]
    bucket_of = np.searchsorted([shape.longest for shape in shapes], lengths)
    for number, shape in enumerate(shapes):
        most = int(num_labels[bucket_of == number].max(initial=1))
        shapes[number] = replace(shape, num_tokens=-(-most // TOKEN_MULTIPLE) * TOKEN_MULTIPLE)
    return PlannedData(index, BatchPlan(lengths, num_labels, shapes, order="unshuffled"), rejections)


def part_of(data: PlannedData, rows: Int[np.ndarray, " N"]) -> PlannedData:
    """Plans some rows of an evaluation set in the shapes of the whole set, without rejected utterances."""
    index = replace(data.index, utterances=data.index.utterances.select(rows), lengths=data.index.lengths[rows])
    plan = BatchPlan(index.lengths, index.num_labels(), data.plan.buckets, order="unshuffled")
    return PlannedData(index, plan, Rejections())


def _windowed_last(index: Index, buckets: Sequence[Bucket], scale: Scale) -> tuple[Index, int]:
    """Index with audio that is computed in windows moved to the end, and the number of the other rows."""
    longest = WHOLE * in_scale(buckets, scale, index.scale)[-1].longest
    is_long = (index.lengths > longest) & (not index.scale.of_features)
    order = np.argsort(is_long, kind="stable")
    moved = replace(index, utterances=index.utterances.select(order), lengths=index.lengths[order])
    return moved, int((~is_long).sum())


def _shapes(lengths: Int32[np.ndarray, " R"], buckets: Sequence[Bucket], old: Scale, own: Scale) -> tuple[Bucket, ...]:
    longest = int(lengths.max(initial=0))
    return evaluation_buckets(in_scale(buckets, old, own), longest, hop=own.hop)


def evaluation_buckets(buckets: Sequence[Bucket], longest: int, *, hop: int) -> tuple[Bucket, ...]:
    """Adds longer buckets for utterances of up to `longest`.

    Each additional bucket is half as long again as the preceding one, with fewer rows, down to one.

    Args:
        buckets: Buckets of training, shortest first.
        longest: Length of the longest utterance, in samples or frames.
        hop: Samples or frames per frame of the front-end.
    """
    shapes = list(buckets)
    while shapes[-1].longest < longest:
        last = shapes[-1]
        length = -(-last.length * 3 // 2 // hop) * hop
        rows = max(last.batch_size * last.length // length, 1)
        shapes.append(Bucket(length, last.num_tokens, rows, length - hop))  # manifests round durations
    return tuple(shapes)


def in_scale(buckets: Sequence[Bucket], old: Scale, new: Scale) -> Sequence[Bucket]:
    """Converts buckets to another unit of lengths, with the same durations.

    This is used if a run on audio is evaluated on ready features, or vice versa.

    Args:
        buckets: Buckets with lengths in units of `old`.
        old: Unit of the buckets.
        new: Unit of the result.
    """
    if old == new:
        return buckets

    def whole_hops(length: int) -> int:
        return -(-round(length * new.per_s / old.per_s) // new.hop) * new.hop

    return [
        replace(bucket, length=whole_hops(bucket.length) + new.hop, longest=whole_hops(bucket.longest))
        for bucket in buckets
    ]


def _with_reference(utterances: Utterances, tokenizer: Tokenizer, *, takes_ids: bool) -> tuple[Utterances, Rejections]:
    """Utterances with a reference that can be read, and the others. All utterances if the tokenizer has no labels."""
    columns, rejections = utterances.columns, Rejections()
    if not tokenizer.has_labels:
        return utterances, rejections
    ids_alone = columns.has_labels[utterances.rows] & (columns.num_chars[utterances.rows] == 0)
    for place in np.flatnonzero(ids_alone).tolist():
        utterance = utterances[place]
        if not takes_ids:
            detail = "the run's tokenizer was built from texts, and the tokens of these ids are unknown"
            rejected = Rejected(utterance.id, utterance.location, "token ids without a text", "filter", detail)
            rejections.add(rejected, duration_s=utterance.duration_s)
        elif wrong := [n for n in utterance.labels or () if n == tokenizer.blank_id or n >= tokenizer.vocab_size]:
            raise UserError(
                f"utterance {utterance.id}: label {wrong[0]} is the blank ({tokenizer.blank_id}) or outside of the "
                f"vocabulary of {tokenizer.vocab_size}: expected token ids of the run's tokenizer"
            )
    return (utterances.select(~ids_alone) if len(rejections.entries) else utterances), rejections

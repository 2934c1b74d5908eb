"""Plans of validation, evaluation and alignment sets: every utterance once, in few shapes of the set's own lengths."""

import functools
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from asr_jax.audio.features import FrontEnd
from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.buckets import Buckets
from asr_jax.data.batching.crops import in_pieces, longer_than, num_divided
from asr_jax.data.batching.dataset import PlannedData, scale_of_utterances
from asr_jax.data.batching.filters import Filters, Rejections
from asr_jax.data.batching.index import FramesNeeded, Index, OutputLength, build_index
from asr_jax.data.batching.limits import BatchLimits, shapes_of, with_labels
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Rejected
from asr_jax.text.tokenizers import Tokenizer


class NoUtterances(UserError):
    """Error: no utterance of a set is left."""

    def __init__(self, what: str, rejections: Rejections) -> None:
        super().__init__(f"{what}: {'; '.join(rejections.lines())}")
        self.what, self.rejections = what, rejections


def plan_evaluation(
    utterances: Utterances,
    limits: BatchLimits,
    *,
    front_end: FrontEnd,
    tokenizer: Tokenizer,
    takes_ids: bool,
    num_devices: int,
    piece_s: float = 0.0,
) -> PlannedData:
    """Builds the index and the batch plan of an evaluation set.

    No utterance is rejected for its length or text, because that would change the meaning of an error rate. Only
    utterances without a readable duration, and utterances with token ids that cannot be decoded, are rejected and
    counted. Audio that is longer than `limits.longest_s` is left to `PlannedData.windowed_rows`.

    Args:
        takes_ids: Whether token ids of manifests are ids of the tokenizer.
        piece_s: Length in seconds of the pieces into which audio that is longer than `limits.longest_s` is divided, for
            models that do not recognise text. 0: such audio is left to windows.

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
    of_set = index.fingerprint()
    if piece_s and not index.scale.of_features:
        index = in_pieces(index, _longest(limits, index), round(piece_s * index.scale.per_s))
    return replace(_planned(index, limits, num_devices), rejections=rejections, of_set=of_set)


def plan_with_labels(
    utterances: Utterances,
    limits: BatchLimits,
    *,
    front_end: FrontEnd,
    tokenizer: Tokenizer,
    takes_ids: bool,
    output_length: OutputLength,
    frames_needed: FramesNeeded,
    num_devices: int,
) -> PlannedData:
    """Builds the index and the batch plan of a set with labels; the shapes have room for them.

    Differs from `plan_evaluation` in that utterances without labels (no text, or characters outside of the vocabulary)
    and utterances with fewer frames than their labels need are rejected.

    Args:
        takes_ids: Whether token ids of manifests are ids of the tokenizer.
        output_length: Maps input lengths to numbers of encoder frames.
        frames_needed: Minimum number of frames for numbers of labels.

    Raises:
        NoUtterances: If no utterance is left.
        UserError: If token ids are not ids of the tokenizer.
    """
    kept, unreadable = _with_reference(utterances, tokenizer, takes_ids=takes_ids)
    own = scale_of_utterances(kept, front_end)
    index, rejections = build_index(
        kept,
        scale=own,
        tokenizer=tokenizer,
        given_labels=takes_ids,
        filters=Filters.none(),
        output_length=functools.partial(output_length, of_features=own.of_features),
        frames_needed=frames_needed,
    )
    rejections.merge(unreadable)
    if not len(index):
        raise NoUtterances("no utterance can be aligned", rejections)
    planned = _planned(index, limits, num_devices, has_labels=True)
    return replace(planned, rejections=rejections, of_set=index.fingerprint())


def part_of(data: PlannedData, rows: Int[np.ndarray, " N"]) -> PlannedData:
    """Plans some rows of an evaluation set in the shapes of the whole set, without rejected utterances.

    The rows are numbered in the given order; rows that are computed in windows must be the last ones.
    """
    index, num = data.index.select(rows), int(np.sum(rows < data.plan.num_utterances))
    plan = BatchPlan(index.entries(num=num), Buckets(data.plan.buckets), is_shuffled=False)
    return PlannedData(index, plan, Rejections(), longest_s=data.longest_s)


def about_long(data: PlannedData, *, has_losses: bool = False) -> str:
    """Returns a message on the utterances of an evaluation set that are not computed at once; empty without any."""
    num, pieces = num_divided(data.index)
    how = f"computed in {counted(pieces, 'piece')}"
    if windowed := len(data.windowed_rows):
        num, how = windowed, "computed in windows" + ", without a loss" * has_losses
    verb = "is" if num == 1 else "are"
    return f"{longer_than(data.longest_s, num, data.index)} and {verb} {how}" if num else ""


def _longest(limits: BatchLimits, index: Index) -> float:
    """Longest audio that is computed at once, in units of the index, rounded up as lengths may be."""
    return float(np.ceil(limits.longest_s * index.scale.per_s))


def _planned(index: Index, limits: BatchLimits, num_devices: int, *, has_labels: bool = False) -> PlannedData:
    """Plan of all rows. Those whose audio is computed in windows are moved to the end, and are in no batch."""
    is_long = (index.lengths > _longest(limits, index)) & (not index.scale.of_features)
    index, num = index.select(np.argsort(is_long, kind="stable")), int((~is_long).sum())
    shapes = shapes_of(index.lengths[:num], limits, scale=index.scale, num_devices=num_devices)
    if has_labels:
        shapes = with_labels(shapes, index.lengths[:num], index.num_labels()[:num])
    plan = BatchPlan(index.entries(num=num), Buckets(shapes), is_shuffled=False)
    return PlannedData(index, plan, Rejections(), longest_s=limits.longest_s)


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

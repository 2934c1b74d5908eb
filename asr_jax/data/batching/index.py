"""The index: the utterances that are used, how long each is in the shapes of batches, and its labels."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Integer

from asr_jax.audio.features import FrontEnd
from asr_jax.core.errors import UserError
from asr_jax.data.batching.buckets import Scale
from asr_jax.data.batching.filters import Filters, Rejections, kind_of, violations
from asr_jax.data.batching.labels import encoded
from asr_jax.data.manifests.columns import Ragged
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Rejected
from asr_jax.text.tokenizers import Tokenizer

OutputLength = Callable[..., Any]
FramesNeeded = Callable[[Any, Any], Any]
"""The least frames for numbers of labels and of labels that equal the one before."""


def scale_of(front_end: FrontEnd, *, of_features: bool) -> Scale:
    """Lengths of audio, or of ready features, for a front-end."""
    if of_features:
        return Scale(front_end.rate_hz / front_end.hop, 1, front_end.num_features, of_features=True)
    return Scale(front_end.rate_hz, front_end.hop, front_end.num_features)


@dataclass(frozen=True)
class Index:
    """The utterances that are used, by row."""

    utterances: Utterances
    scale: Scale
    lengths: Int32[np.ndarray, " R"]
    """In the units of the scale, by the utterance's duration."""
    labels: Ragged
    """By row of the utterances' columns."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def hours(self) -> float:
        return float(self.lengths.sum(dtype=np.int64)) / self.scale.per_s / 3600

    def labels_of(self, row: int) -> Integer[np.ndarray, " U"]:
        return self.labels[int(self.utterances.rows[row])]

    def num_labels(self) -> Int32[np.ndarray, " R"]:
        return self.labels.lengths()[self.utterances.rows]

    def rows_with(self, chosen: Bool[np.ndarray, " L"]) -> Integer[np.ndarray, " N"]:
        """The row of the columns for each of the labels (of `labels.values`) that are chosen, where it is used."""
        rows = np.searchsorted(self.labels.offsets, np.flatnonzero(chosen), side="right") - 1
        return rows[np.isin(rows, self.utterances.rows)]

    def fingerprint(self) -> str:
        """Equal where ids, durations, texts and labels are: what lies at which path does not count."""
        digest = hashlib.sha256(self.utterances.digest.encode())
        for array in (self.utterances.rows, self.lengths, self.labels.offsets, self.labels.values):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()[:16]


def build_index(
    utterances: Utterances,
    *,
    scale: Scale,
    tokenizer: Tokenizer | None,
    given_labels: bool = False,
    output_length: OutputLength | None = None,
    frames_needed: FramesNeeded | None = None,
    filters: Filters | None = None,
    max_speed: float = 1.0,
) -> tuple[Index, Rejections]:
    """The utterances that pass all rules, tokenised once, and those that do not.

    `tokenizer`: None where labels are not needed; rules about texts do not count then. `given_labels`: token ids of a
    manifest count, and texts only where it has none. `output_length` gives encoder frames for lengths (ints and
    arrays), and `frames_needed` the least frames for numbers of labels and of labels that equal the one before: a
    utterance with fewer, at the fastest speed `max_speed` that it will be played at, is dropped; without one of the two
    that rule is left out.

    Raises: UserError where audio and ready features are mixed, or all features have another width than the model takes.
    """
    rejections, columns = Rejections(), utterances.columns
    for entry in utterances.rejected:
        rejections.add(entry, kind=kind_of(entry.reason))
    _check_kind(utterances, scale)
    keep = _of_width(utterances, scale, rejections)
    rules = filters or Filters()
    rules = rules if tokenizer else rules.of_audio()
    for broken in violations(columns.duration_s[utterances.rows], columns.num_chars[utterances.rows], rules):
        for place, value in zip(broken.places.tolist(), broken.values.tolist(), strict=True):
            if keep[place]:
                _reject(rejections, utterances, place, broken.reason, value, broken.limit)
        keep[broken.places] = False
    if tokenizer is None:
        labels = Ragged(np.zeros(0, np.uint8), np.zeros(len(columns) + 1, np.int64))
    else:
        labels, problems = encoded(utterances, tokenizer, given=given_labels)
        for place in np.flatnonzero(keep & (labels.lengths()[utterances.rows] == 0)):
            reason, value = problems.get(int(utterances.rows[place]), ("empty text", None))
            _reject(rejections, utterances, int(place), reason, value, None)
            keep[place] = False
    kept = utterances.select(keep)
    lengths = _lengths(kept, scale)
    index = Index(kept, scale, lengths, labels)
    if output_length is None or frames_needed is None or tokenizer is None or not len(kept):
        return index, rejections
    frames = np.asarray(output_length(np.rint(lengths / max_speed).astype(np.int32)))
    fits = _fits(index, frames, frames_needed, rejections)
    return Index(kept.select(fits), scale, lengths[fits], labels), rejections


def repeats(labels: Ragged) -> Int32[np.ndarray, " R"]:
    """How many labels of each row equal the one before."""
    places = np.flatnonzero(labels.values[1:] == labels.values[:-1]) + 1
    first = np.minimum(labels.offsets[:-1] + 1, labels.offsets[1:])
    return (np.searchsorted(places, labels.offsets[1:]) - np.searchsorted(places, first)).astype(np.int32)


def _check_kind(utterances: Utterances, scale: Scale) -> None:
    wrong = (utterances.columns.num_values[utterances.rows] > 0) != scale.of_features
    if wrong.any():
        utterance = utterances[int(np.argmax(wrong))]
        raise UserError(
            f"utterance {utterance.id} is of {'ready features' if utterance.num_values else 'audio'} among utterances of "
            f"{'ready features' if scale.of_features else 'audio'}: a run trains on one of the two; take the others out"
        )


def _of_width(utterances: Utterances, scale: Scale, rejections: Rejections) -> Bool[np.ndarray, " R"]:
    """True where features are as wide as the model takes them, and for audio; the others are rejected."""
    width = utterances.columns.num_values[utterances.rows]
    wrong = width != (scale.num_values if scale.of_features else 0)
    if wrong.any() and wrong.all():
        raise UserError(
            f"utterance {utterances[0].id} has feature dim {width[0]}, expected {scale.num_values}, and so have all others: "
            "extract the features with this model's front-end (python -m asr_jax.extract_features)"
        )
    for place in np.flatnonzero(wrong).tolist():
        _reject(rejections, utterances, place, "feature dim", int(width[place]), scale.num_values)
    return ~wrong


def _lengths(utterances: Utterances, scale: Scale) -> Int32[np.ndarray, " R"]:
    if scale.of_features:
        return np.array(utterances.columns.num_frames[utterances.rows])
    return np.rint(utterances.columns.duration_s[utterances.rows] * scale.per_s).astype(np.int32)


def _fits(
    index: Index, frames: np.ndarray, frames_needed: FramesNeeded, rejections: Rejections
) -> Bool[np.ndarray, " R"]:
    """True where there are as many frames as the labels need; the others are rejected."""
    needed = frames_needed(index.labels.lengths(), repeats(index.labels))[index.utterances.rows]
    fits = frames >= needed
    for row in np.flatnonzero(~fits).tolist():
        _reject(
            rejections, index.utterances, row, "fewer frames than its labels need", int(frames[row]), int(needed[row])
        )
    return fits


def _reject(
    rejections: Rejections,
    utterances: Utterances,
    place: int,
    reason: str,
    value: float | str | None,
    limit: float | None,
) -> None:
    columns, row = utterances.columns, int(utterances.rows[place])  # a whole utterance takes ten times as long
    rejected = Rejected(columns.ids.text(row), columns.locations.text(row), reason, "filter", value, limit)
    rejections.add(rejected, duration_s=float(columns.duration_s[row]))

"""Index: the utterances that are used, with their lengths in samples or frames and their labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64, Integer

from asr_jax.audio.features import FrontEnd
from asr_jax.core.errors import UserError
from asr_jax.data.batching.buckets import Entries, Scale
from asr_jax.data.batching.filters import Filters, Rejections, Violations, kind_of, violations
from asr_jax.data.batching.labels import Labels, encoded
from asr_jax.data.manifests.arrays import digest_of_values
from asr_jax.data.manifests.columns import Ragged
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.remembered import remembered
from asr_jax.data.manifests.utterances import Rejected
from asr_jax.text.sampling import SampledPieces
from asr_jax.text.tokenizers import Tokenizer

OutputLength = Callable[..., Any]
"""Function that maps input lengths to numbers of encoder frames."""
FramesNeeded = Callable[[Any, Any], Any]
"""Function that maps the number of labels, and of labels equal to the preceding one, to the minimum number of
frames."""


def scale_of(front_end: FrontEnd, *, of_features: bool) -> Scale:
    """Unit of lengths for a front-end: samples of audio, or frames of ready features."""
    if of_features:
        return Scale(front_end.rate_hz / front_end.hop, 1, front_end.num_features, of_features=True)
    return Scale(front_end.rate_hz, front_end.hop, front_end.num_features)


WHOLE = -1
"""Begin of the stretch of a row that is a whole utterance."""


@dataclass(frozen=True)
class Stretches:
    """Stretches of utterances, in samples or frames."""

    begins: Int64[np.ndarray, " R"]
    """First sample or frame of each stretch in its utterance; WHOLE for a whole utterance."""
    lengths: Int32[np.ndarray, " R"]
    """Length of each stretch, which is at least that of its row."""

    def select(self, rows: Int[np.ndarray, " K"] | Bool[np.ndarray, " R"]) -> "Stretches":
        return Stretches(self.begins[rows], self.lengths[rows])

    def part(self, row: int, length: int, place: float) -> tuple[int, int] | None:
        """Returns begin and end of a row's part of its utterance; None if the row is the whole utterance.

        Args:
            place: Place of the part in the stretch, from 0 for its beginning to 1 for its end.
        """
        begin = int(self.begins[row])
        if begin == WHOLE:
            return None
        begin += round(place * (int(self.lengths[row]) - length))
        return begin, begin + length


@dataclass(frozen=True)
class Index:
    """Utterances that are used, by row."""

    utterances: Utterances
    scale: Scale
    lengths: Int32[np.ndarray, " R"]
    """Length of each utterance in units of `scale`, from its duration or its number of ready frames; of a row that is a
    part of an utterance, the length of the part."""
    labels: Ragged
    """Labels by row of `utterances.columns`."""
    stretches: Stretches | None = None
    """Where in its utterance each row is. None: every row is a whole utterance."""
    sampled: SampledPieces | None = None
    """Draws random segmentations of texts. None: each text has its best segmentation."""
    labels_digest: str = ""
    """Digest of cached labels, by which results of earlier starts are found again. Empty: labels are not cached."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def hours(self) -> float:
        return float(self.lengths.sum(dtype=np.int64)) / self.scale.per_s / 3600

    def labels_of(self, row: int, *, position: int = 0, most: int = 0) -> Integer[np.ndarray, " U"]:
        """Returns the labels of a row; random ones, drawn for the batch at `position`, are at most `most`."""
        place = int(self.utterances.rows[row])
        if self.sampled and not self.utterances.columns.has_labels[place]:
            text = self.utterances.columns.texts.text(place)
            if (labels := self.sampled(text, position=position, row=row, most=most)) is not None:
                return np.asarray(labels, np.int32)
        return self.labels[place]

    def num_labels(self) -> Int32[np.ndarray, " R"]:
        return self.labels.lengths()[self.utterances.rows]

    def entries(self, *, num: int | None = None, speeds: tuple[float, ...] = (1.0,), jitter: float = 0.0) -> Entries:
        """Returns the first `num` rows, or all, at some speeds."""
        is_cropped = None if self.stretches is None else (self.stretches.lengths > self.lengths)[:num]
        return Entries(self.lengths[:num], self.num_labels()[:num], self.scale, speeds, jitter, is_cropped)

    @property
    def num_utterances(self) -> int:
        """Number of utterances, of which several rows may be parts."""
        return len(self) if self.stretches is None else len(np.unique(self.utterances.rows))

    def rows_of(self, rows: Int[np.ndarray, " K"]) -> Int[np.ndarray, " N"]:
        """Rows of the index that are some rows of the columns, in ascending order."""
        return np.flatnonzero(np.isin(self.utterances.rows, rows))

    def select(self, rows: Int[np.ndarray, " K"] | Bool[np.ndarray, " R"]) -> "Index":
        """Returns the index of some rows, in their order; rows may be repeated."""
        stretches = None if self.stretches is None else self.stretches.select(rows)
        return replace(self, utterances=self.utterances.select(rows), lengths=self.lengths[rows], stretches=stretches)

    def without(self, violated: Sequence[Violations], rejections: Rejections) -> "Index":
        """Returns the index without the rows that violate a limit, and adds their utterances to `rejections`."""
        keep = np.ones(len(self), bool)
        for each in violated:
            keep[each.places] = False
            for row, value in zip(each.places.tolist(), each.values.tolist(), strict=True):
                _reject(rejections, self.utterances, row, each.reason, value, each.limit)
        return self.select(keep)

    def fingerprint(self) -> str:
        """Digest of ids, durations, texts and labels, and of the stretches of rows. Paths are not included."""
        stretches = () if self.stretches is None else (self.stretches.begins, self.stretches.lengths)
        folder = self.utterances.folder if self.labels_digest else None
        inputs = (self.utterances.digest, self.utterances.rows, self.lengths, self.labels_digest, *stretches)
        return remembered(folder, "fingerprint", inputs, lambda: self._fingerprint(stretches))

    def _fingerprint(self, stretches: Sequence[np.ndarray]) -> str:
        arrays = (self.utterances.rows, self.lengths, self.labels.offsets, self.labels.values, *stretches)
        return digest_of_values(self.utterances.digest.encode(), *arrays)[:16]


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
    """Applies all limits and tokenizes the utterances once.

    Args:
        tokenizer: Tokenizer of the texts. None: labels are not needed, and limits on texts do not apply.
        given_labels: Whether token ids of manifests are used. Texts are then tokenized only if an utterance has no
            token ids.
        output_length: Maps lengths (integers and arrays) to numbers of encoder frames. None: frames are not checked.
        frames_needed: Minimum number of frames for numbers of labels and of repeated labels. Utterances with fewer
            frames at `max_speed` are rejected. None: frames are not checked.
        max_speed: Fastest speed that an utterance is played at.

    Raises:
        UserError: If audio and ready features are mixed, or if all features have another dimension than the model
            takes.
    """
    rejections, columns = Rejections(), utterances.columns
    for entry in utterances.rejected:
        rejections.add(entry, kind=kind_of(entry.reason))
    _check_kind(utterances, scale)
    keep = _of_width(utterances, scale, rejections)
    rules = filters or Filters()
    rules = rules if tokenizer else rules.of_audio()
    for violated in violations(columns.duration_s[utterances.rows], columns.num_chars[utterances.rows], rules):
        for place, value in zip(violated.places.tolist(), violated.values.tolist(), strict=True):
            if keep[place]:
                _reject(rejections, utterances, place, violated.reason, value, violated.limit)
        keep[violated.places] = False
    if tokenizer is None:
        nothing = Ragged(np.zeros(0, np.uint8), np.zeros(len(columns) + 1, np.int64))
        labels, problems, repeats, digest = Labels(nothing, {}, np.zeros(len(columns), np.int32))
    else:
        labels, problems, repeats, digest = encoded(utterances, tokenizer, given=given_labels)
        for place in np.flatnonzero(keep & (labels.lengths()[utterances.rows] == 0)):
            reason, value = problems.get(int(utterances.rows[place]), ("empty text", None))
            _reject(rejections, utterances, int(place), reason, value, None)
            keep[place] = False
    kept = utterances if keep.all() else utterances.select(keep)
    lengths = _lengths(kept, scale)
    index = Index(kept, scale, lengths, labels, labels_digest=digest)
    if output_length is None or frames_needed is None or tokenizer is None or not len(kept):
        return index, rejections
    frames = np.asarray(output_length(np.rint(lengths / max_speed).astype(np.int32)))
    fits = _fits(index, frames, frames_needed, repeats, rejections)
    return index if fits.all() else index.select(fits), rejections


def _check_kind(utterances: Utterances, scale: Scale) -> None:
    wrong = (utterances.columns.num_values[utterances.rows] > 0) != scale.of_features
    if wrong.any():
        utterance = utterances[int(np.argmax(wrong))]
        raise UserError(
            f"utterance {utterance.id} has {'ready features' if utterance.num_values else 'audio'}; expected "
            f"{'ready features' if scale.of_features else 'audio'}: a run trains on one of the two; remove the others "
            "from the manifest"
        )


def _of_width(utterances: Utterances, scale: Scale, rejections: Rejections) -> Bool[np.ndarray, " R"]:
    """Mask of utterances whose feature dimension the model takes; True for audio. Rejects the others."""
    width = utterances.columns.num_values[utterances.rows]
    wrong = width != (scale.num_values if scale.of_features else 0)
    if wrong.any() and wrong.all():
        raise UserError(
            f"utterance {utterances[0].id} has feature dim {width[0]}, expected {scale.num_values}, and no utterance "
            "has the expected dim: extract the features with this model's front-end (python -m "
            "asr_jax.extract_features)"
        )
    for place in np.flatnonzero(wrong).tolist():
        _reject(rejections, utterances, place, "feature dim", int(width[place]), scale.num_values)
    return ~wrong


def _lengths(utterances: Utterances, scale: Scale) -> Int32[np.ndarray, " R"]:
    if scale.of_features:
        return np.array(utterances.columns.num_frames[utterances.rows])
    return np.rint(utterances.columns.duration_s[utterances.rows] * scale.per_s).astype(np.int32)


def _fits(
    index: Index, frames: np.ndarray, frames_needed: FramesNeeded, repeats: np.ndarray, rejections: Rejections
) -> Bool[np.ndarray, " R"]:
    """Mask of utterances with as many frames as their labels need. Rejects the others."""
    needed = frames_needed(index.labels.lengths(), repeats)[index.utterances.rows]
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
    columns, row = utterances.columns, int(utterances.rows[place])  # building the Utterance takes ten times as long
    rejected = Rejected(columns.ids.text(row), columns.locations.text(row), reason, "filter", value, limit)
    rejections.add(rejected, duration_s=float(columns.duration_s[row]))

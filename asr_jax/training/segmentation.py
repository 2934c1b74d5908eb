"""Long audio and its text: log-probabilities by windows, the search for the text, and the pieces as records."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int16

from asr_jax.core.batch import Batch, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import abstract, global_batch, replicated
from asr_jax.core.programs import lower
from asr_jax.core.pytrees import Tree
from asr_jax.data.buckets import Bucket
from asr_jax.data.locations import Location
from asr_jax.data.records import Record
from asr_jax.decoding.ctc_segment import Emissions, LongSearch, align_long
from asr_jax.decoding.frame_times import FrameTimes
from asr_jax.decoding.pieces import LOW_SCORE, Cutting, Piece, TextWord, pieces
from asr_jax.decoding.spelling import Spelling
from asr_jax.text.base import OutOfVocabulary, Tokenizer
from asr_jax.training.alignment import ctc_head, frame_times, spelling_of
from asr_jax.training.compile import abstract_batch
from asr_jax.training.setup import made_of
from asr_jax.training.trained import Trained

MAX_WINDOW_S = 30.0
"""Windows are as long as the longest recordings of the training, and at most this."""
CONTEXT_SHARE = 1 / 6
"""Of a window, at both of its ends: heard, and thrown away."""
Emit = Callable[[Batch], Frames]


class RecordPiece(NamedTuple):
    """A piece of a recording."""

    record: Record
    score: float
    """NaN where no word of it is sure to be heard."""
    reason: str
    """Why it is not sure; empty where it is."""


class Segmenter:
    """Cuts recordings of any length into pieces, with the texts that they are known to have."""

    def __init__(self, trained: Trained, *, cutting: Cutting, search: LongSearch | None = None) -> None:
        if trained.scale.of_features:
            raise UserError("the run is of ready features: expected one that hears audio, which can be cut")
        self._tokenizer, self._cutting, self._search = trained.tokenizer, cutting, search or LongSearch()
        self._rate_hz = trained.model.front_end.rate_hz
        self._spelling, self._times = spelling_of(trained.tokenizer), frame_times(trained.model)
        self._bucket = window_bucket(trained)
        self._emit = _compiled(trained, self._bucket)

    def __call__(self, record: Record) -> list[RecordPiece]:
        """Its pieces in their order, sure or not.

        Raises: AudioError where it cannot be read; UserError where its text has no word with labels.
        """
        words, labels = text_words(record.text, self._tokenizer, self._spelling)
        if not labels:
            raise UserError(f"record {record.id}: no word of its text has labels; expected what is said in it")
        samples = Location.parse(record.location).audio(rate_hz=self._rate_hz)
        emissions, columns = self._emissions(samples, labels)
        opens = np.array([self._spelling.opens[label] for label in labels]) | (np.arange(len(labels)) == 0)
        path = align_long(emissions, columns, opens, search=self._search)
        energies = frame_energies(samples, self._times, len(path.log_probs))
        found = pieces(words, path, energies, self._cutting, shift_s=self._times.shift_s)
        length_s = len(samples) / self._rate_hz
        return [self._of(piece, number, record, length_s) for number, piece in enumerate(found)]

    def _emissions(self, samples: Int16[np.ndarray, " S"], labels: list[int]) -> tuple[Emissions, np.ndarray]:
        """Of the labels that are in the text, and the column of each of them."""
        distinct, columns = np.unique(labels, return_inverse=True)
        blank_id = self._tokenizer.blank_id
        has_text = np.array([bool(text) for text in self._spelling.texts])
        has_text[blank_id] = False
        parts = []
        for log_probs in window_log_probs(self._emit, samples, bucket=self._bucket, shift=self._times.shift):
            silences, others = log_probs[:, ~has_text].max(1), log_probs[:, has_text].max(1)
            parts.append((log_probs[:, distinct], log_probs[:, blank_id], silences, others))
        return Emissions(*map(np.concatenate, zip(*parts, strict=True))), columns

    def _of(self, piece: Piece, number: int, record: Record, length_s: float) -> RecordPiece:
        start_s = self._times.seconds(piece.start)
        end_s = min(self._times.seconds(piece.end), length_s)
        whole = Location.parse(record.location)
        start_s, duration_s = round(start_s, 3), round(max(end_s - start_s, 0.0), 3)
        place = replace(whole, start_s=round(whole.start_s + start_s, 3), length_s=duration_s, may_overshoot=False)
        cut = replace(
            record, id=f"{record.id}-{number:05d}", location=str(place), text=piece.text, duration_s=duration_s,
            labels=None,
        )  # fmt: skip
        below = f"score {piece.score:.2f} below {self._cutting.min_score:g}"
        reasons = [below if reason == LOW_SCORE else reason for reason in piece.reasons]
        return RecordPiece(cut, piece.score, "; ".join(reasons))


def text_words(text: str, tokenizer: Tokenizer, spelling: Spelling) -> tuple[list[TextWord], list[int]]:
    """The words of a text as they stand there, and the labels of all of them, with borders between."""
    words: list[TextWord] = []
    labels: list[int] = []
    for word in text.split():
        try:
            own = tokenizer.encode(word)
        except OutOfVocabulary as error:
            words.append(TextWord(word, len(labels), len(labels), problem=str(error)))
            continue
        if not any(spelling.texts[label] for label in own):  # punctuation: it stays with the word before
            if words:
                words[-1] = words[-1]._replace(text=f"{words[-1].text} {word}")
            continue
        if labels and not spelling.opens[own[0]] and spelling.border is not None:
            labels.append(spelling.border)
        first = next(place for place, label in enumerate(own) if spelling.texts[label])
        words.append(TextWord(word, len(labels) + first, len(labels) + len(own)))
        labels += own
    return words, labels


def window_bucket(trained: Trained) -> Bucket:
    """The shape of a batch of windows: the longest of training that is not too long, else the shortest."""
    fitting = [bucket for bucket in trained.buckets if bucket.length <= MAX_WINDOW_S * trained.scale.per_s]
    return max(fitting or trained.buckets[:1], key=lambda bucket: bucket.length)


def window_log_probs(
    emit: Emit, samples: Int16[np.ndarray, " S"], *, bucket: Bucket, shift: int
) -> Iterator[Float[np.ndarray, "T V"]]:
    """Log-probabilities of long audio, part by part: of windows of which the ends are heard and thrown away.

    `emit`: of a batch of the bucket's shape; `shift`: samples from one frame to the next. The frames of all parts are
    those of the whole audio, as many and at the same places.
    """
    context = int(bucket.length * CONTEXT_SHARE) // shift * shift
    centre = (bucket.length - 2 * context) // shift * shift
    num_windows = max(-(-(len(samples) - context) // centre), 1)
    first_frame = [number * centre // shift for number in range(num_windows)]
    starts = [max(number * centre - context, 0) for number in range(num_windows)]
    for batch in range(0, num_windows, bucket.batch_size):
        numbers = range(batch, min(batch + bucket.batch_size, num_windows))
        rows = [samples[starts[number] : starts[number] + bucket.length] for number in numbers]
        frames = emit(_batch(rows, bucket))
        values, lengths = jax.device_get((frames.values, frames.lengths))
        for row, number in enumerate(numbers):
            first = first_frame[number] - starts[number] // shift
            is_last = number + 1 == num_windows
            yield values[row, first : lengths[row] if is_last else first + centre // shift]


def frame_energies(samples: Int16[np.ndarray, " S"], times: FrameTimes, num_frames: int) -> Float[np.ndarray, " T"]:
    """Mean square of the samples of each frame."""
    borders = np.clip(np.rint(times.first + np.arange(num_frames + 1) * times.shift), 0, len(samples)).astype(int)
    sums = np.add.reduceat(np.append(samples.astype(np.float64) ** 2, 0.0), borders[:-1])
    return np.where(np.diff(borders) > 0, sums / np.maximum(np.diff(borders), 1), 0.0)


def _batch(rows: list[np.ndarray], bucket: Bucket) -> Batch:
    num = bucket.batch_size
    audio = np.zeros((num, bucket.length), np.int16)
    for row, samples in zip(audio, rows, strict=False):
        row[: len(samples)] = samples
    lengths = np.zeros(num, np.int32)
    lengths[: len(rows)] = [len(samples) for samples in rows]
    weights = (np.arange(num) < len(rows)).astype(np.float32)
    no_labels = np.zeros((num, bucket.num_tokens), np.int32)
    return Batch(audio, None, lengths, no_labels, np.zeros(num, np.int32), weights, np.full(num, -1, np.int32))


def _compiled(trained: Trained, bucket: Bucket) -> Emit:
    """Log-probabilities of a batch of that shape."""
    model, head, same = trained.model, ctc_head(trained.model), replicated(trained.mesh)

    def emit(variables: Tree, batch: Batch) -> Any:
        emitted: Any = model.apply(variables, batch, method="emit")
        return emitted[head]

    shapes = abstract(trained.variables, same), abstract_batch(bucket, trained.mesh, trained.scale)
    program = lower(
        f"log_probs_{head}", emit, *shapes, made_of=made_of(trained.experiment, trained.tokenizer), out_shardings=same
    ).lowered.compile()
    return lambda batch: program(trained.variables, global_batch(batch, trained.mesh))

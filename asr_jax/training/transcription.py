"""Transcripts of recordings of any length: short ones in batches of the shapes of training, long ones by windows."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import batched, groupby

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int16

from asr_jax.audio.io import AudioError
from asr_jax.core.batch import Batch, Frames
from asr_jax.core.meshes import global_batch
from asr_jax.data.buckets import Bucket
from asr_jax.data.evaluation import evaluation_buckets, in_scale
from asr_jax.data.index import scale_of
from asr_jax.data.locations import Location
from asr_jax.data.reading import Records
from asr_jax.data.records import Record
from asr_jax.decoding.long_audio import Window, Windows, pieces, windows_of
from asr_jax.decoding.seams import Heard, joined_windows, together
from asr_jax.decoding.transcript import Transcript, joined
from asr_jax.metrics.confidence import Calibration
from asr_jax.training.evaluate import Decoder, Emitted, recognise
from asr_jax.training.trained import Trained

AT_ONCE = 1024
"""Recordings that are planned and given out together."""


@dataclass(frozen=True)
class Transcribed:
    """What became of one recording."""

    record: Record
    transcript: Transcript | None
    """None where it could not be read."""
    reason: str = ""
    """Why not."""


class Transcriber:
    """A trained run with a decoder, for recordings of any length."""

    def __init__(
        self,
        trained: Trained,
        decoder: Decoder,
        *,
        window_s: float = 0.0,
        overlap_s: float | None = None,
        tell: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`window_s`: of long audio; 0: as long as the longest that was trained on. `overlap_s`: of windows; None: a
        third of one. `tell` is called with the seconds of audio that have been heard since.

        Raises: UserError for windows that do not go on.
        """
        model, rate_hz = trained.model, trained.model.front_end.rate_hz
        self.trained, self.decoder, self._tell = trained, decoder, tell
        self._calibration = decoder.calibration or Calibration()
        self._scale = scale_of(model.front_end, of_features=False)
        shapes = in_scale(trained.buckets, trained.scale, self._scale)
        size = round(window_s * rate_hz) or shapes[-1].longest
        overlap = None if overlap_s is None else round(overlap_s * rate_hz)
        self.windows = Windows.of(model, size, overlap=overlap)
        shapes = evaluation_buckets(shapes, size, hop=self._scale.hop, num_devices=trained.mesh.size)
        self.bucket = next(bucket for bucket in shapes if bucket.longest >= size)
        self.longest_s = max(size, shapes[-1].longest) / rate_hz
        """What is longer is heard by windows."""

    def __call__(self, records: Iterable[Record], *, threads: int = 2, at_once: int = AT_ONCE) -> Iterator[Transcribed]:
        """What became of each recording, in order; of `at_once`, the short ones are heard before any is given out.
        Records have durations and different ids."""
        for group in batched(records, at_once):
            short = self._short([record for record in group if not self._is_long(record)], threads)
            long = self.long(filter(self._is_long, group))
            for record in group:
                yield next(long) if self._is_long(record) else short[record.id]

    def _is_long(self, record: Record) -> bool:
        return not record.num_frames and record.duration_s > self.longest_s

    def _short(self, records: Sequence[Record], threads: int) -> dict[str, Transcribed]:
        """By id."""
        found = {record.id: Transcribed(record, None, "no samples") for record in records}
        # Labels and texts of a manifest are of no use here, and could only be refused.
        plain = [replace(record, text="", labels=None) for record in records if record.duration_s > 0]
        if plain:
            data = self.trained.plan(Records.of(plain))
            result = recognise(self.decoder, self.trained.variables, data, threads=threads)
            reasons = {entry["id"]: entry["reason"] for entry in result.skipped + data.dropped.entries}
            texts = {data.index.records[row].id: transcript for row, transcript in result.transcripts.items()}
            found |= {
                record.id: Transcribed(record, texts.get(record.id), reasons.get(record.id, ""))
                for record in records if record.duration_s > 0
            }  # fmt: skip
            self._tell(sum(record.duration_s for record in plain))
        return found

    def long(self, records: Iterable[Record]) -> Iterator[Transcribed]:
        """What became of each recording, by windows. No more is held than a batch of them, the best paths and, for a
        beam search, a batch of pieces."""
        for record, frames in self.frames(records):
            try:
                yield Transcribed(record, self._text(frames))
            except AudioError as error:
                yield Transcribed(record, None, error.reason)

    def frames(self, records: Iterable[Record]) -> Iterator[tuple[Record, Iterator[Heard]]]:
        """What the model makes of each recording, of any length, joined from windows, in parts: log-probabilities of
        all symbols where the decoder gives them or searches on them, else those of the best path. Asking for the next
        recording ends the parts of the one before; they raise AudioError where it cannot be read on."""
        heard = self._heard((record, window) for record in records for window in self._windows(record))
        for _, group in groupby(heard, key=lambda each: each[0].id):
            record, windows = _first(group)
            yield record, joined_windows(_whole(windows), blank_id=self.decoder.text.spelling.blank_id)

    def _windows(self, record: Record) -> Iterator[Window | AudioError]:
        """The error, as the last one, where the recording cannot be read on."""
        try:
            blocks = Location.parse(record.location).audio_blocks(rate_hz=int(self._scale.per_s))
            yield from windows_of(blocks, self.windows)
        except AudioError as error:
            yield error

    def _heard(
        self, windows: Iterable[tuple[Record, Window | AudioError]]
    ) -> Iterator[tuple[Record, Heard | AudioError]]:
        """Each window after the model, a batch ahead of what is asked for."""
        self.decoder.prepare([self.bucket], self._scale)
        before: tuple[Sequence[tuple[Record, Window | AudioError]], Emitted] | None = None
        for group in batched(windows, self.bucket.batch_size):
            samples = [window.samples for _, window in group if isinstance(window, Window)]
            batch = global_batch(_batch(samples, self.bucket), self.decoder.mesh)
            emitted = self.decoder(self.trained.variables, batch)
            if before:  # while the device has this one to do
                yield from self._rows(*before)
            before = group, emitted
        if before:
            yield from self._rows(*before)

    def _rows(
        self, group: Sequence[tuple[Record, Window | AudioError]], emitted: Emitted
    ) -> Iterator[tuple[Record, Heard | AudioError]]:
        every = emitted.log_probs or emitted.reduced
        if isinstance(every, Frames):
            logps = np.asarray(jax.device_get(every.values), np.float32)
            paths = logps.argmax(-1)
        else:
            paths, logps = jax.device_get(emitted.reduced)
        row = 0
        for record, window in group:
            if isinstance(window, AudioError):
                yield record, window
                continue
            num = int(self.trained.model.output_length(len(window.samples)))
            self._tell((self.windows.step if window.first_frame else len(window.samples)) / self._scale.per_s)
            yield record, Heard(window.first_frame, paths[row, :num], logps[row, :num])
            row += 1

    def _text(self, frames: Iterator[Heard]) -> Transcript:
        text, spelling = self.decoder.text, self.decoder.text.spelling
        if text.settings.kind == "greedy":
            whole = together(map(Heard.of_path, frames))
            (hypotheses,) = text.finish((whole.path[None], whole.logps[None]), [0])
            return text.transcript(hypotheses, self._calibration)
        most = int(self.trained.model.output_length(self.bucket.length))
        parts = [
            transcript
            for group in batched(pieces(frames, spelling, most_frames=most), self.bucket.batch_size)
            for transcript in self._searched(group, most)
        ]
        return joined(parts)

    def _searched(self, group: Sequence[Heard], num_frames: int) -> Iterator[Transcript]:
        """Pieces in the shape of a batch, for which the search is compiled already."""
        values = np.zeros((self.bucket.batch_size, num_frames, group[0].logps.shape[1]), np.float32)
        lengths = np.zeros(len(values), np.int32)
        for row, piece in enumerate(group):
            values[row, : len(piece.path)], lengths[row] = piece.logps, len(piece.path)
        text, searched = self.decoder.text, Frames(jnp.asarray(values), jnp.asarray(lengths))
        for piece, hypotheses in zip(group, text.finish(searched, range(len(group))), strict=True):
            transcript = text.transcript(hypotheses, self._calibration)
            yield transcript.shifted(piece.first_frame * text.frame_s)


def _batch(rows: Sequence[Int16[np.ndarray, "_"]], bucket: Bucket) -> Batch:
    num = bucket.batch_size
    audio, lengths = np.zeros((num, bucket.length), np.int16), np.zeros(num, np.int32)
    for row, samples in enumerate(rows):
        audio[row, : len(samples)], lengths[row] = samples, len(samples)
    weights = (np.arange(num) < len(rows)).astype(np.float32)
    records = np.where(weights > 0, np.arange(num), -1).astype(np.int32)
    return Batch(audio, None, lengths, np.zeros((num, 0), np.int32), np.zeros(num, np.int32), weights, records)


def _first(
    group: Iterator[tuple[Record, Heard | AudioError]],
) -> tuple[Record, Iterator[Heard | AudioError]]:
    """The recording of a group, and all of its windows."""
    record, window = next(group)
    return record, itertools.chain([window], (window for _, window in group))


def _whole(windows: Iterator[Heard | AudioError]) -> Iterator[Heard]:
    """Raises: AudioError where one stands for the rest."""
    for window in windows:
        if isinstance(window, AudioError):
            raise window
        yield window

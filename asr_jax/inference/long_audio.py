"""What a model makes of recordings of any length: windows in a shape of training, joined to one sequence of frames."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import batched, groupby
from typing import Any

import jax
import numpy as np
from jaxtyping import Int16

from asr_jax.audio.io import AudioError
from asr_jax.core.batch import Batch, Frames
from asr_jax.core.meshes import global_batch
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.evaluation import evaluation_buckets, in_scale
from asr_jax.data.batching.index import scale_of
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.records import Record
from asr_jax.inference.recognition import Decoder, Emitted
from asr_jax.inference.trained import Trained
from asr_jax.transcripts.seams import Heard, joined_windows
from asr_jax.transcripts.windows import Window, Windows, windows_of

READ_AHEAD = 2
"""Batches that are read while the device computes others."""
Part = tuple[Record, Window | AudioError]
HeardPart = tuple[Record, Heard | AudioError]


class LongAudio:
    """A trained run with a decoder, whose frames are asked for."""

    def __init__(
        self,
        trained: Trained,
        decoder: Decoder,
        *,
        window_s: float = 0.0,
        overlap_s: float | None = None,
        tell: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`window_s`: 0: as long as the longest that was trained on. `overlap_s`: of windows; None: a third of one.
        `tell` is called with the seconds of audio that have been heard since.

        Raises: UserError for windows that do not go on.
        """
        model, rate_hz = trained.model, trained.model.front_end.rate_hz
        self.trained, self.decoder, self._tell = trained, decoder, tell
        self._scale = scale_of(model.front_end, of_features=False)
        shapes = in_scale(trained.buckets, trained.scale, self._scale)
        size = round(window_s * rate_hz) or shapes[-1].longest
        overlap = None if overlap_s is None else round(overlap_s * rate_hz)
        self.windows = Windows.of(decoder.text.times, size, overlap=overlap)
        shapes = evaluation_buckets(shapes, size, hop=self._scale.hop, num_devices=trained.mesh.size)
        self.bucket = next(bucket for bucket in shapes if bucket.longest >= size)
        """The shape of windows."""
        self.longest_s = max(size, shapes[-1].longest) / rate_hz
        """What is longer does not fit the shapes of training, or a window that is longer than these."""

    def num_frames(self, num_samples: int) -> int:
        """Of the decoder's head."""
        model = self.trained.model
        return int(model.output_length(num_samples, tap=model.heads[self.decoder.head].tap))

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

    def _heard(self, windows: Iterable[Part]) -> Iterator[HeardPart]:
        """Each window after the model, a batch ahead of what is asked for."""
        self.decoder.prepare([self.bucket], self._scale)
        before: tuple[Sequence[Part], Emitted] | None = None
        for group in _ahead(batched(windows, self.bucket.batch_size), READ_AHEAD):
            samples = [window.samples for _, window in group if isinstance(window, Window)]
            batch = global_batch(_batch(samples, self.bucket), self.decoder.mesh)
            emitted = self.decoder(self.trained.variables, batch)
            if before:  # while the device has this one to do
                yield from self._rows(*before)
            before = group, emitted
        if before:
            yield from self._rows(*before)

    def _rows(self, group: Sequence[Part], emitted: Emitted) -> Iterator[HeardPart]:
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
            num = self.num_frames(len(window.samples))
            self._tell((self.windows.step if window.first_frame else len(window.samples)) / self._scale.per_s)
            yield record, Heard(window.first_frame, paths[row, :num], logps[row, :num])
            row += 1


def _batch(rows: Sequence[Int16[np.ndarray, "_"]], bucket: Bucket) -> Batch:
    num = bucket.batch_size
    audio, lengths = np.zeros((num, bucket.length), np.int16), np.zeros(num, np.int32)
    for row, samples in enumerate(rows):
        audio[row, : len(samples)], lengths[row] = samples, len(samples)
    weights = (np.arange(num) < len(rows)).astype(np.float32)
    records = np.where(weights > 0, np.arange(num), -1).astype(np.int32)
    return Batch(audio, None, lengths, np.zeros((num, 0), np.int32), np.zeros(num, np.int32), weights, records)


def _first(
    group: Iterator[HeardPart],
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


def _ahead[T](items: Iterator[T], number: int) -> Iterator[T]:
    """The same, with so many of them made before they are asked for, in a thread."""
    end: Any = object()
    with ThreadPoolExecutor(1) as pool:
        made: deque[Future[T]] = deque(pool.submit(next, items, end) for _ in range(number))
        while (item := made.popleft().result()) is not end:
            made.append(pool.submit(next, items, end))
            yield item

"""What a model makes of recordings of any length: windows in a shape of training, joined to one sequence of frames."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import batched, groupby
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int16

from asr_jax.audio.io import AudioError
from asr_jax.core.batch import Batch
from asr_jax.core.meshes import global_batch
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.evaluation import evaluation_buckets, in_scale
from asr_jax.data.batching.index import scale_of
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference.decoder import Decoder, Emitted
from asr_jax.inference.trained import Trained
from asr_jax.transcripts.seams import FrameLogProbs, Part, joined_windows
from asr_jax.transcripts.windows import Window, Windows, windows_of

READ_AHEAD = 2
"""Batches that are read while the device computes others."""
UtteranceWindow = tuple[Utterance, Window | AudioError]


class Emission(NamedTuple):
    """What the model and its search make of a window."""

    found: Part | None
    """Its tokens; None for a search with a stage on the host."""
    frames: FrameLogProbs | None
    """Its log-probabilities of CTC; None where they were not asked for."""

    @property
    def part(self) -> Part:
        assert self.found, "the search has a stage on the host"
        return self.found

    @property
    def log_probs(self) -> FrameLogProbs:
        assert self.frames, "the decoder was not made to give log-probabilities"
        return self.frames


UtteranceEmission = tuple[Utterance, Emission | AudioError]


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
        self.windows = Windows.of(decoder.search.writer.times, size, overlap=overlap)
        shapes = evaluation_buckets(shapes, size, hop=self._scale.hop, num_devices=trained.mesh.size)
        self.bucket = next(bucket for bucket in shapes if bucket.longest >= size)
        """The shape of windows."""
        self.longest_s = max(size, shapes[-1].longest) / rate_hz
        """What is longer does not fit the shapes of training, or a window that is longer than these."""

    def num_frames(self, num_samples: int) -> int:
        """Of the decoder's head."""
        model = self.trained.model
        return int(model.output_length(num_samples, tap=model.heads[self.decoder.head].tap))

    def emissions(self, utterances: Iterable[Utterance]) -> Iterator[tuple[Utterance, Iterator["Emission"]]]:
        """What the model and its search make of the windows of each recording, of any length. Asking for the next
        recording ends the windows of the one before; they raise AudioError where it cannot be read on.
        """
        emissions = self._emissions(
            (utterance, window) for utterance in utterances for window in self._windows(utterance)
        )
        for _, group in groupby(emissions, key=lambda each: each[0].id):
            utterance, windows = _first(group)
            yield utterance, _whole(windows)

    def frames(self, utterances: Iterable[Utterance]) -> Iterator[tuple[Utterance, Iterator[FrameLogProbs]]]:
        """Log-probabilities of CTC of each recording, joined from windows, in parts. The decoder gives
        log-probabilities, or its search has a stage on the host, which takes them.
        """
        for utterance, windows in self.emissions(utterances):
            yield utterance, self.joined(windows)

    def joined(self, windows: Iterable["Emission"]) -> Iterator[FrameLogProbs]:
        """The log-probabilities of windows of one recording, each frame once."""
        return joined_windows((each.log_probs for each in windows), blank_id=self.decoder.tokenizer.blank_id)

    def _windows(self, utterance: Utterance) -> Iterator[Window | AudioError]:
        """The error, as the last one, where the recording cannot be read on."""
        try:
            blocks = Location.parse(utterance.location).audio_blocks(rate_hz=int(self._scale.per_s))
            yield from windows_of(blocks, self.windows)
        except AudioError as error:
            yield error

    def _emissions(self, windows: Iterable[UtteranceWindow]) -> Iterator["UtteranceEmission"]:
        """Each window after the model, a batch ahead of what is asked for."""
        self.decoder.prepare([self.bucket], self._scale)
        before: tuple[Sequence[UtteranceWindow], Emitted] | None = None
        for group in _ahead(batched(windows, self.bucket.batch_size), READ_AHEAD):
            samples = [window.samples for _, window in group if isinstance(window, Window)]
            batch = global_batch(_batch(samples, self.bucket), self.decoder.mesh)
            emitted = self.decoder(self.trained.variables, batch)
            if before:  # while the device has this one to do
                yield from self._rows(*before)
            before = group, emitted
        if before:
            yield from self._rows(*before)

    def _rows(self, group: Sequence[UtteranceWindow], emitted: Emitted) -> Iterator["UtteranceEmission"]:
        """Each window with its row of a batch."""
        num_rows = sum(isinstance(window, Window) for _, window in group)
        has_stage = self.decoder.search.stage is not None
        every = emitted.found if has_stage else emitted.log_probs
        logps = None if every is None else np.asarray(jax.device_get(every.values), np.float32)
        found = [] if has_stage else self.decoder.search.sequences(emitted.found, range(num_rows))
        row = 0
        for utterance, window in group:
            if isinstance(window, AudioError):
                yield utterance, window
                continue
            num, first = self.num_frames(len(window.samples)), window.first_frame
            self._tell((self.windows.step if first else len(window.samples)) / self._scale.per_s)
            yield (
                utterance,
                Emission(
                    None if has_stage else _moved(found[row][0], first, first + num),
                    None if logps is None else FrameLogProbs(first, logps[row, :num].argmax(-1), logps[row, :num]),
                ),
            )
            row += 1


def _batch(rows: Sequence[Int16[np.ndarray, "_"]], bucket: Bucket) -> Batch:
    num = bucket.batch_size
    audio, lengths = np.zeros((num, bucket.length), np.int16), np.zeros(num, np.int32)
    for row, samples in enumerate(rows):
        audio[row, : len(samples)], lengths[row] = samples, len(samples)
    weights = (np.arange(num) < len(rows)).astype(np.float32)
    utterances = np.where(weights > 0, np.arange(num), -1).astype(np.int32)
    return Batch(audio, None, lengths, np.zeros((num, 0), np.int32), np.zeros(num, np.int32), weights, utterances)


def _moved(sequence: TokenSequence, first_frame: int, end_frame: int) -> Part:
    """The tokens of a window, counted as the recording counts its frames."""
    starts, ends = (tuple(frame + first_frame for frame in each) for each in (sequence.starts, sequence.ends))
    return Part(first_frame, end_frame, sequence._replace(starts=starts, ends=ends))


def _first(
    group: Iterator[UtteranceEmission],
) -> tuple[Utterance, Iterator[Emission | AudioError]]:
    """The recording of a group, and all of its windows."""
    utterance, window = next(group)
    return utterance, itertools.chain([window], (window for _, window in group))


def _whole(windows: Iterator[Emission | AudioError]) -> Iterator[Emission]:
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

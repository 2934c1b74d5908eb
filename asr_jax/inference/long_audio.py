"""Recordings of any length: windows as long as the utterances of training, joined to one sequence of frames."""

import itertools
import math
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
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import global_batch
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.index import scale_of
from asr_jax.data.batching.limits import bucket_of
from asr_jax.data.manifests.durations import UtteranceBlocks
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference.decoder import Decoder, Emitted
from asr_jax.inference.trained import Trained
from asr_jax.transcripts.seams import FrameLogProbs, WindowPart, joined_windows
from asr_jax.transcripts.windows import AudioWindow, Windows, windows_of

READ_AHEAD = 2
"""Number of batches that are read while the device computes others."""
UtteranceWindow = tuple[Utterance, AudioWindow | AudioError]


class Emission(NamedTuple):
    """Output of the model and its search for one window."""

    found: WindowPart | None
    """Tokens; None if the search takes frames (see `HostStage`)."""
    frames: FrameLogProbs | None
    """CTC log-probabilities; None if the decoder does not compute them."""

    @property
    def part(self) -> WindowPart:
        assert self.found, "the search takes frames"
        return self.found

    @property
    def log_probs(self) -> FrameLogProbs:
        assert self.frames, "the decoder does not compute log-probabilities"
        return self.frames


UtteranceEmission = tuple[Utterance, Emission | AudioError]


class LongAudio:
    """A trained run with a decoder, applied to recordings in windows."""

    def __init__(
        self,
        trained: Trained,
        decoder: Decoder,
        *,
        window_s: float = 0.0,
        overlap_s: float | None = None,
        tell: Callable[[float], None] = lambda seconds: None,
        read: Callable[[Utterance, int], UtteranceBlocks] = UtteranceBlocks,
    ) -> None:
        """Initialises without compiling.

        Args:
            window_s: Length of a window in seconds. 0: the longest utterance of training, or the longest audio that is
                computed at once if this is shorter.
            overlap_s: Overlap of windows in seconds. None: a third of a window.
            tell: Called with the seconds of audio that were computed since the last call.
            read: Returns the audio of a recording at a sample rate in Hz.

        Raises:
            UserError: If the overlap does not fit the windows, a window is longer than the longest audio that is
                computed at once, or there are state resets with other windows or with a search that takes frames.
        """
        model, rate_hz, limits = trained.model, trained.model.front_end.rate_hz, trained.limits
        if resets := trained.resets:
            if window_s or overlap_s is not None:
                raise UserError("windows and state resets are given: expected the windows of state resets alone")
            if decoder.search.takes_frames:
                raise UserError(
                    f"state resets join tokens, and the decoding {decoder.search.decoding} searches in joined frames: "
                    "expected greedy decoding, or a transducer"
                )
            window_s, overlap_s = resets.window_s, resets.overlap_s
        self.trained, self.decoder, self._tell, self._read = trained, decoder, tell, read
        self._scale = scale_of(model.front_end, of_features=False)
        if window_s > limits.longest_s:
            raise UserError(
                f"windows of {window_s:g} s are longer than the longest audio that is computed at once, "
                f"{limits.longest_s:g} s: expected windows of at most that length, or raise --max-duration"
            )
        window_s = window_s or min(trained.longest_s, limits.longest_s)
        size = round(window_s * rate_hz)
        overlap = None if overlap_s is None else round(overlap_s * rate_hz)
        self.windows = Windows.of(decoder.search.writer.times, size, overlap=overlap, is_last_full=not resets)
        self.longest_s = limits.longest_s if limits.longest_s < math.inf else max(window_s, trained.longest_s)
        if resets:
            self.longest_s = window_s
        """Longest audio in seconds that is not computed in windows."""
        self.bucket = self._bucket(1)
        """Shape of batches of windows."""
        self._computed = 0
        """Number of samples of the current recording that `tell` was called with."""
        self.blocks: dict[str, UtteranceBlocks] = {}
        """Audio of the recordings by id. Its duration is known after the last window of a recording."""

    def _bucket(self, num_windows: int) -> Bucket:
        size = self.windows.size
        rows = self.trained.limits.rows_of(size / self._scale.per_s, num_windows, num_devices=self.decoder.mesh.size)
        return bucket_of(size, rows, self._scale)

    def make_room(self, utterances: Iterable[Utterance]) -> None:
        """Chooses the number of rows for the windows of recordings. It never decreases, so that few shapes are used."""
        size, step, per_s = self.windows.size, self.windows.step, self._scale.per_s
        seconds = np.array([utterance.duration_s for utterance in utterances])
        samples = np.nan_to_num(seconds, nan=0.0, posinf=0.0) * per_s
        num_windows = int(np.sum(np.maximum(np.ceil((samples - size) / step), 0) + 1))
        self.bucket = max(self.bucket, self._bucket(num_windows), key=lambda bucket: bucket.batch_size)

    def prepare(self) -> None:
        """Starts to compile for the shape of batches of windows."""
        self.decoder.prepare([self.bucket], self._scale)

    def num_frames(self, num_samples: int) -> int:
        """Returns the number of frames of the decoder's head for a number of samples."""
        model = self.trained.model
        return int(model.output_length(num_samples, tap=model.heads[self.decoder.head].tap))

    def emissions(self, utterances: Iterable[Utterance]) -> Iterator[tuple[Utterance, Iterator["Emission"]]]:
        """Computes the windows of recordings of any length.

        Yields each recording with an iterator over its windows. The iterator raises an AudioError if the audio cannot
        be read to its end. The next recording invalidates the iterator of the previous one.
        """
        known = list(utterances)
        self.make_room(known)
        emissions = self._emissions((utterance, window) for utterance in known for window in self._windows(utterance))
        for _, group in groupby(emissions, key=lambda each: each[0].id):
            utterance, windows = _first(group)
            yield utterance, _whole(windows)

    def frames(self, utterances: Iterable[Utterance]) -> Iterator[tuple[Utterance, Iterator[FrameLogProbs]]]:
        """Computes the CTC log-probabilities of recordings, joined from windows.

        The decoder must compute log-probabilities, or its search must take frames (see `HostStage`). Yields each
        recording with an iterator over consecutive parts.
        """
        for utterance, windows in self.emissions(utterances):
            yield utterance, self.joined(windows)

    def joined(self, windows: Iterable["Emission"]) -> Iterator[FrameLogProbs]:
        """Joins the log-probabilities of the windows of one recording, with each frame once."""
        return joined_windows((each.log_probs for each in windows), blank_id=self.decoder.tokenizer.blank_id)

    def _windows(self, utterance: Utterance) -> Iterator[AudioWindow | AudioError]:
        """Yields the windows of a recording. If the audio cannot be read to its end, the last item is the error."""
        self.blocks[utterance.id] = blocks = self._read(utterance, int(self._scale.per_s))
        try:
            yield from windows_of(blocks, self.windows)
        except AudioError as error:
            yield error

    def _emissions(self, windows: Iterable[UtteranceWindow]) -> Iterator["UtteranceEmission"]:
        """Computes windows. The device computes one batch while the results of the previous one are yielded."""
        self.prepare()
        before: tuple[Sequence[UtteranceWindow], Emitted] | None = None
        for group in _ahead(batched(windows, self.bucket.batch_size), READ_AHEAD):
            samples = [window.samples for _, window in group if isinstance(window, AudioWindow)]
            batch = global_batch(batch_of(samples, self.bucket), self.decoder.mesh)
            emitted = self.decoder(self.trained.variables, batch)
            if before:  # while the device computes this batch
                yield from self._rows(*before)
            before = group, emitted
        if before:
            yield from self._rows(*before)

    def _rows(self, group: Sequence[UtteranceWindow], emitted: Emitted) -> Iterator["UtteranceEmission"]:
        """Yields each window with its row of a batch."""
        num_rows = sum(isinstance(window, AudioWindow) for _, window in group)
        by_frames = self.decoder.search.takes_frames
        every = emitted.found if by_frames else emitted.log_probs
        logps = None if every is None else np.asarray(jax.device_get(every.values), np.float32)
        found = [] if by_frames else self.decoder.search.sequences(emitted.found, range(num_rows))
        row = 0
        for utterance, window in group:
            if isinstance(window, AudioError):
                yield utterance, window
                continue
            num, first = self.num_frames(len(window.samples)), window.first_frame
            end = first * self.windows.per_frame + len(window.samples)
            self._tell((end - (self._computed if first else 0)) / self._scale.per_s)
            self._computed = end
            yield (
                utterance,
                Emission(
                    None if by_frames else _moved(found[row][0], first, first + num),
                    None if logps is None else FrameLogProbs(first, logps[row, :num].argmax(-1), logps[row, :num]),
                ),
            )
            row += 1


def batch_of(rows: Sequence[Int16[np.ndarray, "_"]], bucket: Bucket) -> Batch:
    """Returns a batch of samples without labels. Utterances are numbered in order; the other rows are padding."""
    num = bucket.batch_size
    audio, lengths = np.zeros((num, bucket.length), np.int16), np.zeros(num, np.int32)
    for row, samples in enumerate(rows):
        audio[row, : len(samples)], lengths[row] = samples, len(samples)
    weights = (np.arange(num) < len(rows)).astype(np.float32)
    utterances = np.where(weights > 0, np.arange(num), -1).astype(np.int32)
    return Batch(audio, None, lengths, np.zeros((num, 0), np.int32), np.zeros(num, np.int32), weights, utterances)


def _moved(sequence: TokenSequence, first_frame: int, end_frame: int) -> WindowPart:
    """Returns the tokens of a window with frame numbers of the recording."""
    starts, ends = (tuple(frame + first_frame for frame in each) for each in (sequence.starts, sequence.ends))
    return WindowPart(first_frame, end_frame, sequence._replace(starts=starts, ends=ends))


def _first(group: Iterator[UtteranceEmission]) -> tuple[Utterance, Iterator[Emission | AudioError]]:
    """Returns the recording of a group, and all of its windows."""
    utterance, window = next(group)
    return utterance, itertools.chain([window], (window for _, window in group))


def _whole(windows: Iterator[Emission | AudioError]) -> Iterator[Emission]:
    """Yields windows, and raises the AudioError that replaces those that cannot be read."""
    for window in windows:
        if isinstance(window, AudioError):
            raise window
        yield window


def _ahead[T](items: Iterator[T], number: int) -> Iterator[T]:
    """Yields the items of an iterator, of which a thread computes `number` in advance."""
    end: Any = object()
    with ThreadPoolExecutor(1) as pool:
        made: deque[Future[T]] = deque(pool.submit(next, items, end) for _ in range(number))
        while (item := made.popleft().result()) is not end:
            made.append(pool.submit(next, items, end))
            yield item

"""The thread that owns the device: recordings in batches of compiled shapes, long ones in windows, and streams."""

import contextlib
import itertools
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int16

from asr_jax.core.errors import UserError
from asr_jax.core.meshes import global_batch
from asr_jax.core.names import counted
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.index import scale_of
from asr_jax.data.manifests.durations import UtteranceBlocks
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference.decoder import Decoder, Emitted
from asr_jax.inference.endpoints import Endpoints
from asr_jax.inference.long_audio import batch_of
from asr_jax.inference.streaming import Streamer, StreamProgram, StreamResult
from asr_jax.inference.trained import Trained
from asr_jax.inference.transcription import Transcriber
from asr_jax.serving.metrics import Metrics
from asr_jax.serving.shapes import MANY, Shapes
from asr_jax.transcripts.transcript import Transcript

BLOCK_S = 10
"""Seconds of audio in a block of a long recording."""
FIRST_SPEED = 1.0
"""Seconds of audio that are recognised in a second, until this is measured."""
MEMORY = 0.8
"""Share of the former value in the moving average of the speed."""


@dataclass(frozen=True)
class Recognised:
    """Result for one recording."""

    transcript: Transcript
    duration_s: float
    """Duration of the samples in seconds."""


@dataclass(eq=False)
class Waiting:
    """A recording that waits for the device."""

    samples: Int16[np.ndarray, " S"]
    duration_s: float
    future: Future[Recognised] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)
    """Time at which it was added in seconds of `time.monotonic`."""


@dataclass(eq=False)
class Feed:
    """The next samples of a stream."""

    stream: int
    samples: Int16[np.ndarray, " S"]
    is_last: bool
    future: Future[list[StreamResult]] = field(default_factory=Future)


class Abandoned(Exception):
    """Raised in the windows of a recording whose request has ended."""


class HeldBlocks(UtteranceBlocks):
    """Audio of a recording in memory, in blocks."""

    def __init__(self, utterance: Utterance, rate_hz: int, samples: Int16[np.ndarray, " S"]) -> None:
        super().__init__(utterance, rate_hz)
        self._samples = samples

    def __iter__(self) -> Iterator[Int16[np.ndarray, " S"]]:
        for first in range(0, len(self._samples), BLOCK_S * self.rate_hz):
            yield self._counted(self._samples[first : first + BLOCK_S * self.rate_hz])


class DeviceThread(threading.Thread):
    """Recognises recordings and streams; other threads only get futures.

    Recordings wait in order. While a long one is computed in windows, short ones get every second turn.
    """

    def __init__(
        self, trained: Trained, decoder: Decoder, metrics: Metrics, *, num_streams: int, endpoints: Endpoints
    ) -> None:
        """Initialises without compiling.

        Args:
            num_streams: Largest number of streams at a time, if the model streams.
        """
        super().__init__(name="device", daemon=True)
        self._decoder, self._variables, self._metrics = decoder, trained.variables, metrics
        self._transcriber = Transcriber(trained, decoder, tell=self._give_way, read=self._blocks)
        self.longest_s = self._transcriber.longest_s
        """Longest audio in seconds that is computed at once."""
        self._scale = scale_of(trained.model.front_end, of_features=False)
        self.rate_hz = int(self._scale.per_s)
        """Sample rate of recordings and streams in Hz."""
        self._shapes = Shapes.of(trained.limits, self.longest_s, self._scale, num_devices=decoder.mesh.size)
        self._trained, self._num_streams, self._endpoints = trained, num_streams, endpoints
        self._streamer: Streamer | None = None
        self.why_no_streams = "streams are switched off"
        """Why the model itself does not recognise streams; empty if it does."""
        self._changed = threading.Condition()
        self._short, self._long = deque[Waiting](), deque[Waiting]()
        self._openings, self._feeds = deque[Future[int]](), deque[Feed]()
        self._before: tuple[Sequence[Waiting], Emitted] | None = None
        self._computing: Waiting | None = None
        """The recording that is computed in windows."""
        self._others_took_s, self._others_ended, self._finished = 0.0, 0.0, 0.0
        self._speed = FIRST_SPEED
        self._is_stopping = False
        self.is_ready = threading.Event()
        """Whether all shapes are compiled."""
        self.failure: BaseException | None = None
        """Why the thread has ended, if it failed."""

    # Called by other threads.

    def recognise(self, samples: Int16[np.ndarray, " S"], *, header_s: float | None = None) -> Future[Recognised]:
        """Adds a recording. A cancelled future takes it away.

        Args:
            header_s: Duration in the header of its file, by which it is long or short. None: that of the samples.
        """
        duration_s = len(samples) / self.rate_hz
        waiting = Waiting(samples, duration_s)
        is_long = (duration_s if header_s is None else header_s) > self.longest_s
        with self._changed:
            (self._long if is_long else self._short).append(waiting)
            self._changed.notify()
        return waiting.future

    def open_stream(self) -> Future[int]:
        """Opens a stream of a model that streams.

        Returns:
            Its number. The future has a UserError if too many streams are open.
        """
        future = Future[int]()
        with self._changed:
            self._openings.append(future)
            self._changed.notify()
        return future

    def feed(
        self, stream: int, samples: Int16[np.ndarray, " S"], *, is_last: bool = False
    ) -> Future[list[StreamResult]]:
        """Adds the next samples of a stream, or its last ones, and returns the results of their windows."""
        feed = Feed(stream, samples, is_last)
        with self._changed:
            self._feeds.append(feed)
            self._changed.notify()
        return feed.future

    @property
    def waiting_s(self) -> float:
        """Duration in seconds of the recordings that wait."""
        with self._changed:
            return sum(each.duration_s for each in (*self._short, *self._long) if not each.future.cancelled())

    @property
    def delay_s(self) -> float:
        """Estimated time in seconds until the recordings that wait are recognised."""
        return self.waiting_s / self._speed

    def stop(self, seconds: float) -> None:
        """Ends the thread after its present batch, and waits for it some seconds."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self.join(seconds)

    # Within the thread.

    def run(self) -> None:
        try:
            self._prepare()
            self.is_ready.set()
            while self._wait():
                self._step_streams()
                if not self._step_short() and self._long:
                    self._compute_long(self._long.popleft())
        except BaseException as error:
            traceback.print_exc()
            self.failure = error
            self.is_ready.clear()

    def _prepare(self) -> None:
        """Compiles all shapes, and the program of streams."""
        long_audio = self._transcriber.long_audio
        # So many windows have the largest batch, and no recording changes the shape later.
        long_audio.make_room([Utterance("", "", duration_s=self.longest_s * MANY)])
        shapes, number = list(dict.fromkeys([*self._shapes.all, long_audio.bucket])), itertools.count(1)
        print(f"compiling {counted(len(shapes), 'batch shape')}; later starts load them from a cache", file=sys.stderr)
        for bucket in shapes:
            self._decoder.prepare([bucket], self._scale)
            compiled = [*self._decoder.programs.compiled.values()][-1]
            compiled.add_done_callback(lambda _: print(f"compiled {next(number)} of {len(shapes)}", file=sys.stderr))
        if self._num_streams:
            try:
                program = StreamProgram(self._trained, self._decoder, num_rows=self._num_streams)
                self._streamer, self.why_no_streams = Streamer(program, endpoints=self._endpoints), ""
            except UserError as error:
                self.why_no_streams = str(error)
        self._decoder.wait()

    def _wait(self) -> bool:
        """Waits for work. Returns False if the thread is to end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_stopping or self._short or self._long or self._openings or self._feeds or self._before
            )
            return not self._is_stopping

    def _step_streams(self) -> None:
        """Computes the windows of all streams whose samples have arrived."""
        with self._changed:
            openings, feeds = list(self._openings), list(self._feeds)
            self._openings.clear()
            self._feeds.clear()
        streamer = self._streamer
        for opening in openings:
            with answering(opening):
                assert streamer, self.why_no_streams
                opening.set_result(streamer.begin())
        if not feeds or not streamer:
            return
        taken = list[Feed]()
        for feed in feeds:
            with answering(feed.future):
                streamer.feed(feed.stream, feed.samples)
                if feed.is_last:
                    streamer.end(feed.stream)
                taken.append(feed)
        results = defaultdict[int, list[StreamResult]](list)
        with answering(*(feed.future for feed in taken)):
            for result in streamer.results():
                results[result.stream].append(result)
            for feed in taken:
                feed.future.set_result(results[feed.stream])

    def _step_short(self) -> bool:
        """Starts a batch of short recordings, and finishes the one before. Returns whether there was one to do."""
        found, emitted = self._next_batch(), None
        if not found and not self._before:
            return False
        bucket, batch = found or (None, [])
        with answering(*(each.future for each in batch)):
            if bucket:
                rows = [each.samples[: bucket.length] for each in batch]
                given = global_batch(batch_of(rows, bucket), self._decoder.mesh)
                emitted = self._decoder(self._variables, given)
                self._metrics.batches.inc()
                self._metrics.rows.inc(len(rows))
                self._metrics.computed_seconds.inc(bucket.length * bucket.batch_size / self.rate_hz)
        self._finish()
        self._before = (batch, emitted) if emitted else None
        return True

    def _finish(self) -> None:
        """Answers the recordings of the batch that was started last."""
        if not self._before:
            return
        (batch, emitted), self._before = self._before, None
        with answering(*(each.future for each in batch)):
            found = self._decoder.finish(emitted)
            for row, each in enumerate(batch):
                self._answer(each, found[row])
        now = time.monotonic()
        self._measure(sum(each.duration_s for each in batch), now - max(self._finished, batch[0].since))
        self._finished = now

    def _next_batch(self) -> tuple[Bucket, list[Waiting]] | None:
        """Takes the recordings of the next batch from the queue. Returns None if no recording waits."""
        with self._changed:
            waiting = [each for each in self._short if not each.future.cancelled()]
            self._short = deque(waiting)
            if not waiting:
                return None
            bucket, rows = self._shapes.chosen([len(each.samples) for each in waiting])
            taken = set(rows)
            self._short = deque(each for row, each in enumerate(waiting) if row not in taken)
        return bucket, [waiting[row] for row in rows]

    def _compute_long(self, waiting: Waiting) -> None:
        """Computes a recording in windows."""
        if waiting.future.cancelled():
            return
        self._computing, began = waiting, time.monotonic()
        self._others_took_s = 0.0
        with answering(waiting.future):
            named = Utterance("", "", duration_s=waiting.duration_s)
            for each in self._transcriber.of_windows([named]):
                assert each.transcript, each.reason
                self._answer(waiting, each.transcript)
        self._computing = None
        self._measure(waiting.duration_s, time.monotonic() - began)

    def _blocks(self, utterance: Utterance, rate_hz: int) -> UtteranceBlocks:
        assert self._computing
        return HeldBlocks(utterance, rate_hz, self._computing.samples)

    def _give_way(self, seconds: float) -> None:
        """Computes streams, and a batch of short recordings if they have had less time than the long one."""
        if self._is_stopping or (self._computing and self._computing.future.cancelled()):
            raise Abandoned
        self._step_streams()
        began = time.monotonic()
        if began - self._others_ended >= self._others_took_s and self._step_short():
            self._finish()
            self._others_ended = time.monotonic()
            self._others_took_s = self._others_ended - began

    def _answer(self, waiting: Waiting, transcript: Transcript) -> None:
        with contextlib.suppress(InvalidStateError):  # it was cancelled
            waiting.future.set_result(Recognised(transcript, waiting.duration_s))
        self._metrics.audio_seconds.inc(waiting.duration_s)

    def _measure(self, audio_s: float, took_s: float) -> None:
        self._speed = MEMORY * self._speed + (1 - MEMORY) * audio_s / max(took_s, 1e-6)


@contextlib.contextmanager
def answering(*futures: Future) -> Iterator[None]:
    """Gives an error of the block to futures that have no result, and prints it unless it is one of the user."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, UserError | Abandoned | InvalidStateError):
            traceback.print_exc()
        for future in futures:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)

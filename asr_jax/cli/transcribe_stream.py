"""Recognition of one input while it arrives, for the command `asr_jax.transcribe`."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import numpy as np
from jaxtyping import Int16
from tyro.conf import arg

from asr_jax.audio.io import is_stream, probe, stream_audio
from asr_jax.audio.mono import SILENT, Remarks
from asr_jax.audio.pipe import PipedAudio
from asr_jax.audio.streaming import StreamResampler
from asr_jax.core.errors import UserError
from asr_jax.core.interrupts import terminable
from asr_jax.core.settings import NonNegativeFloat, between, command_options
from asr_jax.core.text_files import json_line
from asr_jax.data.manifests.audio_inputs import STDIN, STDIN_NAME
from asr_jax.inference.decoder import Decoder
from asr_jax.inference.endpoints import ENDPOINTS, Endpoints
from asr_jax.inference.streaming import Streamer, StreamProgram, StreamResult
from asr_jax.inference.trained import Trained

CLEAR = "\r\x1b[K"
"""Sequence that removes the present line of a terminal."""


@command_options
class StreamOptions:
    """Options of streams."""

    stream: bool = False
    """Recognise one input while it arrives, with a model that streams. With --json, partial results are printed too."""
    rate_hz: Annotated[Annotated[int, between(1000, 655_350)] | None, arg(metavar="HZ")] = None
    """Sample rate of raw samples of a stream in Hz. Default: that of the model."""
    silence_seconds: Annotated[NonNegativeFloat, arg(metavar="S")] = ENDPOINTS.silence_s
    """Silence without any text in seconds after which an utterance of a stream ends; 0: this rule is off."""
    pause_seconds: Annotated[NonNegativeFloat, arg(metavar="S")] = ENDPOINTS.pause_s
    """Silence after text in seconds after which an utterance of a stream ends; 0: this rule is off."""
    longest_seconds: Annotated[NonNegativeFloat, arg(metavar="S")] = ENDPOINTS.longest_s
    """Duration in seconds after which an utterance of a stream ends; 0: this rule is off."""

    @property
    def endpoints(self) -> Endpoints:
        """The rules of the three options."""
        return Endpoints(self.silence_seconds, self.pause_seconds, self.longest_seconds)


def transcribe_stream(trained: Trained, decoder: Decoder, given: str, options: StreamOptions, *, as_json: bool) -> None:
    """Recognises an input, and prints results as soon as they are known.

    If the command is interrupted or terminated, or the input cannot be read any further, results so far are printed.

    Args:
        given: Path of an audio file or of a pipe, or - for standard input.

    Raises:
        UserError: If the model cannot stream, or `rate_hz` contradicts the header of a pipe.
        Terminated: If the command gets SIGTERM.
        AudioError: If the input cannot be read.
    """
    if not is_pipe(given):
        probe(given)
    streamer = Streamer(StreamProgram(trained, decoder), endpoints=options.endpoints)
    stream, output, remarks = streamer.begin(), _Output(as_json=as_json), Remarks()
    if is_pipe(given):
        print("ready", file=sys.stderr, flush=True)
    try:
        with terminable():
            for samples in _samples(given, streamer.rate_hz, options.rate_hz, remarks):
                streamer.feed(stream, samples)
                output.write(streamer.run())
    finally:
        streamer.end(stream)
        output.write(streamer.run())
    if remarks.is_silent:
        remarks.reasons.append(SILENT)
    for reason in remarks.reasons:
        print(f"warning: {_name(given)}: {reason}", file=sys.stderr)
    if not output.has_text:
        print(f"no word was recognised in {_name(given)}", file=sys.stderr)


def is_pipe(given: str) -> bool:
    """Whether an input is standard input or a pipe."""
    return given == STDIN or is_stream(given)


def _samples(given: str, rate_hz: int, raw_hz: int | None, remarks: Remarks) -> Iterator[Int16[np.ndarray, " S"]]:
    """Yields the samples of an input at `rate_hz`."""
    if not is_pipe(given):
        yield from stream_audio(given, rate_hz=rate_hz, remarks=remarks, block_s=1)
        return
    with _opened(given) as read:
        piped = PipedAudio(read, _name(given), rate_hz=raw_hz or rate_hz, remarks=remarks)
        if raw_hz and piped.samples.rate_hz != raw_hz:
            raise UserError(
                f"--rate-hz {raw_hz} with {_name(given)}, a WAV file at {piped.samples.rate_hz} Hz: leave --rate-hz "
                "out; it belongs to raw samples"
            )
        resampled = StreamResampler(piped.samples.rate_hz, rate_hz)
        for block in piped:
            yield resampled(block)
        yield resampled(np.zeros(0, np.int16), is_last=True)


def _name(given: str) -> str:
    return STDIN_NAME if given == STDIN else given


@contextmanager
def _opened(given: str) -> Iterator[Callable[[int], bytes]]:
    """Yields a function that waits for bytes of a pipe, and returns at most a number of them."""
    if given != STDIN:
        with open(given, "rb", buffering=0) as pipe:
            yield pipe.read
        return
    if not sys.stdin:
        raise UserError("-: standard input is closed: expected raw 16-bit samples or a WAV file")
    with suppress(OSError, AttributeError):  # an object in the place of standard input has no descriptor
        os.set_blocking(sys.stdin.fileno(), True)  # otherwise a pause would look like the end
    read: Callable[[int], bytes] = sys.stdin.buffer.read1  # type: ignore[union-attr]
    yield read


class _Output:
    """Prints results: lines of JSON, or the text of each utterance as a line.

    A terminal shows the text so far, as much of its end as fits a line, in the place of the line.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._rewrites = not as_json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.has_text = False
        """Whether a final result had a text."""

    def write(self, results: Iterable[StreamResult]) -> None:
        """Prints each result as soon as it is known."""
        for each in results:
            self.has_text |= each.is_final and bool(each.transcript.text)
            print(self._text(each), end="", flush=True)

    def _text(self, result: StreamResult) -> str:
        text, clear = result.transcript.text, CLEAR * self._rewrites
        if self._as_json:
            return json_line(result.to_json())
        if result.is_final:
            return f"{clear}{text}\n" if text else clear
        return clear + text[1 - shutil.get_terminal_size().columns :] if self._rewrites else ""

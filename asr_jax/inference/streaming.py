"""Recognition of streams: front-end, encoder and search of a trained run over windows, many streams in one batch."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Int, Int16

from asr_jax.audio.streaming import FeatureWindows, SampleBuffer
from asr_jax.core.devices import local_devices
from asr_jax.core.errors import UserError
from asr_jax.core.interrupts import uninterrupted
from asr_jax.core.meshes import abstract_on, mesh_of, replicated
from asr_jax.core.pytrees import Tree
from asr_jax.inference.decoder import Decoder
from asr_jax.inference.endpoints import ENDPOINTS, Endpoints
from asr_jax.inference.model import programs_of
from asr_jax.inference.trained import Trained
from asr_jax.search.base import StreamSearch
from asr_jax.search.beam_stage import num_common
from asr_jax.transcripts.transcript import Transcript, to_json


@dataclass(frozen=True)
class StreamResult:
    """Text of an utterance of a stream, so far or final."""

    stream: int
    """Number of the stream, from `Streamer.begin`."""
    transcript: Transcript
    """Words with times since the beginning of the stream."""
    is_final: bool
    """Whether the utterance has ended."""
    num_settled: int
    """Number of first characters of the text that further audio does not change."""

    def to_json(self) -> dict[str, Any]:
        """Returns a result for JSON: type, text, start and end, and the fields of `transcript.to_json`.

        Partial results also have `settled`, the part of the text that further audio does not change.
        """
        of_words = to_json(self.transcript)
        fields: dict[str, Any] = {"type": "final" if self.is_final else "partial", "text": self.transcript.text}
        if not self.is_final:
            fields["settled"] = self.transcript.text[: self.num_settled]
        words = of_words["words"]
        fields["start_s"], fields["end_s"] = (words[0]["start_s"], words[-1]["end_s"]) if words else (None, None)
        return fields | of_words


@dataclass
class _Row:
    """A stream in a row of the batch."""

    stream: int
    buffer: SampleBuffer
    begins: bool = True
    """Whether the next window is the first one of the stream."""
    begins_text: bool = True
    """Whether the next output frame is the first one of an utterance."""
    first_frame: int = 0
    """Output frame of the stream at which the utterance begins."""
    num_frames: int = 0
    """Number of output frames of the utterance so far."""
    shown: str = ""
    """Text of the last partial result."""
    tokens: tuple[int, ...] = ()
    """Tokens of the text."""


class StreamProgram:
    """The compiled program of the windows of a trained run's streams. It has no state; several `Streamer` can use it.

    The program and the variables are on the first device of this process.
    """

    def __init__(self, trained: Trained, decoder: Decoder, *, num_rows: int = 1) -> None:
        """Compiles the program.

        Args:
            decoder: Decoder of texts, with its head, search and calibration.
            num_rows: Largest number of streams of a `Streamer` at a time.

        Raises:
            UserError: If the front-end, the encoder, the head or the search cannot recognise a stream.
        """
        model = trained.model
        of_head: dict[str, Any] = {"head": decoder.head, "decoding": decoder.search.decoding}
        window = model.encoder.stream_window
        windows = FeatureWindows(model.front_end, window.size, window.shift, window.before)
        self.windows, self.decoder, self.num_rows = windows, decoder, num_rows
        self._blank_id = trained.tokenizer.blank_id
        mesh = mesh_of(local_devices()[:1])
        self._device = replicated(mesh)
        self._variables = jax.device_put(trained.variables, self._device)
        self.search()  # refuses a search that cannot recognise streams before the program is compiled

        def step(
            variables: Tree,
            state: Tree,
            samples: Int16[Array, "B S"],
            places: Int[Array, "2 B"],
            begins: Bool[Array, "2 B"],
        ) -> Tree:
            frames = windows(samples, places[0], places[1])
            return model.apply(
                variables, state, frames, begins=begins[0], begins_text=begins[1], method="stream", **of_head
            )

        def initial(variables: Tree) -> Tree:
            return model.apply(variables, num_rows, method="initial_state", **of_head)

        self._state = jax.eval_shape(initial, self._variables)
        given = (
            np.zeros((num_rows, windows.num_samples), np.int16),
            np.zeros((2, num_rows), np.int32),
            np.zeros((2, num_rows), bool),
        )
        programs = programs_of(trained.experiment, trained.tokenizer).given(window=window, **of_head)
        arguments = abstract_on((self._variables, self.state(), *given), mesh)
        program = programs.lower(f"stream_{decoder.head}", step, *arguments, out_shardings=self._device)
        self._program = program.compile()

    def search(self) -> StreamSearch:
        """Returns a new search of `num_rows` streams."""
        of_head = self.decoder.search
        search = of_head.decoding.streams(of_head.stage, num_rows=self.num_rows, blank_id=self._blank_id)
        name = f"heads_{self.decoder.head}"
        search.variables = {kind: tree[name] for kind, tree in self._variables.items() if name in tree}
        return search

    def state(self) -> Tree:
        """Returns a state of streams, which the first window of a stream replaces by the initial state."""
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self._state)
        return jax.device_put(zeros, self._device)

    def __call__(
        self,
        state: Tree,
        samples: Int16[np.ndarray, "B S"],
        places: Int[np.ndarray, "2 B"],
        begins: Bool[np.ndarray, "2 B"],
    ) -> tuple[Tree, Any, Int[np.ndarray, " B"]]:
        """Computes a window of all rows.

        Args:
            state: `state`, or the state after the window before.
            samples: Samples of the windows, from `SampleBuffer.take`.
            places: The two other numbers of `SampleBuffer.take`, for each row.
            begins: Whether a stream, and whether an utterance begins with the window.

        Returns:
            The state, the input of `search`, and the number of its frames in each row.
        """
        given = jax.device_put((samples, places, begins), self._device)
        state, found, lengths = self._program(self._variables, state, *given)
        return state, found, np.asarray(lengths)


class Streamer:
    """Several streams of a trained run.

    The state of all streams is on the device of the program, and its size is fixed. The program computes a window of
    all rows; the state of a row does not change while its next window is not known.
    """

    def __init__(self, program: StreamProgram, *, endpoints: Endpoints = ENDPOINTS) -> None:
        """Starts without streams.

        Args:
            endpoints: Rules by which utterances end.
        """
        self._program, self._endpoints, self._windows = program, endpoints, program.windows
        self._writer = program.decoder.search.writer
        self._lists_n_best = program.decoder.search.decoding.gives_n_best
        self._search, self._state = program.search(), program.state()
        self._rows: list[_Row | None] = [None] * program.num_rows
        self._num_opened = 0
        self._results = deque[StreamResult]()

    @property
    def rate_hz(self) -> int:
        """Sample rate of the streams in Hz."""
        return self._windows.front_end.rate_hz

    def begin(self) -> int:
        """Opens a stream.

        Returns:
            The number of the stream.

        Raises:
            UserError: If as many streams are open as there are rows.
        """
        if None not in self._rows:
            raise UserError(f"{len(self._rows)} streams are open: expected at most as many as num_rows")
        stream = self._num_opened
        self._num_opened += 1
        self._rows[self._rows.index(None)] = _Row(stream, SampleBuffer(self._windows))
        return stream

    def feed(self, stream: int, samples: np.ndarray) -> None:
        """Adds the next samples of an open stream, in any number. `run` computes their windows.

        Args:
            samples: Samples [S] of int16 at `rate_hz`.

        Raises:
            UserError: If the stream is not open, or `samples` is no such array.
        """
        row = self._row(stream)
        if np.ndim(samples) != 1 or samples.dtype != np.int16:
            raise UserError(
                f"samples have shape {np.shape(samples)} and type {np.asarray(samples).dtype}: expected an array with "
                "one axis of int16"
            )
        row.buffer.add(samples)

    def end(self, stream: int) -> None:
        """Ends an open stream. `run` computes its last windows, and then closes it.

        Raises:
            UserError: If the stream is not open.
        """
        self._row(stream).buffer.end()

    def check_open(self, stream: int) -> None:
        """Checks that a stream is open.

        Raises:
            UserError: If it is not.
        """
        self._row(stream)

    def run(self) -> Iterator[StreamResult]:
        """Computes all windows that are known, one window of each stream at a time.

        If it is interrupted, or not used up, the next call continues; no window and no result is lost.

        Yields:
            Results of all streams in the order of their windows: a partial one whenever the text of an utterance has
            changed, and a final one at the end of each utterance that has or had a text. They are yielded as soon as
            they are known.
        """
        while self._results or self._advance():
            while self._results:
                yield self._results.popleft()

    def results(self) -> list[StreamResult]:
        """Returns all results of `run`. If it is interrupted, the next call returns also the results until then."""
        while self._advance():
            pass
        found, self._results = list(self._results), deque()  # Python does not interrupt an assignment
        return found

    def _advance(self) -> bool:
        """Computes the next window of each row that has one, and adds the results. Returns whether there was one."""
        if not any(row and (row.buffer.is_ready or row.buffer.has_ended) for row in self._rows):
            return False
        with uninterrupted():
            self._results += self._round()
        return True

    def _round(self) -> list[StreamResult]:
        """Computes the next window of each row that has one, and closes the rows of streams without a further one."""
        ready = [(place, row) for place, row in enumerate(self._rows) if row and row.buffer.is_ready]
        results = self._step(ready) if ready else []
        for place, row in enumerate(self._rows):
            if row and row.buffer.has_ended and not row.buffer.is_ready:
                results += self._final(place, row) if row.num_frames else []
                self._rows[place] = None
        return results

    def _row(self, stream: int) -> _Row:
        found = {row.stream: row for row in self._rows if row and not row.buffer.has_ended}
        if stream not in found:
            raise UserError(
                f"stream {stream} is not open, or has ended: expected one that has not; begin a new stream for further "
                "samples"
            )
        return found[stream]

    def _step(self, ready: list[tuple[int, _Row]]) -> list[StreamResult]:
        """Computes one window of some rows."""
        num_rows = len(self._rows)
        samples = np.zeros((num_rows, self._windows.num_samples), np.int16)
        places, begins = np.zeros((2, num_rows), np.int32), np.zeros((2, num_rows), bool)
        for place, row in ready:
            samples[place], *places[:, place] = row.buffer.take()
            begins[:, place] = row.begins, row.begins_text
            row.begins = False
        self._state, found, lengths = self._program(self._state, samples, places, begins)
        self._search.take(found, lengths, begins[1])
        results = list[StreamResult]()
        for place, row in ready:
            if lengths[place]:
                row.num_frames += int(lengths[place])
                row.begins_text = False
                results += self._result(place, row)
        return results

    def _result(self, place: int, row: _Row) -> list[StreamResult]:
        """Returns the result of a row after a window, if there is a new one."""
        hypotheses = self._search.hypotheses(place)
        best, shift_s = hypotheses[0], self._writer.times.shift_s
        num_silent = row.num_frames - (best.ends[-1] if best.tokens else 0)
        if self._endpoints.reached(
            has_text=bool(best.tokens), silence_s=num_silent * shift_s, duration_s=row.num_frames * shift_s
        ):
            return self._final(place, row)
        if best.tokens == row.tokens:
            return []
        row.tokens = best.tokens
        transcript = self._writer.transcript(hypotheses, lists_n_best=self._lists_n_best, first_frame=row.first_frame)
        if transcript.text == row.shown:
            return []
        row.shown = transcript.text
        first = self._writer.text(best._replace(tokens=best.tokens[: self._search.num_settled(place)]))
        num_settled = num_settled_characters(first, transcript.text)
        return [StreamResult(row.stream, transcript, is_final=False, num_settled=num_settled)]

    def _final(self, place: int, row: _Row) -> list[StreamResult]:
        """Ends the utterance of a row, and returns its result if it has a text.

        The encoder keeps its state, as in sherpa-onnx: the audio goes on without a break, and its next frames would
        otherwise lack the context that frames within an utterance have.
        """
        transcript = self._writer.transcript(
            self._search.final(place), lists_n_best=self._lists_n_best, first_frame=row.first_frame
        )
        has_text = bool(transcript.words or row.shown)
        row.first_frame += row.num_frames
        row.num_frames, row.begins_text, row.shown, row.tokens = 0, True, "", ()
        result = StreamResult(row.stream, transcript, is_final=True, num_settled=len(transcript.text))
        return [result] if has_text else []


def num_settled_characters(settled: str, text: str) -> int:
    """Returns the number of first characters of a text that further labels do not change.

    Args:
        settled: Text of the labels that do not change any more. Its last character can be incomplete, if labels are
            bytes of characters; it is then U+FFFD, once for each byte.
        text: Text of all labels so far.
    """
    return num_common([settled.rstrip("\ufffd"), text])

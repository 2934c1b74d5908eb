"""Measures a streaming run at each of its contexts: error rate, latency, streams of a core, and hours of audio.

    python -m benchmarks.streaming --run RUN --data DIR [--parts accuracy times long] [--json OUT]

RUN is trained with several contexts, such as `streaming_zipformer` of benchmarks.exports, and DIR has test.jsonl, such
as that of benchmarks.delay_penalty. Each measurement has a process of its own:

- accuracy: Error rates of the streamed test recordings at each context, and the number of texts that differ from
  those of `transcribe` with the same context. A context of the whole recording is only transcribed.
- times: Time from the last sample of a window to its result, for one stream on two cores; and the largest number of
  streams of a batch whose windows one core computes in less time than a chunk lasts. The latter is the processor time
  of the process, so that other work on the core changes it little.
- long: Test recordings are joined with pauses. They are recognised as one stream, and by `transcribe` in windows. The
  peak of the resident memory, from the end of compilation on, is read after 10 minutes of audio and at the end.

The machine should have no other work during `times`. Parts that are not measured are kept from OUT.
"""

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import soundfile

from asr_jax.api import Run
from asr_jax.audio.io import read_audio, stream_audio
from asr_jax.config import load_experiment
from asr_jax.core.environment import NUM_CORES
from asr_jax.core.errors import UserError
from asr_jax.core.options import parse
from asr_jax.core.run_folder import EXPERIMENT
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference.streaming import Streamer, StreamProgram
from asr_jax.inference.trained import Trained, load_trained
from asr_jax.inference.transcription import Transcriber
from asr_jax.metrics.scoring import Recognised, score
from asr_jax.models.encoder import Context, StreamingEncoder
from asr_jax.observe.tables import print_table
from benchmarks.any_size import begin, in_process, resident
from benchmarks.one_hour import join

NUM_WINDOWS = {"latency": 200, "streams": 20}
"""Number of measured windows."""
WARMUP = 10
"""Number of windows before the measured ones. The first of them lack samples."""
ROWS = 16
"""Number of streams at a time in `accuracy`."""
FIRST_ROWS = 64
"""First number of streams that is tried on one core."""
EARLY_MINUTES = 10
"""Minutes of audio after which the memory of a long recording is read first."""
UNSHOWN = ("processor_ms_by_streams",)
"""Figures that are only in the JSON."""
Part = Literal["accuracy", "times", "long"]


@dataclass(frozen=True, kw_only=True)
class StreamingBenchmark:
    """Options of `benchmarks.streaming`."""

    run: Path
    """Folder of a trained run that streams."""
    data: Path
    """Folder with test.jsonl."""
    parts: tuple[Part, ...] = ("accuracy", "times", "long")
    """Measurements to make."""
    minutes: float = 120.0
    """Duration of the joined recording in minutes, more than 10."""
    json: Path | None = None
    """File to write the figures to, in JSON."""

    @property
    def test(self) -> Path:
        return self.data / "test.jsonl"


class WindowTimes(NamedTuple):
    """Seconds of each window of a batch, from its last sample to its results."""

    wall: np.ndarray
    processor: np.ndarray
    """Seconds of all threads of the process."""


def main(arguments: Sequence[str]) -> None:
    options = parse(StreamingBenchmark, arguments, prog="python -m benchmarks.streaming", about=__doc__)
    found: dict[str, Any] = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    measures: dict[Part, Callable[[StreamingBenchmark], list[dict[str, Any]]]]
    measures = {"accuracy": measure_accuracy, "times": measure_times, "long": measure_long}
    for part in options.parts:
        load = os.getloadavg()[0]
        found[part] = {"cpu": cpu(), "cores": NUM_CORES, "load": round(load, 1), "rows": measures[part](options)}
        shown = [{name: value for name, value in row.items() if name not in UNSHOWN} for row in found[part]["rows"]]
        print_table(shown, title=f"{part}, load {load:.1f}")
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


def cpu() -> str:
    """Returns the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def measure_accuracy(options: StreamingBenchmark) -> list[dict[str, Any]]:
    return [in_process(accuracy, options.run, options.test, context) for context in contexts_of_run(options.run)]


def measure_times(options: StreamingBenchmark) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "recording.flac"
        join(list(read_utterances([options.test])), 5, recording, shift_s=0, seed=0)
        for context in contexts_of_run(options.run):
            if context.chunk_frames is not None:
                of_stream = in_process(latency, options.run, recording, context)
                with cores(1):
                    rows.append(of_stream | in_process(streams_of_core, options.run, recording, context))
    return rows


def measure_long(options: StreamingBenchmark) -> list[dict[str, Any]]:
    context, *_ = load_experiment(options.run / EXPERIMENT).model.encoder.contexts
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "recording.flac"
        written = join(list(read_utterances([options.test])), options.minutes, recording, shift_s=0, seed=0)
        text = " ".join(each.text for each in written)
        return [
            in_process(recognise_long, options.run, recording, text, context, method)
            for method in (as_stream, in_windows)
        ]


def contexts_of_run(run: Path) -> list[Context]:
    """Returns the contexts that a run was trained with, those with the shortest chunks first.

    Raises:
        UserError: If its encoder has none.
    """
    encoder = load_experiment(run / EXPERIMENT).model.encoder
    if not isinstance(encoder, StreamingEncoder):
        raise UserError(f"the encoder of {run} has no contexts: expected a Zipformer or a Conformer that streams")
    return sorted(set(encoder.contexts), key=lambda each: each.chunk_frames or math.inf)


def in_context(run: Path, context: Context) -> Trained:
    """Returns a run in float32 with another context."""
    return load_trained(run, precision="f32", context=context)


def durations(trained: Trained, context: Context) -> dict[str, float | None]:
    """Returns the durations of a chunk and of a window in milliseconds; None: the whole recording."""
    if context.chunk_frames is None:
        return {"chunk_ms": None, "window_ms": None}
    window, front_end = trained.model.encoder.stream_window, trained.model.front_end
    frame_ms = 1000 * front_end.hop / front_end.rate_hz
    return {"chunk_ms": window.shift * frame_ms, "window_ms": window.size * frame_ms}


def accuracy(run: Path, manifest: Path, context: Context) -> dict[str, Any]:
    """Returns the error rate of a test set, and the number of streamed texts that `transcribe` gives otherwise."""
    trained = in_context(run, context)
    test = list(read_utterances([manifest]))
    whole = [each.text for each in Run(trained).transcribe([utterance.location for utterance in test])]
    texts = whole if context.chunk_frames is None else streamed(trained, test)
    pairs = zip(test, texts, strict=True)
    figures = score(
        [Recognised(each.id, each.text, text, speaker=each.speaker) for each, text in pairs],
        normaliser=trained.tokenizer.normaliser,
    )
    others = sum(text != other for text, other in zip(texts, whole, strict=True))
    kept = {name: figures[name] for name in ("wer", "wer_interval", "words", "utterances")}
    return durations(trained, context) | kept | {"other_texts": others}


def streamed(trained: Trained, utterances: Sequence[Utterance]) -> list[str]:
    """Returns the texts of recordings that arrive as streams, with the endpoints of `transcribe --stream`."""
    streamer, texts = Streamer(StreamProgram(trained, trained.decoder(), num_rows=ROWS)), list[str]()
    for group in batched(utterances, ROWS):
        parts: dict[int, list[str]] = {}
        for each in group:
            stream = streamer.begin()
            parts[stream] = []
            streamer.feed(stream, read_audio(each.location, rate_hz=streamer.rate_hz))
            streamer.end(stream)
        for result in streamer.run():
            if result.is_final:
                parts[result.stream].append(result.transcript.text)
        texts += [" ".join(filter(None, each)) for each in parts.values()]
    return texts


def latency(run: Path, recording: Path, context: Context) -> dict[str, Any]:
    """Returns the times of the windows of one stream."""
    trained = in_context(run, context)
    times, chunk_s = window_times(trained, recording, 1, NUM_WINDOWS["latency"])
    wall = 1000 * times.wall
    return durations(trained, context) | {
        "cores": NUM_CORES, "mean_ms": wall.mean(), "p95_ms": float(np.percentile(wall, 95)),
        "rtf": times.wall.mean() / chunk_s, "processor_ms": 1000 * times.processor.mean(),
    }  # fmt: skip


def streams_of_core(run: Path, recording: Path, context: Context) -> dict[str, Any]:
    """Returns the largest number of streams that this process keeps up with, and the processor times by number."""
    assert NUM_CORES == 1, "the process has more than one core"
    trained, processor_ms = in_context(run, context), dict[int, float]()

    def keeps_up(num_rows: int) -> bool:
        times, chunk_s = window_times(trained, recording, num_rows, NUM_WINDOWS["streams"])
        processor_ms[num_rows] = float(1000 * times.processor.mean())
        return bool(times.processor.mean() < chunk_s)

    return {"streams": most(keeps_up, FIRST_ROWS), "processor_ms_by_streams": processor_ms}


def most(keeps_up: Callable[[int], bool], first: int) -> int:
    """Returns the largest number that keeps up of 1, 2, 3, 4, 6, 8, 12, 16, …, from a first power of 2; 0: none."""
    number = first
    while not keeps_up(number):
        number //= 2
        if not number:
            return 0
    while number >= first and keeps_up(2 * number):
        number *= 2
    return 3 * number // 2 if number > 1 and keeps_up(3 * number // 2) else number


def window_times(trained: Trained, recording: Path, num_rows: int, num_windows: int) -> tuple[WindowTimes, float]:
    """Measures the windows of streams that arrive together, and returns also the duration of a chunk in seconds.

    Each stream is the recording from another sample on.
    """
    program = StreamProgram(trained, trained.decoder(), num_rows=num_rows)
    streamer, window = Streamer(program), trained.model.encoder.stream_window
    step = window.shift * trained.model.front_end.hop
    samples = read_audio(str(recording), rate_hz=streamer.rate_hz)
    starts = np.arange(num_rows) * (len(samples) // num_rows)
    streams, times = [streamer.begin() for _ in starts], list[tuple[float, float]]()
    for number in range(WARMUP + num_windows):
        for stream, start in zip(streams, starts, strict=True):
            places = start + number * step + np.arange(step)
            streamer.feed(stream, samples[places % len(samples)])
        before = time.perf_counter(), time.process_time()
        for _ in streamer.run():
            pass
        times.append((time.perf_counter() - before[0], time.process_time() - before[1]))
    return WindowTimes(*np.transpose(times[WARMUP:])), step / streamer.rate_hz


@contextmanager
def cores(number: int) -> Iterator[None]:
    """Lets new processes use only some cores."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_cores)[:number])
    yield
    os.sched_setaffinity(0, all_cores)


class Progress:
    """Memory of the recognition of a long recording."""

    def __init__(self) -> None:
        begin()  # forgets the peak of the memory
        self._audio_s, self._early_mb = 0.0, 0.0

    def add(self, audio_s: float) -> None:
        """Adds seconds of audio that were computed."""
        self._audio_s += audio_s
        if not self._early_mb and self._audio_s >= 60 * EARLY_MINUTES:
            self._early_mb = peak_mb()

    def figures(self) -> dict[str, float]:
        """Returns the peak of the resident memory after `EARLY_MINUTES` and now, in MB."""
        return {"early_mb": self._early_mb, "peak_mb": peak_mb()}


def peak_mb() -> float:
    return resident("VmHWM") / 1e6


def recognise_long(
    run: Path, recording: Path, text: str, context: Context, method: Callable[[Trained, Path], tuple[str, Progress]]
) -> dict[str, Any]:
    """Returns error rate and peak of the resident memory for a long recording."""
    trained = in_context(run, context)
    found, progress = method(trained, recording)
    figures = score([Recognised("", text, found)], normaliser=trained.tokenizer.normaliser)
    kept = {name: figures[name] for name in ("wer", "words")}
    minutes = soundfile.info(recording).duration / 60
    row = {"method": method.__name__.replace("_", " "), "minutes": minutes} | durations(trained, context)
    return row | kept | progress.figures()


def as_stream(trained: Trained, recording: Path) -> tuple[str, Progress]:
    """Returns the text of a recording that arrives as a stream."""
    streamer = Streamer(StreamProgram(trained, trained.decoder()))
    stream, texts, progress = streamer.begin(), list[str](), Progress()

    def take() -> None:
        texts.extend(each.transcript.text for each in streamer.run() if each.is_final)

    for samples in stream_audio(str(recording), rate_hz=streamer.rate_hz, block_s=1):
        streamer.feed(stream, samples)
        take()
        progress.add(len(samples) / streamer.rate_hz)
    streamer.end(stream)
    take()
    return " ".join(texts), progress


def in_windows(trained: Trained, recording: Path) -> tuple[str, Progress]:
    """Returns the text of a recording that `transcribe` computes in windows."""
    transcriber = Transcriber(trained, trained.decoder(), tell=lambda audio_s: progress.add(audio_s))
    utterances = [Utterance("", str(recording), "", soundfile.info(recording).duration)]
    transcriber.prepare(utterances)
    transcriber.decoder.wait()
    progress = Progress()
    [found] = transcriber(utterances)
    assert found.transcript, found.reason
    return found.transcript.text, progress


if __name__ == "__main__":
    from asr_jax.cli.command_line import run_command

    run_command(main)

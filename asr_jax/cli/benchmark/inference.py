"""Benchmark of recognition: `python -m asr_jax.benchmark inference RUN`, or `… --config FILE [--field …]`.

Measures the latency of a batch by number and length of its rows: mean and percentiles over some steps after warm-ups.
A step goes from audio in host memory to texts. The parts features, network and decoding (with the settings of the run
or config) are also measured separately, each as a program that the host waits for. The rows are full and contain noise.
A config has random weights, which may find more text in noise than there is in speech.

With `--data`, measures sets from files to texts instead, with each of the batch sizes and with the batches of
evaluation: the throughput, and mean and percentiles of a batch for data (reading and transfer to the device), network
(with features and the search) and both. `--seconds` adds the grid of noise.

Source: scripts/inference_benchmark.sh of QuartzNet and wav2vec 2.0 in NVIDIA/DeepLearningExamples, for the grid, the
warm-ups and the percentiles. Differs from it: the scripts time the network with the best symbols separately from
reading and features, do not state which of the two times a table has, and omit the conversion to text. The tables here
therefore show both the whole and the network alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from asr_jax.cli.command_line import parse_with_experiment
from asr_jax.cli.recognition_options import RecognitionOptions, decoding_in, load, parse_recognition
from asr_jax.core.environment import reading_threads
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import check_writable, write_whole
from asr_jax.core.flags import MAY_BE_EMPTY
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import NonNegativeInt, PositiveInt, between, command_options

if TYPE_CHECKING:
    from asr_jax.cli.benchmark.recognising import TimedRecognition
    from asr_jax.cli.benchmark.systems import System
    from asr_jax.config import Experiment
    from asr_jax.data.batching.buckets import Scale

PROG = "python -m asr_jax.benchmark inference"
STEPS, STEPS_ON_CPU = 500, 20
REPEATS, REPEATS_ON_CPU = (2, 10), (1, 2)
"""Numbers of unmeasured and measured times that a set is recognised. NVIDIA's are 2 and 10."""
SECONDS = (2.0, 7.0, 16.7)
Seconds = Annotated[float, between(0.1)]


@command_options
class InferenceOptions(RecognitionOptions):
    """Options of `asr_jax.benchmark inference`."""

    run: Annotated[Positional[Path | None], arg(metavar="RUN")] = None
    """Folder of a trained run, or a checkpoint, unless --config FILE is given."""
    batch_sizes: Annotated[tuple[PositiveInt, ...], MAY_BE_EMPTY] = (1, 2, 4, 8, 16)
    """Numbers of rows of a batch."""
    seconds: tuple[Seconds, ...] = ()
    """Lengths of a row of noise in seconds. Default: 2 7 16.7; with --data, none."""
    steps: PositiveInt | None = None
    """Number of measured steps for each batch. Default: 500, on a CPU 20."""
    warm_ups: NonNegativeInt = 10
    """Number of steps before the measured ones."""
    vocabulary: int | None = None
    """Number of labels, with the blank, for a config. Default: that of the config."""
    data: Annotated[tuple[UserPath, ...], arg(metavar="MANIFEST …")] = ()
    """Manifests of sets to recognise."""
    batch_seconds: Seconds | None = None
    """Size of the batches of evaluation in seconds of audio with padding. Default: as in evaluation."""
    repeats: PositiveInt | None = None
    """Number of measured times that a set is recognised. Default: 10, on a CPU 2."""
    warm_up_repeats: NonNegativeInt | None = None
    """Number of times that a set is recognised before. Default: 2, on a CPU 1."""
    workers: NonNegativeInt = 0
    """Number of processes that read a set; 0: threads only."""
    threads: PositiveInt | None = None
    """Number of threads of each process that reads. Default: one for each core, at most 8."""
    json: Annotated[Path | None, arg(metavar="OUT")] = None
    """File to write the figures to, in JSON."""


def main(arguments: Sequence[str]) -> None:
    experiment, flags = None, list[str]()
    if any(argument.partition("=")[0] == "--config" for argument in arguments):
        options, experiment = parse_with_experiment(InferenceOptions, arguments, prog=PROG, about=__doc__)
    else:
        options, flags = parse_recognition(InferenceOptions, arguments, prog=PROG, about=__doc__)
    _check(options, experiment)
    check_writable(options.json)

    from asr_jax.cli.benchmark.recognising import TimedRecognition
    from asr_jax.cli.benchmark.systems import described, machine, peak_bytes, system_of_config, system_of_run

    if options.run:
        trained = load(options.run, options)
        system = system_of_run(trained, decoding_in(trained.experiment.model, trained.model.recognising, flags))
    elif experiment:
        system = system_of_config(experiment, precision=options.precision, vocabulary=options.vocabulary)
    figures: dict[str, Any] = {"machine": machine(), **system.about, "warm_ups": options.warm_ups}
    figures["steps"] = options.steps or (STEPS_ON_CPU if figures["machine"]["device"] == "cpu" else STEPS)
    about = (
        f"{system.name}, {system.weights}, {figures['parameters']:,} parameters, {figures['precision']}, "
        f"{figures['decoding']}, on {described(figures['machine'] | {'num_devices': 1})}"
    )
    recognition = TimedRecognition(system, system.search())
    seconds = options.seconds or (() if options.data else SECONDS)

    def keep() -> None:
        figures["peak_bytes"], figures["machine"]["load_after"] = peak_bytes(), machine()["load"]
        if options.json:
            write_whole(options.json, json.dumps(figures, indent=1) + "\n")

    if options.batch_sizes and seconds:
        figures["batches"] = batches(recognition, options, seconds, steps=figures["steps"], scale=system.scale)
        keep()
        show_batches(figures, about)
    if options.data:
        figures["sets"] = dict[str, list[dict[str, Any]]]()
        for manifest, of_batch in sets(recognition, system, options):
            figures["sets"].setdefault(manifest, []).append(of_batch)
            keep()
        show_sets(figures, about)
    print(
        f"peak memory: {figures['peak_bytes'] / 1e9:.2f} GB"
        if figures["peak_bytes"]
        else "peak memory: not available on this device"
    )


def _check(options: InferenceOptions, experiment: Experiment | None) -> None:
    if (options.run is None) == (experiment is None):
        raise UserError("expected a trained RUN, or --config FILE")
    if experiment and (options.live or options.checkpoint is not None):
        raise UserError("--live and --checkpoint need a RUN; a config has random weights: remove them, or pass a RUN")
    if not options.batch_sizes and not options.data:
        raise UserError("--batch-sizes is empty and --data is missing: nothing to measure; expected one of them")


def batches(
    recognition: TimedRecognition, options: InferenceOptions, lengths_s: Sequence[float], *, steps: int, scale: Scale
) -> list[dict[str, Any]]:
    """Measures each batch of the grid.

    Returns:
        For each batch the milliseconds of the whole and of each part, the throughput as a multiple of real time, and
        the peak memory so far in bytes.
    """
    from asr_jax.cli.benchmark.recognising import summary
    from asr_jax.cli.benchmark.systems import peak_bytes
    from asr_jax.data.batching.buckets import Bucket
    from asr_jax.training.batches import noise_of

    found = []
    for seconds in lengths_s:
        for rows in options.batch_sizes:
            size = round(seconds * scale.per_s)
            batch = noise_of(Bucket(size, 0, rows, size), scale, np.zeros(1, np.int32))
            times = recognition.times(batch, warm_ups=options.warm_ups, steps=steps)
            parts = {name: summary(each) for name, each in times.items()}
            rtfx = 1000 * rows * seconds / parts["all"]["mean"]
            found.append({"batch": rows, "seconds": seconds, "ms": parts, "rtfx": rtfx, "peak_bytes": peak_bytes()})
    return found


def sets(
    recognition: TimedRecognition, system: System, options: InferenceOptions
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measures recognition of each set of --data with each size of batches.

    Yields:
        A manifest and its figures; `batch` is the number of rows, None for the batches of evaluation.

    Raises:
        RunError: If no utterance of a set can be read.
    """
    from asr_jax.cli.benchmark.recognising import recognise_set
    from asr_jax.cli.benchmark.systems import machine
    from asr_jax.data.manifests.readers.base import ReadOptions
    from asr_jax.data.manifests.reading import read_utterances
    from asr_jax.inference.batches import BatchOptions

    unmeasured, measured = REPEATS_ON_CPU if machine()["device"] == "cpu" else REPEATS
    warm_ups = unmeasured if options.warm_up_repeats is None else options.warm_up_repeats
    how = ReadOptions(allow_pipes=options.allow_pipes)
    for manifest in options.data:
        utterances = read_utterances([manifest], role="validation", options=how)
        longest_s = 2 * max((each.duration_s for each in utterances if each.duration_s > 0), default=1.0)
        sizes: list[tuple[int | None, BatchOptions]] = [
            (rows, BatchOptions(batch_size=rows, batch_seconds=rows * longest_s)) for rows in options.batch_sizes
        ]
        sizes.append((None, BatchOptions(batch_seconds=options.batch_seconds)))
        for number, (rows, sized) in enumerate(sizes):
            figures = recognise_set(
                recognition,
                system.plan(utterances, sized),
                warm_ups=warm_ups,
                repeats=options.repeats or measured,
                workers=options.workers,
                threads=reading_threads(options.threads or 0, workers=options.workers),
            )
            if not number:
                for line in figures["rejected"]:
                    print(f"rejected {line}", file=sys.stderr)
            if not figures["utterances"]:
                raise RunError(f"{manifest}: no utterance could be read; the reasons are above")
            yield str(manifest), {"batch": rows, **figures}


def show_batches(figures: dict[str, Any], about: str) -> None:
    """Prints the latencies of the grid."""
    from asr_jax.observe.tables import print_table

    rows = []
    for each in figures["batches"]:
        whole = _with_units(each["ms"]["all"])
        parts = {name: part["mean"] for name, part in each["ms"].items() if name != "all"}
        memory = {"peak_bytes": each["peak_bytes"]} if each["peak_bytes"] else {}
        at = {"batch": each["batch"], "seconds": each["seconds"]}
        rows.append(at | whole | parts | {"× real time": each["rtfx"]} | memory)
    print_table(rows, title=f"{about}: ms per batch, {figures['steps']} steps after {figures['warm_ups']} warm-ups")
    if figures["steps"] < 100:
        print(f"with {figures['steps']} steps, the 99 % percentile is close to the maximum; parts are timed separately")


def _with_units(ms: dict[str, float]) -> dict[str, float]:
    """Mean and percentiles of milliseconds with names for a table."""
    return {"mean ms" if name == "mean" else name.replace("%", " %"): value for name, value in ms.items()}


def show_sets(figures: dict[str, Any], about: str) -> None:
    """Prints the throughput of sets and the latencies of their batches."""
    from asr_jax.observe.tables import print_table

    measured = [
        ({"set": Path(name).name, "batch": each["batch"] or "evaluation"}, each)
        for name, of_set in figures["sets"].items()
        for each in of_set
    ]
    rows = [
        named
        | {
            "utterances": each["utterances"],
            "rejected": len(each["rejected"]),
            "audio_s": each["audio_s"],
            "padding_share": each["padding_share"],
            "seconds": each["seconds"] / each["repeats"],
            "× real time": each["rtfx"],
            "waiting_for_files_share": each["waiting_share"],
            "reading alone, × real time": each["reading_alone_rtfx"],
        }
        for named, each in measured
    ]
    print_table(rows, title=f"{about}: from files to texts")
    latencies = [
        named | {"part": part} | _with_units(of_part)
        for named, each in measured
        for part, of_part in each["ms"].items()
    ]
    counts = sorted({(each["warm_ups"], each["repeats"]) for _, each in measured})
    repeats = ", ".join(f"{repeats} repeats after {warm_ups} warm-ups" for warm_ups, repeats in counts)
    print_table(latencies, title=f"ms per batch, {repeats}")

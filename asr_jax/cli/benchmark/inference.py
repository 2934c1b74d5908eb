"""Benchmark of recognition: `python -m asr_jax.benchmark inference RUN`, or `… --config FILE [--field …]`.

Measures the latency of a batch by number and length of its rows: mean and percentiles over some steps after warm-ups.
A step goes from audio in host memory to texts. The parts features, network and decoding (with the settings of the run
or config) are also measured separately, each as a program that the host waits for. The rows are full and contain noise.
A config has random weights, which may find more text in noise than there is in speech. With `--data`, also measures the
throughput of a whole set, from files to texts. Published figures of NVIDIA and others are printed with their hardware.

Source: scripts/inference_benchmark.sh of QuartzNet and wav2vec 2.0 in NVIDIA/DeepLearningExamples, for the grid, the
warm-ups and the percentiles. Differs from it: those scripts time the network with the best symbols separately from
reading and features, do not state to which of them their tables refer, and omit the conversion to text. The tables here
therefore show both the whole and the network alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from asr_jax.cli.command_line import parse_experiment
from asr_jax.cli.recognition_options import RecognitionOptions, decoding_of, load, parted
from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable
from asr_jax.core.options import MAY_BE_EMPTY, asks_for_help, parse_known, print_help

if TYPE_CHECKING:
    from asr_jax.cli.benchmark.recognising import Recognition
    from asr_jax.cli.benchmark.systems import System

PROG = "python -m asr_jax.benchmark inference"
STEPS, STEPS_ON_CPU = 500, 20


@dataclass(frozen=True, kw_only=True)
class InferenceOptions(RecognitionOptions):
    """Options of `asr_jax.benchmark inference`."""

    batch_sizes: Annotated[tuple[int, ...], MAY_BE_EMPTY] = (1, 2, 4, 8, 16)
    """Numbers of rows of a batch."""
    seconds: tuple[float, ...] = (2.0, 7.0, 16.7)
    """Lengths of a row in seconds."""
    steps: int | None = None
    """Number of measured steps for each batch. Default: 500, on a CPU 20."""
    warm_ups: int = 10
    """Number of steps before the measured ones."""
    vocabulary: int | None = None
    """Number of labels, with the blank, for a config. Default: that of the config."""
    data: Annotated[tuple[str, ...], arg(metavar="MANIFEST …")] = ()
    """Manifests of sets to recognise as a whole."""
    batch_seconds: float | None = None
    """Size of a batch of a set in seconds of audio with padding. Default: as in training."""
    workers: int = 0
    """Number of processes that read a set; 0: threads only."""
    threads: int = 2
    """Number of threads of each process that reads."""
    published: bool = True
    """Also print published figures of other systems."""
    json: Annotated[Path | None, arg(metavar="OUT")] = None
    """File to write the figures to, in JSON."""


def main(arguments: Sequence[str]) -> None:
    # RUN must be the first argument: later, it could not be distinguished from the value of a field of a config.
    run, given = (arguments[0], arguments[1:]) if arguments and not arguments[0].startswith("-") else ("", arguments)
    if asks_for_help(given):
        print_help(InferenceOptions, prog=f"{PROG} (RUN | --config FILE [--field …])", about=__doc__)
        if not run:
            parse_experiment(given, prog=PROG)  # Prints the fields and exits.
        return
    others, flags = parted(given)
    options, rest = parse_known(InferenceOptions, others, prog=PROG)
    _check(options, run, rest)
    experiment = None if run else parse_experiment([*rest, *flags], prog=PROG)
    if options.json:
        check_writable(options.json)

    from asr_jax.cli.benchmark.recognising import Recognition
    from asr_jax.cli.benchmark.systems import described, machine, peak_bytes, system_of_config, system_of_run

    if experiment is None:
        trained = load(Path(run), options)
        system = system_of_run(
            trained, decoding_of(flags, trained.experiment.model.decoding_of(trained.model.recognising))
        )
    else:
        system = system_of_config(experiment, precision=options.precision, vocabulary=options.vocabulary)
    figures: dict[str, Any] = {"machine": machine(), **system.about, "warm_ups": options.warm_ups}
    figures["steps"] = options.steps or (STEPS_ON_CPU if figures["machine"]["device"] == "cpu" else STEPS)
    about = (
        f"{system.name}, {system.weights}, {figures['parameters']:,} parameters, {figures['precision']}, "
        f"{figures['decoding']}, on {described(figures['machine'] | {'num_devices': 1})}"
    )
    recognition = Recognition(system, system.search())
    if options.batch_sizes:
        figures["batches"] = batches(
            recognition, options, steps=figures["steps"], rate_hz=system.model.front_end.rate_hz
        )
        show_batches(figures, about, published=options.published)
    if options.data:
        figures["sets"] = sets(recognition, system, options)
        show_sets(figures, about, published=options.published)
    figures["peak_bytes"], figures["machine"]["load_after"] = peak_bytes(), machine()["load"]
    print(f"peak memory: {figures['peak_bytes'] / 1e9:.2f} GB" if figures["peak_bytes"] else
          "peak memory: not available on this device")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def _check(options: InferenceOptions, run: str, rest: Sequence[str]) -> None:
    from asr_jax.cli.benchmark.systems import check_counts

    check_counts(options, ("batch_sizes", "steps", "threads"))
    check_counts(options, ("warm_ups", "workers"), least=0)
    check_counts(options, ("seconds", "batch_seconds"), least=0.1)
    if not run and not any(each.partition("=")[0] == "--config" for each in rest):
        raise UserError("expected a trained RUN, or --config FILE, as the first argument")
    if run and rest:
        raise UserError(
            f"{' '.join(rest)}: only --decoding.FIELD can change the settings of a run; remove these arguments"
        )
    if not run and (options.live or options.checkpoint is not None):
        raise UserError("--live and --checkpoint need a RUN; a config has random weights: remove them, or pass a RUN")
    if not options.batch_sizes and not options.data:
        raise UserError("--batch-sizes is empty and --data is missing: nothing to measure; expected one of them")


def batches(recognition: Recognition, options: InferenceOptions, *, steps: int, rate_hz: int) -> list[dict[str, Any]]:
    """Measures each batch of the grid.

    Args:
        recognition: The recogniser.
        options: Options of the command, with the grid.
        steps: Number of measured steps.
        rate_hz: Sampling rate of the audio in Hz.

    Returns:
        For each batch the milliseconds of the whole and of each part, the throughput as a multiple of real time, and
        the peak memory so far in bytes.
    """
    from asr_jax.cli.benchmark.recognising import noise, summary
    from asr_jax.cli.benchmark.systems import peak_bytes

    found = []
    for seconds in options.seconds:
        for rows in options.batch_sizes:
            batch = noise(rows=rows, seconds=seconds, rate_hz=rate_hz)
            times = recognition.times(batch, warm_ups=options.warm_ups, steps=steps)
            parts = {name: summary(each) for name, each in times.items()}
            rtfx = 1000 * rows * seconds / parts["all"]["mean"]
            found.append({"batch": rows, "seconds": seconds, "ms": parts, "rtfx": rtfx, "peak_bytes": peak_bytes()})
    return found


def sets(recognition: Recognition, system: System, options: InferenceOptions) -> dict[str, Any]:
    """Measures recognition of each set of --data.

    Args:
        recognition: The recogniser.
        system: The system of the recogniser, which plans the batches.
        options: Options of the command.

    Returns:
        Figures of each set, keyed by its manifest.
    """
    from asr_jax.cli.benchmark.recognising import recognise_set
    from asr_jax.data.manifests.readers.base import ReadOptions
    from asr_jax.data.manifests.reading import read_utterances

    how, found = ReadOptions(allow_pipes=options.allow_pipes), {}
    for manifest in options.data:
        utterances = read_utterances([manifest], role="validation", options=how)
        data = system.plan(utterances, batch_seconds=options.batch_seconds)
        found[manifest] = recognise_set(recognition, data, workers=options.workers, threads=options.threads)
    return found


def show_batches(figures: dict[str, Any], about: str, *, published: bool) -> None:
    """Prints the latencies of the grid.

    Args:
        figures: Figures of the benchmark.
        about: Description of the system and the machine, for the title.
        published: Whether published figures are printed too.
    """
    from asr_jax.cli.benchmark.published import print_latencies
    from asr_jax.observe.tables import print_table

    rows = []
    for each in figures["batches"]:
        whole = {"mean ms" if name == "mean" else name.replace("%", " %"): ms for name, ms in each["ms"]["all"].items()}
        parts = {name: part["mean"] for name, part in each["ms"].items() if name != "all"}
        memory = {"peak_bytes": each["peak_bytes"]} if each["peak_bytes"] else {}
        at = {"batch": each["batch"], "seconds": each["seconds"]}
        rows.append(at | whole | parts | {"× real time": each["rtfx"]} | memory)
    print_table(rows, title=f"{about}: ms per batch, {figures['steps']} steps after {figures['warm_ups']} warm-ups")
    if figures["steps"] < 100:
        print(f"with {figures['steps']} steps, the 99 % percentile is close to the maximum; parts are timed separately")
    if published:
        print_latencies(figures["batches"])


def show_sets(figures: dict[str, Any], about: str, *, published: bool) -> None:
    """Prints the throughput of whole sets.

    Args:
        figures: Figures of the benchmark.
        about: Description of the system and the machine, for the title.
        published: Whether published figures are printed too.
    """
    from asr_jax.cli.benchmark.published import set_rates
    from asr_jax.cli.benchmark.systems import described
    from asr_jax.observe.tables import print_table

    rows = [
        {
            "set": Path(name).name, "utterances": each["utterances"], "audio_s": each["audio_s"],
            "padding_share": each["padding_share"], "seconds": each["seconds"], "× real time": each["rtfx"],
            "waiting_for_files_share": each["waiting_share"], "reading alone, × real time": each["reading_alone_rtfx"],
        }
        for name, each in figures["sets"].items()
    ]  # fmt: skip
    print_table(rows, title=f"{about}: from files to texts")
    if published:
        on = described(figures["machine"] | {"num_devices": 1})
        ours = [(figures["system"], on, each["rtfx"], f"{figures['decoding']}, {figures['weights']}, {Path(name).name}")
                for name, each in figures["sets"].items()]  # fmt: skip
        print_table(set_rates(ours), title="throughput of sets, with published figures")

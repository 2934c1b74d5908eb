"""How fast speech is recognised: `python -m asr_jax.benchmark inference RUN`, or `… --config FILE [--field …]`.

Latency of a batch, by rows and seconds of full rows of noise: mean and percentiles of some steps after warm-ups, from
audio in the host's memory to texts, and of its parts on their own, each a program that is waited for: features, network
and decoding (the run's or config's own). A config has random weights, and its noise may be more text than speech is.
With `--data` also the rate of a whole set of recordings, from its files to its texts. NVIDIA's and others' published
figures are printed beside ours, with their hardware.

Source: scripts/inference_benchmark.sh of QuartzNet and wav2vec 2.0 in NVIDIA/DeepLearningExamples, of which grid,
warm-ups and percentiles are. Differs from: those, which time network and best symbols apart from reading and features,
do not say which of them their tables are of, and leave out text; so both, and the network, stand beside them here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from asr_jax.cli.command_line import parse_experiment
from asr_jax.cli.recognition_options import RecognitionOptions, decoding_of, load, parted, use_device
from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable
from asr_jax.core.options import asks_for_help, parse_known, print_help

if TYPE_CHECKING:
    from asr_jax.cli.benchmark.recognising import Recognition
    from asr_jax.cli.benchmark.systems import System

PROG = "python -m asr_jax.benchmark inference"
STEPS, STEPS_ON_CPU = 500, 20


@dataclass(frozen=True, kw_only=True)
class InferenceOptions(RecognitionOptions):
    """Options of `asr_jax.benchmark inference`."""

    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Rows of a batch."""
    seconds: tuple[float, ...] = (2.0, 7.0, 16.7)
    """Audio of a row."""
    steps: int | None = None
    """Measured steps of each batch. Default: 500, on a CPU 20."""
    warm_ups: int = 10
    """Steps before those."""
    vocabulary: int | None = None
    """Number of labels of a config, with the blank. Default: its own."""
    data: Annotated[tuple[str, ...], arg(metavar="MANIFEST …")] = ()
    """Set to recognise as a whole."""
    batch_seconds: float | None = None
    """Padded audio of a batch of the set. Default: as in training."""
    workers: int = 0
    """Number of processes that read the set."""
    threads: int = 2
    """Threads of each process that reads."""
    published: bool = True
    """Print published figures of other systems too."""
    json: Annotated[Path | None, arg(metavar="OUT")] = None
    """File to write the figures to."""


def main(arguments: Sequence[str]) -> None:
    # A run comes first: behind it, values of a config's fields would look like one.
    run, given = (arguments[0], arguments[1:]) if arguments and not arguments[0].startswith("-") else ("", arguments)
    if asks_for_help(given):
        print_help(InferenceOptions, prog=f"{PROG} (RUN | --config FILE [--field …])", about=__doc__)
        if not run:
            parse_experiment(given, prog=PROG)  # exits
        return
    others, flags = parted(given)
    options, rest = parse_known(InferenceOptions, others, prog=PROG)
    use_device(options.device)
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
          "peak memory: this device does not tell")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def _check(options: InferenceOptions, run: str, rest: Sequence[str]) -> None:
    from asr_jax.cli.benchmark.systems import check_counts

    check_counts(options, ("batch_sizes", "steps", "threads"))
    check_counts(options, ("warm_ups", "workers"), least=0)
    check_counts(options, ("seconds", "batch_seconds"), least=0.1)
    if not run and not any(each.partition("=")[0] == "--config" for each in rest):
        raise UserError("expected a trained RUN, or --config FILE, first")
    if run and rest:
        raise UserError(
            f"{' '.join(rest)}: a run is taken as it was trained; expected none of a config's fields but --decoding.*"
        )
    if not run and (options.live or options.checkpoint is not None):
        raise UserError("--live and --checkpoint are of a RUN; a config has random weights")
    if not options.batch_sizes and not options.data:
        raise UserError("--batch-sizes is empty and there is no --data: nothing to measure")


def batches(recognition: Recognition, options: InferenceOptions, *, steps: int, rate_hz: int) -> list[dict[str, Any]]:
    """Milliseconds of each batch of the grid, as a whole and by part, and the most memory so far."""
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
    """Figures of each manifest."""
    from asr_jax.cli.benchmark.recognising import recognise_set
    from asr_jax.data.manifests.reading import read_utterances

    found = {}
    for manifest in options.data:
        data = system.plan(read_utterances([manifest], role="validation"), batch_seconds=options.batch_seconds)
        found[manifest] = recognise_set(recognition, data, workers=options.workers, threads=options.threads)
    return found


def show_batches(figures: dict[str, Any], about: str, *, published: bool) -> None:
    from asr_jax.cli.benchmark.published import print_latencies
    from asr_jax.observe.tables import print_table

    rows = []
    for each in figures["batches"]:
        whole = {"mean ms" if name == "mean" else name.replace("%", " %"): ms for name, ms in each["ms"]["all"].items()}
        parts = {name: part["mean"] for name, part in each["ms"].items() if name != "all"}
        memory = {"peak_bytes": each["peak_bytes"]} if each["peak_bytes"] else {}
        at = {"batch": each["batch"], "seconds": each["seconds"]}
        rows.append(at | whole | parts | {"× real time": each["rtfx"]} | memory)
    print_table(rows, title=f"{about}: ms of a batch, {figures['steps']} steps after {figures['warm_ups']}")
    if figures["steps"] < 100:
        print(f"of {figures['steps']} steps, 99 % is little less than the slowest; parts are timed on their own")
    if published:
        print_latencies(figures["batches"])


def show_sets(figures: dict[str, Any], about: str, *, published: bool) -> None:
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
        print_table(set_rates(ours), title="sets of recordings, beside those published")

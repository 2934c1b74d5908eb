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

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr_jax.cli.command_line import parse_experiment
from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable

PROG = "python -m asr_jax.benchmark inference"
STEPS, STEPS_ON_CPU = 500, 20


def main(arguments: Sequence[str]) -> None:
    from asr_jax.cli.recognition_options import decoding_of, load, parse_known, recognition_parser

    # A run comes first: behind it, values of a config's fields would look like one.
    run, given = (arguments[0], arguments[1:]) if arguments and not arguments[0].startswith("-") else ("", arguments)
    parser = recognition_parser(
        prog=PROG, description=__doc__, usage=f"{PROG} (RUN | --config FILE [--field …]) [options]",
        add_help="--config" not in " ".join(given),
    )  # fmt: skip
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=[1, 2, 4, 8, 16], help="rows (%(default)s)")
    parser.add_argument("--seconds", type=float, nargs="+", default=[2.0, 7.0, 16.7], help="of a row (%(default)s)")
    parser.add_argument("--steps", type=int, help=f"measured, of each batch ({STEPS}; {STEPS_ON_CPU} on a CPU)")
    parser.add_argument("--warm-ups", type=int, default=10, help="steps before those (%(default)s)")
    parser.add_argument("--vocabulary", type=int, help="of a config: labels and the blank (its own)")
    parser.add_argument("--data", nargs="+", metavar="MANIFEST", help="a set to recognise as a whole")
    parser.add_argument("--batch-seconds", type=float, help="padded audio of a batch of the set (as in training)")
    parser.add_argument("--workers", type=int, default=0, help="processes that read the set (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of each that reads (%(default)s)")
    parser.add_argument("--published", action=argparse.BooleanOptionalAction, default=True, help="others' figures too")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures here")
    options, flags, rest = parse_known(parser, given)
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


def _check(options: argparse.Namespace, run: str, rest: Sequence[str]) -> None:
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


def batches(recognition: Any, options: argparse.Namespace, *, steps: int, rate_hz: int) -> list[dict[str, Any]]:
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


def sets(recognition: Any, system: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of each manifest."""
    from asr_jax.cli.benchmark.recognising import recognise_set
    from asr_jax.data.manifests.reading import read_records

    found = {}
    for manifest in options.data:
        data = system.plan(read_records([manifest], role="validation"), batch_seconds=options.batch_seconds)
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

"""Benchmark of training: `python -m asr_jax.benchmark train --config FILE [--synthetic [SECONDS …]] [--field …]`.

Measures updates after warm-ups, by accumulation and number of devices: throughput, the rate of products and its share
of the device's peak rate of bfloat16, the share of the time that is spent waiting for data, and memory. Products within
kernels of Triton and Pallas are not counted. An update has the same number of utterances in each case: a device has the
rows of the update / accumulation / devices. With the data of the config, figures include the loader; with
`--synthetic`, the input is full batches of noise of these lengths. The config defines front-end, augmentation, loss,
optimizer and averaging.

Source: scripts/train_benchmark.sh of QuartzNet in NVIDIA/DeepLearningExamples: the rule of constant updates, lengths
(1408 to 1920 frames) and 100 labels. Differs from it: that script discards whole epochs as warm-up and disables
averaging (here --training.ema.decay 0).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from tyro.conf import arg

from asr_jax.cli.command_line import parse_with_experiment
from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable, write_whole
from asr_jax.core.flags import MAY_BE_EMPTY
from asr_jax.core.precision import Precision
from asr_jax.core.settings import PositiveInt, command_options
from asr_jax.data.batching.batching import Batching

if TYPE_CHECKING:
    from asr_jax.config import Experiment

PROG = "python -m asr_jax.benchmark train"
QUARTZNET_S = (14.08, 16.64, 19.2)
"""Minimum, middle and maximum length of NVIDIA's script in seconds: 16.7 s at speeds of ± 15 %."""
NUM_OPERATIONS = 20
"""Number of the operations with the largest shares of the time in the figures of a trace."""
WHOLE = "the rows of a batch are a positive multiple of data.batching.row_multiple and of the number of devices"
SHARED = "virtual devices of this CPU share its cores: these rows do not show the speed-up of real devices"


@command_options
class BenchmarkOptions:
    """Options of `asr_jax.benchmark train`."""

    synthetic: Annotated[tuple[float, ...] | None, arg(metavar="SECONDS …"), MAY_BE_EMPTY] = None
    """Use noise of these lengths; without a value: 14.08 16.64 19.2. Default: the data of the config."""
    accumulation: tuple[PositiveInt, ...] = ()
    """Numbers of batches of an update. Default: that of the config."""
    num_devices: tuple[PositiveInt, ...] = (1, 2, 4, 8)
    """Numbers of devices; those above the number of available devices are omitted."""
    batch: PositiveInt | None = None
    """Number of rows of an update of synthetic data. Default: as the batches of the config."""
    labels: PositiveInt = 100
    """Maximum number of labels of a row of synthetic data."""
    vocabulary: int | None = None
    """Size of the vocabulary of synthetic data, with the blank. Default: that of the config."""
    warm_ups: PositiveInt = 5
    """Number of updates before the measured ones."""
    updates: PositiveInt = 20
    """Number of measured updates in each case."""
    precision: Precision | None = None
    """Precision of the computation. Default: that of the config."""
    trace: Annotated[Path | None, arg(metavar="DIR")] = None
    """Folder for an XLA trace of three more updates of the first case, which are not timed, for XProf or Perfetto. The
    figures then have the operations that take most of the time, and the share of the time in which a device is idle."""
    json: Annotated[Path | None, arg(metavar="OUT")] = None
    """File to write the figures to, in JSON."""

    def problems(self) -> Iterator[str]:
        if self.synthetic and min(self.synthetic) < 0.1:
            yield f"synthetic is {self.synthetic}: expected each at least 0.1"


def main(arguments: Sequence[str]) -> None:
    options, experiment = parse_with_experiment(BenchmarkOptions, arguments, prog=PROG, about=__doc__)

    from asr_jax.cli.benchmark.systems import in_precision, machine
    from asr_jax.observe.tables import print_table

    experiment = in_precision(experiment, options.precision)
    check_writable(options.json)
    check_writable(options.trace, is_folder=True)
    figures: dict[str, Any] = {
        "machine": machine(),
        "config": experiment.name,
        "precision": experiment.training.precision,
        "data": "the config's own" if options.synthetic is None else {"synthetic_s": options.synthetic or QUARTZNET_S},
        "warm_ups": options.warm_ups,
        "updates": options.updates,
    }
    figures["cases"] = []
    for case in cases(experiment, options):
        figures["cases"].append(case)
        figures["machine"]["load_after"] = machine()["load"]
        if options.json:
            write_whole(options.json, json.dumps(figures, indent=1) + "\n")
    show(figures)
    if options.trace:
        figures["trace"] = summary(options.trace)
        print_table(figures["trace"]["operations"], title="operations")
        print_table(figures["trace"]["devices"], title="devices")
        if options.json:
            write_whole(options.json, json.dumps(figures, indent=1) + "\n")


def cases(experiment: Experiment, options: BenchmarkOptions) -> Iterator[dict[str, Any]]:
    """Yields the figures of each accumulation on each number of devices.

    Raises:
        UserError: If the rows of an update cannot be divided evenly, or if the sampling mode is not planned.
    """
    from asr_jax.cli.benchmark import updating
    from asr_jax.core.devices import devices

    there_are = len(devices())
    counts = sorted({num for num in options.num_devices if num <= there_are}) or [there_are]
    accumulations, batching = options.accumulation or (experiment.training.accumulate,), experiment.data.batching
    if options.accumulation and options.synthetic is None and (batching.rows or batching.devices is not None):
        raise UserError(
            "--accumulation divides the budget of a batch over all devices: expected data.batching without rows and "
            "devices, or --synthetic"
        )
    if options.synthetic is None:
        check_whole(math.lcm(batching.row_multiple, there_are), [(1, d) for d in counts])
    else:
        rows = options.batch or room(experiment, options.synthetic or QUARTZNET_S, accumulations, counts)
        check_whole(rows, [(a, d) for a in accumulations for d in counts])
    how = {"warm_ups": options.warm_ups, "updates": options.updates}
    for accumulation in accumulations:
        settings = updating.with_accumulation(experiment, accumulation)
        for num in counts:
            times: dict[str, Any] = {"num_devices": num, "accumulation": accumulation, **how}
            if (accumulation, num) == (accumulations[0], counts[0]):
                times["trace"] = options.trace
            if options.synthetic is None:
                with updating.loaded_groups(settings) as (case, groups):
                    yield from updating.time_updates(case, groups, **times)
            else:
                case, batches = updating.synthetic_case(
                    settings,
                    rows=rows // accumulation,
                    seconds=options.synthetic or QUARTZNET_S,
                    labels=options.labels,
                    vocabulary=options.vocabulary,
                )
                groups = updating.synthetic_groups(case, batches, accumulation)
                yield from updating.time_updates(case, groups, **times)


def summary(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the operations of the newest trace that take most of the time, with their modules, and its devices."""
    from asr_jax.cli.benchmark.updating import PROGRAM
    from asr_jax.core.hlo import Module
    from asr_jax.core.text_files import read_text
    from asr_jax.observe.profile import devices, largest, read_trace

    trace, modules = read_trace(max(folder.rglob("*.xplane.pb"))), dict[tuple[str, str], str]()
    for path in folder.glob(f"*{PROGRAM}"):
        text = read_text(path)
        program = text.partition(",")[0].removeprefix("HloModule ")
        for computation in Module(text).computations.values():
            modules |= {(program, name): each.op_name for name, each in computation.items()}
    operations = largest(trace, NUM_OPERATIONS)
    for each in operations:
        each["module"] = modules.get((each["program"], each["operation"]), "")
    return {"operations": operations, "devices": devices(trace)}


def room(experiment: Experiment, seconds: Sequence[float], accumulations: Sequence[int], devices: Sequence[int]) -> int:
    """Number of rows of an update of synthetic data that can be divided evenly in every case."""
    batching, unit = experiment.data.batching, math.lcm(*(a * d for a in accumulations for d in devices))
    budget_s = batching.budget if batching.unit.endswith("seconds") else Batching.budget
    of_batch = batching.budget if batching.unit == "utterances" else budget_s / max(seconds)
    return max(int(of_batch * experiment.training.accumulate) // unit, 1) * unit


def check_whole(rows: int, ways: Sequence[tuple[int, int]]) -> None:
    """Checks that rows can be divided evenly into batches and devices.

    Raises:
        UserError: If one of the divisions has a remainder.
    """
    for accumulation, devices in ways:
        if rows % (accumulation * devices):
            raise UserError(
                f"{rows} rows cannot be divided into {accumulation} batches on {devices} devices: expected --batch, or "
                f"data.batching.row_multiple, to be a multiple of {math.lcm(*(a * d for a, d in ways))}"
            )


def show(figures: dict[str, Any]) -> None:
    """Prints the table of all cases."""
    from asr_jax.cli.benchmark.systems import described
    from asr_jax.observe.tables import print_table

    alone = {each["accumulation"]: each["audio_s_per_s"] for each in figures["cases"] if each["devices"] == 1}
    rows = []
    for each in figures["cases"]:
        single = alone.get(each["accumulation"])
        rows.append(
            {
                "devices": each["devices"],
                "accumulation": each["accumulation"],
                "rows/device": float(each["rows_of_a_device"]),
                "s/update": float(np.mean(each["update_s"])),
                "±": float(np.std(each["update_s"])),
                "s/batch": each["batch_s"],
                "utterances/s": each["utterances_per_s"],
                "audio-s/s": each["audio_s_per_s"],
                "padded": each["padded_audio_s_per_s"],
                "/device": each["audio_s_per_s"] / each["devices"],
                "× one device": each["audio_s_per_s"] / single if single else None,
                "waiting_share": each["waiting_share"],
                "TFLOP/s/device": each["tflops_of_a_device"],
                "of peak": each["share_of_peak"],
                "planned bytes": each["planned_bytes"],
                "peak bytes": each["peak_bytes"],
            }
        )
    print_table(
        rows,
        title=f"{figures['config']}, {figures['precision']}, {figures['cases'][0]['parameters']:,} parameters, on "
        f"{described(figures['machine'])}: mean ± deviation of {figures['updates']} updates after "
        f"{figures['warm_ups']} warm-ups; audio-s/s is seconds of audio per second",
    )
    if figures["machine"]["device"] == "cpu" and max(each["devices"] for each in figures["cases"]) > 1:
        print(SHARED)
    sizes = [each["rows_of_a_device"] * each["devices"] * each["accumulation"] for each in figures["cases"]]
    if max(sizes) > 1.1 * min(sizes):
        print(f"the updates differ in size: {min(sizes):.0f} to {max(sizes):.0f} utterances; {WHOLE}")
    if voided := sum(each["voided"] for each in figures["cases"]):
        print(f"{voided} updates were not finite and were voided; the figures include their time")

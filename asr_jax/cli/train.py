"""Trains a model: `python -m asr_jax.train --config configs/zipformer.py [--field.name VALUE …]`.

`--dry-run` plans the data, compiles the programs, computes one batch of each shape and writes nothing. `--show
schedule` prints and draws the learning rate. Exit codes: 0, the run is complete or the job has completed its epochs; 1,
the run failed after it had started; 2, the run could not start; 75, a signal of a scheduler or training.max_hours ended
the job, and the same command continues the run; 130, Ctrl-C.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asr_jax.cli.command_line import parse_with_experiment
from asr_jax.core.environment import CACHES
from asr_jax.core.names import counted


@dataclass(frozen=True)
class TrainOptions:
    """Options of `asr_jax.train` in addition to the fields of the experiment."""

    show: Literal["schedule"] | None = None
    """Print and draw the learning rate without training."""


def main(arguments: Sequence[str]) -> None:
    options, experiment = parse_with_experiment(TrainOptions, arguments, prog="python -m asr_jax.train", about=__doc__)

    from asr_jax.core.files import size_of  # imported late, since it is slow and --help does not need it
    from asr_jax.core.processes import is_main, join
    from asr_jax.core.run_folder import CURVES, EVENTS
    from asr_jax.metrics.measure import deciding_text, measure_of, shown
    from asr_jax.observe.tables import quantity
    from asr_jax.observe.tensorboard import command_for
    from asr_jax.training.loop import train
    from asr_jax.training.preview import dry_run, show_schedule

    join()
    if options.show:
        show_schedule(experiment, Path("schedule.png"))
        return
    if experiment.dry_run:
        dry_run(experiment)
        return
    summary = train(experiment)
    if not is_main():
        return
    if "continues" in summary:
        print(summary["continues"])
        return
    folder = summary["folder"]
    if summary.get("already"):
        print(f"already trained: {counted(summary['update'], 'update')} in {folder}; {summary['already']}")
    measure = measure_of(summary)
    best = shown(measure, summary[f"best_{measure}"])
    print(f"validation {deciding_text(summary)}, best {best}; checkpoint {summary['checkpoint']}")
    print(f"events {folder}/{EVENTS}; curves {folder}/{CURVES}; evaluate: python -m asr_jax.evaluate {folder} --data …")
    print(f"curves in TensorBoard: {command_for(Path(folder))}")
    print(f"caches: {quantity(size_of(Path(CACHES)), 'B')} in {CACHES}; python -m asr_jax.clean lists and removes them")

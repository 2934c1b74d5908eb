"""Trains a model: `python -m asr_jax.train --config configs/zipformer.py [--field.name VALUE …]`.

`--dry-run` plans, compiles, computes a batch of each shape and writes nothing; `--show schedule` prints and draws the
learning rate. Exit codes: 0 the run is complete, or has done the epochs of its job; 1 it had begun and could not go on;
2 it could not begin; 75 a signal of a scheduler or training.max_hours ended the job (the same command goes on); 130
Ctrl-C.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asr_jax.cli.command_line import parse_with_experiment


@dataclass(frozen=True)
class TrainOptions:
    """Options of `asr_jax.train` beside the experiment's fields."""

    show: Literal["schedule"] | None = None
    """Print and draw the learning rate, and train nothing."""


def main(arguments: Sequence[str]) -> None:
    options, experiment = parse_with_experiment(TrainOptions, arguments, prog="python -m asr_jax.train", about=__doc__)

    from asr_jax.core.processes import is_main, join  # after parsing: --help and mistakes need not wait for it
    from asr_jax.core.run_folder import CURVES, EVENTS
    from asr_jax.metrics.measure import NAMES, measure_of, shown
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
        print(f"already trained: {summary['update']} updates in {folder}; {summary['already']}")
    measure = measure_of(summary)
    last, best = (shown(measure, summary[name]) for name in (measure, f"best_{measure}"))
    print(f"validation {NAMES[measure]} {last}, best {best}; checkpoint {summary['checkpoint']}")
    print(f"events {folder}/{EVENTS}; curves {folder}/{CURVES}; evaluate: python -m asr_jax.evaluate {folder} --data …")

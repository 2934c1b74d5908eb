"""Trains a model: `python -m asr_jax.train --config configs/zipformer.py [--field.name VALUE …]`.

`--dry-run` plans, compiles, computes a batch of each shape and writes nothing; `--show schedule` prints and draws the
learning rate. Exit codes: 0 the run is complete, or has done the epochs of its job; 1 it had begun and could not go on;
2 it could not begin; 75 a signal of a scheduler or training.max_hours ended the job (the same command goes on); 130
Ctrl-C.
"""

from collections.abc import Sequence
from pathlib import Path

from asr_jax.cli.command_line import parse_experiment
from asr_jax.core.errors import UserError


def main(arguments: Sequence[str]) -> None:
    arguments, shows = _without_show(arguments)
    experiment = parse_experiment(arguments, prog="python -m asr_jax.train")

    from asr_jax.core.processes import is_main, join  # after parsing: --help and mistakes need not wait for it
    from asr_jax.core.run_folder import CURVES, EVENTS
    from asr_jax.metrics.measure import NAMES, measure_of, shown
    from asr_jax.training.loop import train
    from asr_jax.training.preview import dry_run, show_schedule

    join()
    if shows:
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


def _without_show(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """The arguments without `--show schedule`, and whether it was there.

    Raises: UserError where something else is to be shown.
    """
    rest = [part for each in arguments for part in (each.split("=", 1) if each.startswith("--show=") else [each])]
    if "--show" not in rest:
        return rest, False
    place = rest.index("--show")
    what = rest[place + 1] if place + 1 < len(rest) else ""
    if what != "schedule":
        raise UserError(f"--show {what or 'has no value'}: expected --show schedule")
    return rest[:place] + rest[place + 2 :], True

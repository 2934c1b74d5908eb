"""Trains a model: `python -m asr_jax.train --config configs/zipformer.py [--field.name VALUE …]`.

`--smoke` trains 20 updates on 50 utterances with one batch shape, validates and saves, in the folder RUN-smoke.
`--dry-run` reports the data, compiles the programs, computes one batch of each shape and writes nothing. `--show
schedule` prints the learning rate, and `--plot OUT.png` draws it as well. `--tui` shows a dashboard of the run. Exit
codes: 0, the run is complete or the job has completed its epochs; 1, the run failed after it had started; 2, the run
could not start; 75, a signal of a scheduler or training.limits.max_hours ended the job, and the same command continues
the run; 130, Ctrl-C.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from asr_jax.cli.command_line import parse_with_experiment
from asr_jax.config import Experiment
from asr_jax.core.environment import CACHES
from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.core.paths import quoted
from asr_jax.core.settings import command_options


@command_options
class TrainOptions:
    """Options of `asr_jax.train` in addition to the fields of the experiment."""

    show: Literal["schedule"] | None = None
    """Print the learning rate without training."""
    plot: Annotated[Path | None, arg(metavar="OUT.png")] = None
    """File for a picture of what `--show` prints."""
    smoke: bool = False
    """Train 20 updates on 50 utterances with one small batch shape, validate and save, in the folder RUN-smoke. It
    replaces the earlier smoke run."""
    tui: bool = False
    """Train in a process of its own and show a dashboard, as asr_jax.watch; q closes it, and the run goes on. Without a
    terminal, the run prints lines as without --tui."""


def main(arguments: Sequence[str]) -> None:
    options, experiment = parse_with_experiment(TrainOptions, arguments, prog="python -m asr_jax.train", about=__doc__)
    if options.plot and (not options.show or options.plot.suffix != ".png"):
        raise UserError(f"--plot {options.plot}: expected --show schedule, and a name that ends in .png")
    if options.smoke and options.show:
        raise UserError("--smoke trains and --show does not: expected one of them")
    if options.tui:
        if options.show or options.smoke or experiment.dry_run:
            raise UserError("--tui shows a training: expected no --show, --smoke and --dry-run")
        _train_with_dashboard(experiment, arguments)

    from asr_jax.core.files import size_of  # imported late, since it is slow and --help does not need it
    from asr_jax.core.processes import is_main, join
    from asr_jax.core.run_folder import CURVES, EVENTS
    from asr_jax.metrics.measure import deciding_text, measure_of, shown
    from asr_jax.observe.tables import quantity
    from asr_jax.observe.tensorboard import command_for
    from asr_jax.training.loop import train
    from asr_jax.training.preview import dry_run, show_schedule
    from asr_jax.training.smoke import smoke_run

    join()
    if options.show:
        show_schedule(experiment, options.plot)
        return
    if options.smoke:
        lines = smoke_run(experiment)
        if is_main():
            print("\n".join(lines))
            others = [argument for argument in arguments if argument != "--smoke"]
            print(f"next: python -m asr_jax.train {shlex.join(others)}")
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
    evaluate = f"python -m asr_jax.evaluate {quoted(folder)} --data …"
    print(f"events {folder}/{EVENTS}; curves {folder}/{CURVES}; evaluate: {evaluate}")
    print(f"curves in TensorBoard: {command_for(Path(folder))}")
    print(f"caches: {quantity(size_of(Path(CACHES)), 'B')} in {CACHES}; python -m asr_jax.clean lists and removes them")


def _train_with_dashboard(experiment: Experiment, arguments: Sequence[str]) -> None:
    """Trains in another process, shows its events, and ends this process with its exit code.

    Returns without a start if there is no terminal for a dashboard.
    """
    from asr_jax.watching.background import NO_SCREEN, has_screen, run_with_dashboard

    if not has_screen():
        print(NO_SCREEN, file=sys.stderr)
        return
    from asr_jax.core.devices import chosen_flags
    from asr_jax.core.run_folder import EVENTS
    from asr_jax.training.run import find_run

    folder = find_run(experiment)
    others = [argument for argument in arguments if argument != "--tui"]
    command = [sys.executable, "-m", "asr_jax.train", *chosen_flags(), *others]
    sys.exit(run_with_dashboard(command, folder / EVENTS, name=folder.name))

"""Shows runs while they go on, or later, in the terminal: `python -m asr_jax.watch RUN …`.

It reads the events of each run, RUN/events.jsonl, and nothing else: it can be started before, during and after
training, on any machine that sees the folder. Several runs are shown side by side. q quits, and the runs go on. The
output of asr_jax.extract_features can be watched in the same way. Without a terminal, with NO_COLOR, with TERM=dumb or
with --plain, the events are printed as lines until all runs have ended. The dashboard needs the extra
`watch` (documentation: quickstart).
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from asr_jax.core.errors import UserError
from asr_jax.core.names import unique
from asr_jax.core.options import parse
from asr_jax.core.run_folder import EVENTS
from asr_jax.core.settings import command_options


@command_options
class WatchOptions:
    """Options of `asr_jax.watch`."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN …")]
    """Folders of runs, files of events, or outputs of asr_jax.extract_features."""
    plain: bool = False
    """Print lines, also in a terminal."""


def main(arguments: Sequence[str]) -> None:
    options = parse(WatchOptions, arguments, prog="python -m asr_jax.watch", about=__doc__, uses_devices=False)
    if not options.runs:
        raise UserError("RUN is missing: expected the folder of a run, or several")
    paths = [_events(run) for run in options.runs]
    names = unique([run.resolve().name for run in options.runs])

    from asr_jax.watching.background import has_screen, show_dashboard
    from asr_jax.watching.plain import print_events

    if has_screen() and not options.plain:
        sys.exit(show_dashboard(paths, names))
    print_events(paths, names)


def _events(run: Path) -> Path:
    """Returns the file of events of a run or of an extraction.

    Raises:
        UserError: If there is none. A folder without events may be that of a run that starts.
    """
    from asr_jax.observe.events import events_beside

    beside = events_beside(run)
    if run.is_file() and run.suffix == ".jsonl":
        return run
    if beside.exists() and not (run / EVENTS).exists():
        return beside
    if run.is_dir():
        return run / EVENTS
    what = "has no events" if run.exists() else "does not exist"
    raise UserError(f"{run} {what}: expected the folder of a run, or the output of asr_jax.extract_features")

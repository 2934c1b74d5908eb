"""Sends the events of a run to other trackers: `python -m asr_jax.observe.forward RUN --to NAME [--follow]`.

NAME is wandb, mlflow or trackio.

It reads RUN/events.jsonl and RUN/experiment.json, and does not touch the run: it can be started before, during and
after training, on any machine that sees the folder. RUN/forwarded-NAME.json has the position up to which events were
sent; the next start continues from there. --follow waits for further events until the run is complete or has failed.
Trackers are configured by their own environment variables: WANDB_MODE=offline, WANDB_API_KEY, MLFLOW_TRACKING_URI,
TRACKIO_DIR, TRACKIO_SERVER_URL. Each needs the extra of its name (documentation: quickstart).
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from tyro.conf import Positional, arg

from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import held, write_whole
from asr_jax.core.installation import installing
from asr_jax.core.options import parse, run_report
from asr_jax.core.run_folder import EXPERIMENT
from asr_jax.core.settings import command_options
from asr_jax.core.text_files import read_text
from asr_jax.observe.events import FILE_NAME, Event, event_of

POLL_S = 2.0
ENDS = ("run_complete", "run_failed")


class Receiver(Protocol):
    """A run in another tracker."""

    id: str
    """Identifier with which the tracker continues the run."""

    def send(self, events: list[Event], first: int) -> None:
        """Logs events in order; `first` is the number of the first one in the file, from 0."""

    def close(self) -> None:
        """Completes the transfer."""


Open = Callable[[Path, Mapping[str, Any], str, str], Receiver]
"""Opens a receiver: folder of the run, its settings, project, and identifier (empty for a new run)."""


def forward(run: Path, name: str, open_receiver: Open, *, project: str, follow: bool, poll_s: float = POLL_S) -> int:
    """Sends the events that were not sent yet.

    Args:
        follow: Whether to wait for further events until the run has ended.
        poll_s: Seconds between two looks at the file.

    Raises:
        UserError: If the folder is not a run, if one of its files is damaged, if its events are other ones than before,
            or if another process sends them.
        RunError: If the tracker fails, as without network.
    """
    state, events = run / f"forwarded-{name}.json", run / FILE_NAME
    if not events.is_file() or not (run / EXPERIMENT).is_file():
        raise UserError(f"{run} has no {FILE_NAME} and {EXPERIMENT}: expected the folder of a run")
    with held(run / f"forwarded-{name}.lock", f"{run} is being sent to {name}"):
        before: dict[str, Any] = {"position": 0, "events": 0, "id": ""}
        if state.is_file():
            before = _read(state, before, fix="remove it to send all events again")
        if before["position"] > events.stat().st_size:
            raise UserError(
                f"{events} is shorter than before, so it is of another run: remove {state} to send all of it"
            )
        settings, number = _read(run / EXPERIMENT, {"name": ""}, fix="expected the settings of a run"), before["events"]
        with _named_errors(name), closing(open_receiver(run, settings, project, before["id"])) as receiver:
            for new, position in _parts(events, before["position"], follow=follow, poll_s=poll_s):
                receiver.send(new, number)
                number += len(new)
                write_whole(state, json.dumps({"position": position, "events": number, "id": receiver.id}) + "\n")
    return int(number - before["events"])


def _read(path: Path, example: Mapping[str, Any], *, fix: str) -> dict[str, Any]:
    """Reads a JSON object with at least the fields of an example, which have the same types."""
    try:
        found = json.loads(read_text(path))
        if isinstance(found, dict) and all(type(found.get(name)) is type(value) for name, value in example.items()):
            return found
    except ValueError:
        pass
    raise UserError(f"{path} is damaged, or not an object with {' and '.join(example)}: {fix}")


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    """Names the tracker in errors of its client, which has its own kinds of them."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise RunError(
            f"{name} failed ({type(error).__name__}: {error}): check its server and the environment variables in "
            "--help; the next start continues after the events that were sent"
        ) from error


def _parts(path: Path, position: int, *, follow: bool, poll_s: float) -> Iterator[tuple[list[Event], int]]:
    """Yields the complete lines after a position as events, with the position after them."""
    while True:
        with path.open("rb") as file:
            file.seek(position)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        found = [_event(line, path) for line in complete.split(b"\n")[:-1]]
        position += len(complete)
        if found:
            yield found, position
        if not follow or (found and found[-1]["event"] in ENDS):
            return
        time.sleep(poll_s)


def _event(line: bytes, path: Path) -> Event:
    event = event_of(line)
    if event is None:
        raise UserError(f"{path}: not an event: {line[:60]!r}; repair or delete this line")
    return event


@command_options
class ForwardOptions:
    """Options of `asr_jax.observe.forward`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of the run."""
    to: Literal["wandb", "mlflow", "trackio"]
    """Tracker."""
    project: str = "asr_jax"
    """Project of Weights & Biases or trackio, or experiment of MLflow."""
    follow: bool = False
    """Whether to wait for further events until the run is complete or has failed."""


def main(arguments: Sequence[str]) -> None:
    options = parse(ForwardOptions, arguments, prog="python -m asr_jax.observe.forward", about=__doc__)
    number = forward(options.run, options.to, _opener(options.to), project=options.project, follow=options.follow)
    print(f"{number} events of {options.run} are in {options.to}")


def _opener(name: str) -> Open:
    """Imports a tracker, which takes seconds."""
    try:
        if name == "wandb":
            from asr_jax.observe.wandb import Wandb

            return Wandb
        if name == "trackio":
            from asr_jax.observe.trackio import Trackio

            return Trackio
        from asr_jax.observe.mlflow import Mlflow

        return Mlflow
    except ImportError as error:
        raise UserError(f"--to {name} needs its client, and {error}: {installing(name)}") from error


if __name__ == "__main__":
    run_report(main)

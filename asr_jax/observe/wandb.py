"""Events of a run in Weights & Biases: the scalars of TensorBoard over the update, settings and summary."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from asr_jax.observe.events import Event
from asr_jax.observe.tensorboard import scalar_tags, summary_numbers


class Wandb:
    """A run of Weights & Biases, in RUN/wandb if its mode is offline."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], project: str, identifier: str) -> None:
        """Creates or continues the run."""
        self._run = wandb.init(
            project=project,
            id=identifier or None,
            resume="allow",
            name=settings["name"],
            config=dict(settings),
            dir=str(folder),
            settings=wandb.Settings(console="off", x_disable_stats=True, silent=True),
        )
        self.id = self._run.id
        self._exit_code = 0
        # Steps of the tracker only increase, and a run that resumes repeats updates: its steps are numbers of events.
        self._run.define_metric("update", hidden=True)
        self._run.define_metric("*", step_metric="update")

    def send(self, events: list[Event], first: int) -> None:
        """Logs the scalars of each event, and the summary of a complete run."""
        for number, event in enumerate(events, start=first):
            if numbers := scalar_tags(event):
                place = {"update": event["data"]["update"], "_timestamp": event["timestamp_ms"] / 1000}
                self._run.log(numbers | place, step=number)
            if found := summary_numbers(event):
                self._run.summary.update(found)
            self._exit_code = int(event["event"] == "run_failed")

    def close(self) -> None:
        """Waits until everything is sent or, offline, written."""
        self._run.finish(exit_code=self._exit_code)

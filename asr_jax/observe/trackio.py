"""Events of a run in trackio: the scalars of TensorBoard with the update as step, settings and summary."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trackio

from asr_jax.observe.events import Event
from asr_jax.observe.tensorboard import scalar_tags, summary_numbers


class Trackio:
    """A run of trackio: in the folder TRACKIO_DIR, or of the server or Space of its other variables."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], project: str, identifier: str) -> None:
        """Creates or continues the run.

        Trackio continues runs by their names. Runs of different folders can have the same name, so that random
        characters follow it.
        """
        self.id = identifier or f"{settings['name']}-{secrets.token_hex(3)}"
        self._run = trackio.init(
            project=project,
            name=self.id,
            config={"folder": str(folder.absolute()), **settings},
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def send(self, events: list[Event], first: int) -> None:
        """Logs the scalars of each event, and the summary of a complete run."""
        for event in events:
            if numbers := scalar_tags(event) | summary_numbers(event):
                self._run.log(numbers, step=event["data"].get("update", 0))

    def close(self) -> None:
        """Waits until everything is written or sent."""
        trackio.finish()

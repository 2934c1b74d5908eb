"""Events of a run in MLflow: the scalars of TensorBoard as metrics with the update as step, settings as parameters."""

import re
from collections.abc import Iterator, Mapping
from itertools import batched
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from asr_jax.observe.events import Event
from asr_jax.observe.tensorboard import scalar_tags, summary_numbers

MOST_METRICS, MOST_PARAMETERS, LONGEST_VALUE = 1000, 100, 6000
"""Limits of one request of MLflow."""
STATES = {"run_complete": "FINISHED", "run_failed": "FAILED", "job_stopped": "KILLED", "run_start": "RUNNING"}


class Mlflow:
    """A run of the MLflow server or folder in MLFLOW_TRACKING_URI."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], project: str, identifier: str) -> None:
        """Creates or continues the run."""
        self._client, self._state = MlflowClient(), "RUNNING"
        self.id = identifier or self._created(folder, settings, project)

    def send(self, events: list[Event], first: int) -> None:
        """Logs the scalars of each event, changed settings, and the state and the summary of the run."""
        metrics = [
            Metric(_valid(name), value, event["timestamp_ms"], event["data"].get("update", 0))
            for event in events
            for name, value in (scalar_tags(event) | summary_numbers(event)).items()
        ]
        for part in batched(metrics, MOST_METRICS):
            self._client.log_batch(self.id, metrics=part)
        for event in events:
            if event["event"] == "setting_changed":  # parameters cannot change
                self._client.set_tag(self.id, _valid(f"changed/{event['data']['setting']}"), event["data"]["new"])
            self._state = STATES.get(event["event"], self._state)

    def close(self) -> None:
        """Sets the state of the run, which is RUNNING if it has not ended."""
        if self._state == "RUNNING":
            self._client.update_run(self.id, status=self._state)
        else:
            self._client.set_terminated(self.id, status=self._state)

    def _created(self, folder: Path, settings: Mapping[str, Any], project: str) -> str:
        experiment = self._client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(project)
        tags = {"folder": str(folder.absolute())}
        identifier: str = self._client.create_run(number, run_name=settings["name"], tags=tags).info.run_id
        parameters = [Param(_valid(name), str(value)[:LONGEST_VALUE]) for name, value in _leaves(settings)]
        for part in batched(parameters, MOST_PARAMETERS):
            self._client.log_batch(identifier, params=part)
        return identifier


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted names of settings and their values; lists without settings in them are values."""
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        value = {str(number): each for number, each in enumerate(value)}
    if not isinstance(value, dict):
        yield name, value
        return
    for key, each in value.items():
        yield from _leaves(each, f"{name}.{key}".removeprefix("."))


def _valid(name: str) -> str:
    """Returns a name without the characters and the empty parts that MLflow refuses."""
    return re.sub("/+", "/", re.sub(r"[^\w\-. /:]", "_", name))

"""Progress of a run on the console, from its events: a bar on a terminal, otherwise plain lines."""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from asr_jax.core.names import counted
from asr_jax.metrics.measure import NAMES, by_set, deciding_text, measure_of
from asr_jax.observe.events import Event
from asr_jax.observe.tables import console_for, percent, print_table, quantity, say, validation_name
from asr_jax.observe.transcripts import aligned_lines

Data = dict[str, Any]
REFRESH_HZ = 2.0
"""Refresh rate of the bar."""


class ProgressView:
    """Event sink that prints to a console, by default standard output.

    A terminal has a bar with the figures of the last train_step below it, redrawn in place. A file or CI log has a line
    with the same figures, without control characters, at most every `plain_every` updates. Validations, bucket tables,
    checkpoints and warnings are printed in both cases. Nothing is written before the first event.

    Args:
        console: Console to print to. Default: standard output.
        plain_every: Minimum number of updates between lines if there is no terminal.
        num_samples: Number of transcripts to show at each validation.
        tick_s: Seconds between lines with the elapsed time while programs are compiled, if there is no terminal.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        plain_every: int = 50,
        num_samples: int = 3,
        tick_s: float = 30.0,
    ) -> None:
        self.console = console or console_for()
        self.plain_every = plain_every
        self.num_samples = num_samples
        self._live: Live | None = None
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
            console=self.console,
            expand=True,
        )
        self._task = self._bar.add_task("starting", total=None, done="")
        self._run: Data = {}
        self._first: Data | None = None
        self._validated: str | None = None
        self._printed: int | None = None
        self._numbers = ""
        self._tick_s, self._started_s, self._compile_s = tick_s, time.monotonic(), 0.0
        self._is_compiled = threading.Event()
        self._views: dict[str, Callable[[Data], None]] = {
            "run_start": self._run_start,
            "resumed": self._resumed,
            "compile_start": self._compile_start,
            "compiled": self._compiled,
            "compile": self._compile,
            "initialised": lambda data: self._say(data["message"]),
            "samples": lambda data: self._samples(data),
            "voided": lambda data: self._say(
                f"{counted(data['count'], 'update')} with values that are not finite changed nothing: {data['path']}",
                style="yellow",
            ),
            "profile": lambda data: self._say(
                f"trace in {data['path']}: open it with xprof or Perfetto, or print a summary with python -m "
                f"asr_jax.observe.profile {Path(data['path']).parent}"
            ),
            "pre_allocated": lambda data: self._say(
                f"noise passed through {counted(data['shapes'], 'shape')} in {data['seconds']:g} s"
            ),
            "job_stopped": lambda data: self._say(f"stopped after update {data['update']:,}: {data['reason']}"),
            "rejected": self._rejected,
            "differing": self._differing,
            "train_step": self._train_step,
            "validation_start": lambda data: self._bar.update(
                self._task, description=f"validating {validation_name(data)}"
            ),
            "validation": self._validation,
            "checkpoint_saved": lambda data: self._say(
                f"checkpoint at update {data['update']:,}: {data.get('path', '')}"
            ),
            "uploaded": lambda data: self._say(f"uploaded checkpoint {data['update']:,}: {data['url']}"),
            "upload_failed": lambda data: self._warn(
                f"checkpoint {data['update']:,} is not uploaded: {data['reason']}"
            ),
            "recompiled": lambda data: self._warn(
                f"compiled after the first update: {data['function']} ({data['seconds']:.1f} s): {data['reason']}"
            ),
            "warning": lambda data: self._warn(data["message"]),
            "data": lambda data: self._say(f"{data['set']}: {data['message']}"),
            "run_complete": self._run_complete,
        }

    def __call__(self, event: Event) -> None:
        """Prints an event. Events without a view are ignored."""
        if view := self._views.get(event["event"]):
            view(event["data"])

    def close(self) -> None:
        """Stops the bar, leaves its last state on the screen and restores the terminal."""
        self._is_compiled.set()
        if self._live:
            self._live.stop()
            self._live = None

    def _run_start(self, data: Data) -> None:
        self._run = data
        counts = {
            "parameters": data.get("num_parameters"),
            "devices": None if "on" in data else data.get("num_devices"),
            "updates": data.get("num_updates"),
            "epochs": data.get("num_epochs"),
        }
        known = {name: count for name, count in counts.items() if count}
        about = [f"{name} {quantity(n) if name == 'parameters' else f'{n:,}'}" for name, n in known.items()]
        if "on" in data:
            about.append(f"on {data['on']}")
        changes = [f"{each['setting']}: {each['old']} before, {each['new']} now" for each in data.get("changed", ())]
        changed = f"; changed: {'; '.join(changes)}" * bool(changes)
        self._say(f"run {data.get('run', '')}: {', '.join(about)}{changed}", style="bold")
        self._start_live()

    def _resumed(self, data: Data) -> None:
        self._first = self._printed = None
        self._say(f"resumed at update {data['update']:,} from {data.get('path', 'a checkpoint')}")

    def _rejected(self, data: Data) -> None:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in data.get("reasons", {}).items())
        self._say(f"rejected {counted(data['count'], 'utterance')}: {reasons}", style="yellow")
        for file in data.get("files", []):
            self._say(f"  {file}", style="yellow")
        if data["count"] > len(data.get("files", [])) and "path" in data:
            self._say(f"  … all of them in {data['path']}", style="yellow")

    def _differing(self, data: Data) -> None:
        first = data["files"][0] if data["files"] else "one"
        self._say(
            f"{counted(data['count'], 'utterance')} used with remarks on the audio, such as {first}: {data['reason']}; "
            f"all of them are in {data['path']} (stage used)",
            style="yellow",
        )

    def _train_step(self, data: Data) -> None:
        self._first = self._first or data
        total, update = self._run.get("num_updates"), data["update"]
        epoch = _of(data["epoch"], math.ceil(self._run.get("num_epochs") or 0))
        self._numbers = step_numbers(data, left_s=left_s(self._first, data, total), validated=self._validated)
        done = _of(update, total)
        self._bar.update(self._task, description=f"epoch {epoch}", total=total, completed=update, done=done)
        self._start_live()
        due = self._printed is None or update - self._printed >= self.plain_every or update == total
        if due and not self._live:
            self._printed = update
            self._say(f"epoch {epoch} | update {done} | {self._numbers}")

    def _validation(self, data: Data) -> None:
        self._validated = f"{deciding_text(data)} at {data['update']:,}"
        self._bar.update(self._task, description="training")
        if "sets" in data:
            self._table(set_rows(data), title=sets_title(data))
        else:
            self._say(validation_line(data), style="bold")
        for head, figures in data.get("heads", {}).items():
            self._say(f"  head {head}: {_rates(figures)}")
        self._samples(data)

    def _samples(self, data: Data) -> None:
        for sample in data.get("samples", [])[: self.num_samples]:
            lines = aligned_lines(sample["reference"], sample["hypothesis"], width=min(self.console.width, 120) - 2)
            for line in lines:
                self._say("  " + line, style="dim" if line.startswith("ref") else "")

    def _compile_start(self, data: Data) -> None:
        trial = " (--data.batching.num-buckets 1 compiles a single one, for trials)" if data["shapes"] > 1 else ""
        self._say(f"compiling {counted(data['shapes'], 'batch shape')}{trial}; later starts load them from a cache")
        self._started_s, self._compile_s = time.monotonic(), data.get("elapsed_s", 0.0)
        self._compiling = "compiling"
        if not self._live:  # a terminal has the elapsed time in its bar
            self._is_compiled = threading.Event()
            threading.Thread(target=self._tick, args=(self._is_compiled,), daemon=True).start()

    def _tick(self, is_over: threading.Event) -> None:
        while not is_over.wait(self._tick_s):
            self._say(f"{self._compiling} for {self._compile_clock()}")

    def _compile_clock(self) -> str:
        return clock(time.monotonic() - self._started_s)

    def _compile(self, data: Data) -> None:
        self._is_compiled.set()
        self._table(data["rows"], title="Compiled, one row per bucket (memory and flops of one device)")
        if "memory" in data:
            self._say(memory_line(data["memory"]))

    def _compiled(self, data: Data) -> None:
        done = f"{data['number']} of {data['shapes']}"
        if data["number"] == data["shapes"]:
            self._compiling = "compiling the update of the parameters"
        self._bar.update(self._task, description=f"compiled {done} batch shapes")
        if not self._live:
            self._say(f"compiled {done} in {clock(data.get('elapsed_s', 0.0) - self._compile_s)}")

    def _run_complete(self, data: Data) -> None:
        self.close()
        reason = f" ({data['reason']})" if data.get("reason") else ""
        updates = data.get("update", int(self._bar.tasks[0].completed))
        self._say(f"done{reason}: {counted(updates, 'update')} in {clock(data['elapsed_s'])}", style="bold")

    def _start_live(self) -> None:
        if self._live is None and self.console.is_terminal:
            self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=REFRESH_HZ)
            self._live.start()

    def _render(self) -> Group:
        return Group(self._bar, Text("  " + self._numbers, no_wrap=True, overflow="ellipsis"))

    def _table(self, rows: list[Data], *, title: str) -> None:
        print_table(rows, title=title, console=self.console)

    def _warn(self, message: str) -> None:
        self._say(f"warning: {message}", style="bold yellow")

    def _say(self, text: str, *, style: str = "") -> None:
        for line in text.rstrip("\n").split("\n"):
            say(self.console, line, style=style)


def left_s(first: Data, last: Data, total: int | None) -> float | None:
    """Returns the estimated seconds to the last update, at the mean rate of a job, including validations.

    Args:
        first: Fields of the first train_step event of the job.
        last: Fields of its last train_step event.
        total: Number of updates of the run.
    """
    updates = last["update"] - first["update"]
    if not total or updates <= 0:
        return None
    return float((total - last["update"]) * (last["elapsed_s"] - first["elapsed_s"]) / updates)


def step_numbers(data: Data, *, left_s: float | int | None, validated: str | None) -> str:
    """Returns the figures of a train_step event as one line."""
    speed = data.get("throughput", {})
    parts = [f"loss {_number(data['losses'].get('total'), '.4g')}", f"lr {_number(data.get('learning_rate'), '.2e')}"]
    accuracies = [value for name, value in data.get("metrics", {}).items() if name.endswith("/accuracy")]
    parts += [f"accuracy {percent(accuracy)}" for accuracy in accuracies]
    if speed.get("audio_s_per_s"):
        parts.append(f"{_number(speed['audio_s_per_s'], ',.1f')} audio-s/s")
    if speed.get("padding_share") is not None:
        parts.append(f"padding {percent(speed['padding_share'], digits=1)}")
    if left_s is not None:
        parts.append(f"remaining {clock(left_s)}")
    return " | ".join(parts + ([validated] if validated else []))


def memory_line(memory: Data) -> str:
    """Returns the largest memory of a device and the device's limit, of the event compile, as one line."""
    needed, limit = memory["maximum_bytes"], memory["limit_bytes"]
    of_device = "the device reports no limit" if limit is None else f"limit of the device: {quantity(limit, 'B')}"
    return f"maximum memory, with the averaged parameters: {quantity(needed, 'B')}; {of_device}"


def validation_line(data: Data) -> str:
    """Returns WER and CER of a validation with their counts, or its loss with all terms and metrics, as one line."""
    place = f"{validation_name(data)} at update {data['update']:,}"
    if measure_of(data) == "loss":
        figures = data.get("losses", {}) | data.get("metrics", {})
        parts = "  ".join(f"{name.rpartition('/')[2]} {_number(value, '.4g')}" for name, value in figures.items())
        loss = _number(data.get("loss"), ".4g")
        return f"{place}: loss {loss}  ({parts})  of {counted(data.get('utterances', 0), 'utterance')}"
    loss = f"  loss {_number(data['loss'], '.4g')}" if "loss" in data else ""
    return f"{place}: {_rates(data)}{loss}{_normaliser(data)}"


def _rates(data: Data) -> str:
    """Returns WER and CER, first the one that chooses the best checkpoint, and the counts of words."""
    errors = "  ".join(f"{name[0].upper()} {data[name]:,}" for name in ("substitutions", "deletions", "insertions"))
    counts = f"{errors}  of {counted(data['words'], 'word')}, {counted(data['utterances'], 'utterance')}"
    names = sorted(("wer", "cer"), key=lambda name: name != measure_of(data))
    return "  ".join(f"{name.upper()} {percent(data.get(name))}" for name in names) + f"  {counts}"


def sets_title(data: Data) -> str:
    """Returns the line above the table of several validation sets."""
    place = f"{validation_name(data)} at update {data['update']:,}"
    return f"{place}  (training.saving.best_of {data['best_of']}, by {NAMES[measure_of(data)]}){_normaliser(data)}"


def set_rows(data: Data) -> list[Data]:
    """Returns a row for each validation set, the mean and all sets together: rates with counts, or loss and metrics."""
    fields = {"loss": "loss"}
    if measure_of(data) != "loss":
        edits = {"S": "substitutions", "D": "deletions", "I": "insertions"}
        fields = {"wer": "wer", "cer": "cer", **edits, "words": "words"} | ({"loss": "loss"} if "loss" in data else {})
    metrics = {name: name.rpartition("/")[2] for name in data.get("metrics", {}) if measure_of(data) == "loss"}
    return [
        {"set": name}
        | {column: figures.get(field) for column, field in fields.items()}
        | {column: figures.get("metrics", {}).get(metric) for metric, column in metrics.items()}
        | {"utterances": figures.get("utterances")}
        for name, figures in by_set(data).items()
    ]


def clock(seconds: float | int) -> str:
    """Returns a duration as `h:mm:ss`."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"


def _normaliser(data: Data) -> str:
    return f"  (normaliser {data['normaliser']})" if data.get("normaliser") else ""


def _number(value: float | int | None, form: str) -> str:
    return "nan" if value is None else format(value, form)


def _of(value: int, total: float | int | None) -> str:
    return f"{value:,}/{total:,}" if total else f"{value:,}"

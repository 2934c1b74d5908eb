"""Events in TensorBoard: numbers of train_step and validation as scalars, sample transcripts as text."""

import importlib.util
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event as TensorBoardEvent
from tensorboardX.proto.event_pb2 import SessionLog
from tensorboardX.summary import scalar
from tensorboardX.summary import text as text_summary

from asr_jax.core.installation import installing
from asr_jax.core.paths import quoted
from asr_jax.metrics.measure import by_set
from asr_jax.metrics.scoring import group_name
from asr_jax.observe.events import Event
from asr_jax.observe.transcripts import aligned_lines

POSITIONS = ("update", "elapsed_s")
"""Fields that are positions on the x-axis, not scalars."""


class TensorBoard:
    """Event sink that writes TensorBoard files to `folder`. The file is created at the first event with data.

    It writes in the caller's thread, because errors in the library's own thread, such as a full disk, are noticed too
    late.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)
        self._writer: EventsWriter | None = None

    def __call__(self, event: Event) -> None:
        numbers, texts = scalar_tags(event), text_tags(event)
        if not numbers and not texts:
            return
        update, time_s = event["data"]["update"], event["timestamp_ms"] / 1000
        if self._writer is None:
            # TensorBoard then discards what an earlier job logged after the checkpoint that this job continues from.
            self.folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(self.folder / "events"))
            begun = SessionLog(status=SessionLog.START)
            self._writer.write_event(TensorBoardEvent(wall_time=time_s, step=update, session_log=begun))
        summaries = [scalar(tag, value) for tag, value in numbers.items()]
        summaries += [text_summary(tag, text) for tag, text in texts.items()]
        for summary in summaries:
            self._writer.write_event(TensorBoardEvent(wall_time=time_s, step=update, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Writes buffered data and closes the file; a second call does nothing."""
        if self._writer:
            with suppress(OSError):  # a full disk, which was already reported
                self._writer.close()
            self._writer = None


def command_for(folder: Path) -> str:
    """Returns the command that shows the curves of a run, and how to install it if it is missing.

    Args:
        folder: Folder of the run. The command shows all runs beside it.
    """
    missing = shutil.which("tensorboard") is None and importlib.util.find_spec("tensorboard") is None
    install = f"  (missing: {installing('tensorboard')})" if missing else ""
    return f"tensorboard --logdir {quoted(folder.parent)}{install}"


def scalar_tags(event: Event) -> dict[str, float | int]:
    """Returns the scalars of an event by tag.

    Examples of tags: `train/losses/total`, `train/learning_rate`, `throughput/audio_s_per_s`, `validation_ema/wer`,
    and of one of several sets `validation_ema/dev-clean/wer`. Numbers that were not finite are omitted. Only train_step
    and validation events have scalars.
    """
    data = {name: value for name, value in event["data"].items() if name not in POSITIONS}
    if event["event"] == "train_step":
        speed = data.pop("throughput", {})
        return dict(_numbers("train", data)) | dict(_numbers("throughput", speed))
    if event["event"] == "validation":
        group, (*sets, (_, whole)) = _group(data), by_set(data).items()
        return dict(_numbers(group, whole)) | dict(_numbers(group, dict(sets)))
    return {}


def summary_numbers(event: Event) -> dict[str, float | int]:
    """Returns the numbers of the summary of a complete run, such as `summary/best_wer`; other events have none."""
    data = {name: value for name, value in event["data"].items() if name != "elapsed_s"}
    return dict(_numbers("summary", data)) if event["event"] == "run_complete" else {}


def text_tags(event: Event) -> dict[str, str]:
    """Returns sample transcripts by tag, reference above hypothesis, as Markdown code blocks, which keep spaces."""
    samples = event["data"].get("samples", []) if event["event"] == "validation" else []
    group = _group(event["data"])
    return {f"{group}/sample_{number}": _block(sample) for number, sample in enumerate(samples, start=1)}


def _group(data: Mapping[str, Any]) -> str:
    return "validation" + ("_ema" if data.get("weights") == "ema" else "")


def _block(sample: Mapping[str, Any]) -> str:
    lines = aligned_lines(sample["reference"], sample["hypothesis"])
    return "\n".join("    " + line for line in [str(sample.get("id", "")), *lines])


def _numbers(tag: str, value: Any) -> Iterator[tuple[str, float | int]]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield tag, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _numbers(f"{tag}/{group_name(tag.rpartition('/by_')[2], name)}", part)

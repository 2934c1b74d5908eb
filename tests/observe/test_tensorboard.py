"""TensorBoard files, read back."""

import struct
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event as TensorBoardEvent

from asr_jax.core.installation import installing
from asr_jax.observe.events import EventLog, read_events
from asr_jax.observe.tensorboard import TensorBoard, command_for, scalar_tags, text_tags

STEP = {
    "update": 10, "epoch": 1, "losses": {"total": 0.5, "ctc": 0.25}, "learning_rate": 1e-3,
    "throughput": {"audio_s_per_s": 300.0, "per_device": {"audio_s_per_s": 150.0}},
}  # fmt: skip
VALIDATION = {
    "update": 20, "weights": "ema", "wer": 0.08, "words": 5, "by_source": {"read": {"wer": 0.1}},
    "samples": [{"id": "u1", "reference": "a b", "hypothesis": "a c"}],
}  # fmt: skip


def stored(folder):
    """Returns (tag, update, value or text, time) of the one file in order, and the steps of session starts."""
    (path,) = folder.iterdir()
    raw, values, starts = path.read_bytes(), [], []
    while raw:
        (size,) = struct.unpack("<Q", raw[:8])
        event = TensorBoardEvent.FromString(raw[12 : 12 + size])
        raw = raw[16 + size :]
        if event.HasField("session_log"):
            starts.append(event.step)
        for value in event.summary.value:
            is_text = value.HasField("tensor")
            content = value.tensor.string_val[0].decode() if is_text else value.simple_value
            values.append((value.tag, event.step, content, event.wall_time))
    return values, starts


def test_events_are_mirrored(tmp_path):
    with EventLog(tmp_path / "events.jsonl", sinks=[TensorBoard(tmp_path / "tb")]) as log:
        log.write("run_start", run="a")
        log.write("train_step", **STEP | {"gradient_norm": np.nan})
        log.write("validation", **VALIDATION)
    values, starts = stored(tmp_path / "tb")
    scalars = {tag: (update, value) for tag, update, value, _ in values if not isinstance(value, str)}
    assert {tag: update for tag, (update, _) in scalars.items()} == {
        "train/epoch": 10, "train/losses/total": 10, "train/losses/ctc": 10, "train/learning_rate": 10,
        "throughput/audio_s_per_s": 10, "throughput/per_device/audio_s_per_s": 10,
        "validation_ema/wer": 20, "validation_ema/words": 20, "validation_ema/by_source/read/wer": 20,
    }  # fmt: skip
    assert scalars["train/losses/total"] == (10, 0.5)
    texts = [(tag, value) for tag, _, value, _ in values if isinstance(value, str)]
    assert texts == [("validation_ema/sample_1/text_summary", "    u1\n    ref  a b\n    hyp  a c\n           S")]
    assert starts == [10]
    assert all(time_s > 1.7e9 for *_, time_s in values)


def test_tags_of_a_validation_without_names():
    event = {"event": "validation", "timestamp_ms": 0, "data": {"update": 1, "wer": 0.5, "cer": None, "elapsed_s": 2.0}}
    assert scalar_tags(event) == {"validation/wer": 0.5}
    assert text_tags(event) == {}


def test_tags_of_several_sets():
    sets = {"dev-clean": {"wer": 0.25, "words": 4}, "train": {"wer": None, "words": 0}}
    data = {"update": 1, "weights": "live", "wer": 0.5, "sets": sets, "mean": {"wer": 0.75}, "best_of": "mean"}
    assert scalar_tags({"event": "validation", "timestamp_ms": 0, "data": data}) == {
        "validation/wer": 0.5, "validation/dev-clean/wer": 0.25, "validation/dev-clean/words": 4,
        "validation/train/words": 0, "validation/mean/wer": 0.75,
    }  # fmt: skip


def test_tags_of_recorded_events():
    """The manifests of this training have no sources."""
    events = list(read_events(Path(__file__).with_name("recorded_events.jsonl")))
    tags = {tag: value for event in events for tag, value in scalar_tags(event).items()}
    assert tags["validation/by_source/no source/wer"] == tags["validation/wer"]
    assert tags["validation/by_source/no source/words"] == tags["validation/words"]
    assert not [tag for tag in tags if not all(tag.split("/"))]


def test_other_events_have_no_tags():
    event = {"event": "checkpoint_saved", "timestamp_ms": 0, "data": {"update": 1, "wer": 0.5, "samples": []}}
    assert scalar_tags(event) == text_tags(event) == {}


def test_no_file_without_something_to_show(tmp_path):
    with EventLog(tmp_path / "events.jsonl", sinks=[TensorBoard(tmp_path / "tb")]) as log:
        log.write("run_start", run="a")
    assert not (tmp_path / "tb").exists()


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_command_that_shows_the_files(is_installed, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if is_installed else None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    command, _, missing = command_for(Path("my runs/a")).partition("  ")
    assert command == "tensorboard --logdir 'my runs'"
    assert missing == ("" if is_installed else f"(missing: {installing('tensorboard')})")

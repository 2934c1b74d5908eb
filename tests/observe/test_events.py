"""Event log: complete lines after every failure, and always valid JSON."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.observe.events import EVENTS, EventLog, read_events


def write_steps(path, updates, **data):
    with EventLog(path) as log:
        for update in updates:
            log.write("train_step", update=update, **data)


def updates_of(events):
    return [event["data"]["update"] for event in events]


def test_an_event_is_read_back_as_written(tmp_path):
    path = tmp_path / "run" / "events.jsonl"
    with EventLog(path) as log:
        log.write("run_start", run="naïve 試験", path=path, nothing=None, on=True, counts=[1, (2, 3)])
        log.write("train_step", update=10, losses={"total": 0.5})
    start, step = read_events(path)
    assert start["event"] == "run_start"
    assert start["data"] | {"elapsed_s": 0} == {
        "run": "naïve 試験", "path": str(path), "nothing": None, "on": True, "counts": [1, [2, 3]], "elapsed_s": 0,
    }  # fmt: skip
    assert list(step) == ["event", "timestamp_ms", "data"]
    assert 0 <= step["timestamp_ms"] - start["timestamp_ms"] < 60_000
    assert start["timestamp_ms"] > 1.7e12
    assert list(read_events(path, "train_step", "validation")) == [step]


def test_numbers_of_arrays_become_plain_numbers(tmp_path):
    path = tmp_path / "events.jsonl"
    write_steps(
        path, [np.int64(3)], a=np.float32(0.5), b=jnp.bfloat16(1.5), c=jnp.array(2), d=np.array([True, False]),
        e=jnp.ones((1, 2), jnp.bfloat16), f=np.str_("x"),
    )  # fmt: skip
    (event,) = read_events(path)
    data = event["data"]
    assert [data[name] for name in ("update", *"abcdef")] == [3, 0.5, 1.5, 2, [True, False], [[1.0, 1.0]], "x"]
    assert type(data["update"]) is int


def test_numbers_that_are_not_finite_are_null_and_named(tmp_path):
    path = tmp_path / "events.jsonl"
    losses = {"ctc": jnp.nan, "total": jnp.array(jnp.inf), "fine": 1.0}
    write_steps(path, [1], losses=losses, norms=[1.0, np.float32(-np.inf)])
    (line,) = path.read_text().splitlines()

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    data = json.loads(line, parse_constant=refuse)["data"]
    assert data["losses"] == {"ctc": None, "total": None, "fine": 1.0}
    assert data["norms"] == [1.0, None]
    assert data["not_finite"] == ["losses.ctc", "losses.total", "norms.1"]


def test_text_that_is_not_unicode_is_written(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.write("warning", message="bad file \udc80.wav\nline two\u2028three")
    (event,) = read_events(path)
    assert event["data"]["message"] == "bad file \udc80.wav\nline two\u2028three"


def test_wrong_names_and_values_are_refused(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as log:
        with pytest.raises(ValueError, match=r"'train_stop'.*'train_step'"):
            log.write("train_stop")
        with pytest.raises(TypeError, match=r"'inner\.thing'.*object"):
            log.write("train_step", inner={"thing": object()})
    assert (tmp_path / "events.jsonl").read_bytes() == b""


def test_a_file_cut_at_any_byte_is_read_and_goes_on(tmp_path):
    path = tmp_path / "events.jsonl"
    write_steps(path, [1, 2], text="é")
    whole = path.read_bytes()
    first, total = whole.index(b"\n") + 1, len(whole)
    for size in range(total + 1):
        path.write_bytes(whole[:size])
        left = ([1] if size >= first - 1 else []) + ([2] if size >= total - 1 else [])
        assert updates_of(read_events(path)) == left
        write_steps(path, [3])
        assert updates_of(read_events(path)) == [*left, 3]
        assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_killed_process_leaves_whole_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    code = (
        "import os, signal, sys\n"
        "from asr_jax.observe.events import EventLog\n"
        "log = EventLog(sys.argv[1])\n"
        "for update in range(50): log.write('train_step', update=update)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, path], check=False)
    assert updates_of(read_events(path)) == list(range(50))
    assert path.read_bytes().endswith(b"\n")


def test_working_time_goes_on_over_jobs(tmp_path):
    path = tmp_path / "events.jsonl"
    write_steps(path, [1])
    event = next(read_events(path))
    event["data"]["elapsed_s"] = 1000.0
    path.write_text(json.dumps(event) + "\n")
    write_steps(path, [2])
    assert 1000.0 <= list(read_events(path))[1]["data"]["elapsed_s"] < 1060.0


def test_only_the_main_process_writes_and_calls_sinks(tmp_path):
    recorder = Recorder()
    with EventLog(tmp_path / "run" / "events.jsonl", enabled=False, sinks=[recorder]) as log:
        log.write("run_start")
    assert not list(tmp_path.iterdir())
    assert recorder.names == []


def test_sinks_get_what_was_written_and_are_closed_once(tmp_path):
    recorder = Recorder()
    log = EventLog(tmp_path / "events.jsonl", sinks=[recorder])
    log.write("train_step", update=np.int32(1), learning_rate=np.nan)
    log.close()
    log.close()
    assert recorder.events == list(read_events(tmp_path / "events.jsonl"))
    assert recorder.names == ["train_step", "closed"]


class Recorder:
    def __init__(self):
        self.events, self.names = [], []

    def __call__(self, event):
        self.events.append(event)
        self.names.append(event["event"])

    def close(self):
        self.names.append("closed")


def test_broken_files_are_named(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        list(read_events(tmp_path / "events.jsonl"))
    path = tmp_path / "events.jsonl"
    write_steps(path, [1])
    path.write_bytes(path.read_bytes() + b"[]\n" + path.read_bytes())
    with pytest.raises(UserError, match=r"events\.jsonl:2: .*\[\]"):
        list(read_events(path))


def test_every_event_says_what_it_holds():
    stable = {"run_start", "train_step", "validation_start", "validation", "checkpoint_saved", "run_complete"}
    assert stable <= set(EVENTS)
    assert all(": " in kind.meaning for kind in EVENTS.values())

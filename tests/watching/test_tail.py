"""Files of events that grow, end within a line, are replaced, or cannot be read."""

import json
import os

from asr_jax.observe.events import EventLog
from asr_jax.watching.tail import Tail
from tests.watching.recorded_runs import event, failed, start, training, write


def names(tail):
    return [each["event"] for each in tail.events]


def test_a_file_that_grows_within_a_line(tmp_path):
    path, events = tmp_path / "events.jsonl", training()
    lines = [json.dumps(each).encode() + b"\n" for each in events]
    tail = Tail(path)
    assert tail.read()
    assert tail.problem == "not written yet"
    assert not tail.read()  # nothing has changed
    content = b"".join(lines)
    for end in (0, 10, len(lines[0]) - 1, len(lines[0]), len(lines[0]) + 5, 300, len(content) - 1, len(content)):
        before = len(tail.events)
        path.write_bytes(content[:end])
        changed = tail.read()
        assert len(tail.events) == content[:end].count(b"\n")
        assert tail.problem == ""
        assert changed == (content[:end].count(b"\n") > before or end == 0)
    assert tail.events == events
    assert (tail.num_damaged, tail.num_replaced) == (0, 0)


def test_an_incomplete_line_that_the_next_job_removes(tmp_path):
    path = write(tmp_path / "events.jsonl", training(until=50), rest='{"event": "train_step", "da')
    tail = Tail(path)
    tail.read()
    num = len(tail.events)
    with EventLog(path) as log:
        log.write("job_stopped", update=50, reason="x")
        assert tail.read()
    assert names(tail)[num:] == ["job_stopped"]
    assert tail.num_damaged == 0


def test_a_file_that_is_replaced(tmp_path):
    path = write(tmp_path / "events.jsonl", training(until=50))
    tail = Tail(path)
    tail.read()
    write(path, training("another_run", until=400))  # longer
    assert tail.read()
    assert tail.events[0]["data"]["run"] == "another_run"
    write(path, [start("a third one")])  # shorter
    tail.read()
    assert names(tail) == ["run_start"]
    assert tail.num_replaced == 2


def test_a_longer_file_with_the_same_beginning(tmp_path):
    first, others = training(until=50), training(until=400)
    path = write(tmp_path / "events.jsonl", first)
    tail = Tail(path)
    tail.read()
    changed = [{**each, "timestamp_ms": each["timestamp_ms"] + 1} for each in others[3:]]
    write(path, [*others[:3], *changed])
    tail.read()
    assert tail.events == [*others[:3], *changed]
    assert tail.num_replaced == 1


def test_a_file_that_disappears_for_a_while(tmp_path):
    path = write(tmp_path / "run" / "events.jsonl", failed())
    tail = Tail(path)
    tail.read()
    num = len(tail.events)
    path.parent.rename(tmp_path / "away")
    assert tail.read()
    assert tail.problem
    assert len(tail.events) == num
    (tmp_path / "away").rename(path.parent)
    with path.open("a") as file:
        file.write(json.dumps(start("again", 300)) + "\n")
    assert tail.read()
    assert (tail.problem, len(tail.events)) == ("", num + 1)


def test_damaged_lines_are_counted(tmp_path):
    path = write(tmp_path / "events.jsonl", training(until=50), rest='\0\0\n{"event": "x"}\n[]\n')
    tail = Tail(path)
    tail.read()
    assert tail.num_damaged == 3
    assert len(tail.events) == len(training(until=50))


def test_starts_of_updates_are_left_out(tmp_path):
    tail = Tail(write(tmp_path / "events.jsonl", [start("mine"), event("batch_start", 1, update=1)]))
    tail.read()
    assert names(tail) == ["run_start"]


def test_a_pipe_or_a_folder_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "events.jsonl")  # opening it would wait for a writer
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "events.jsonl", tmp_path / "folder"):
        tail = Tail(path)
        assert tail.read()
        assert tail.problem == "it is not a regular file"

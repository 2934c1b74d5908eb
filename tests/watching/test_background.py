"""A command in a process of its own, which a dashboard in a pseudo-terminal shows."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from asr_jax.watching.background import _Output
from tests.pseudo_terminal import InTerminal
from tests.watching.recorded_runs import training, write

pytest.importorskip("textual_plot")

COMMAND = """
import pathlib, signal, sys, time
events, source, code = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: (print("got", signal.Signals(number).name), sys.exit(code)))
print("first line")
if code == 2:
    print("error: cannot start")
    sys.exit(code)
events.parent.mkdir()
events.write_bytes(source.read_bytes())
until = time.monotonic() + 60
while not events.with_name("go").exists() and time.monotonic() < until:
    time.sleep(0.05)
print("final line")
events.with_name("end").touch()
sys.exit(code)
"""
SHOWN = b"Panel"
"""Text of the footer."""


@pytest.fixture
def begin(tmp_path: Path):
    """Function that starts the command with an exit code in a terminal."""
    started = []

    def begin_with(code: int) -> InTerminal:
        events, source = tmp_path / "run" / "events.jsonl", write(tmp_path / "source.jsonl", training())
        command = [sys.executable, "-c", COMMAND, str(events), str(source), str(code)]
        imports = "from pathlib import *; from asr_jax.watching.background import *"
        call = f"sys.exit(run_with_dashboard({command!r}, {events!r}, name='x'))"
        started.append(InTerminal(["-c", f"{imports}; {call}"]))
        return started[-1]

    yield begin_with
    for each in started:
        each.process.kill()
        each.process.wait()


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "run" / "console.log").read_text()


def test_q_leaves_the_dashboard_and_the_command_goes_on(begin, tmp_path):
    terminal = begin(3)
    terminal.read_until(lambda output: SHOWN in output and b"zipformer_medium" in output)
    terminal.press("\x03")  # Ctrl-C is a key here
    terminal.press("q")
    shown = terminal.read_until(lambda output: b"first line" in output)
    assert b"the command goes on" in shown
    assert b"final line" not in shown
    (tmp_path / "run" / "go").touch()
    assert terminal.end() == 3
    assert b"final line" in terminal.output
    assert log_of(tmp_path) == "first line\nfinal line\n"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("number", "key"), [(signal.SIGINT, "\x03"), pytest.param(signal.SIGTERM, "", marks=pytest.mark.slow)]
)
def test_signals_after_q_reach_the_command(begin, tmp_path, number, key):
    terminal = begin(75)
    terminal.read_until(lambda output: SHOWN in output)
    terminal.press("q")
    terminal.read_until(lambda output: b"first line" in output)
    if key:
        terminal.press(key)
    else:
        terminal.process.send_signal(number)
    assert terminal.end() == 75
    assert f"got {number.name}" in log_of(tmp_path)


def test_the_dashboard_ends_with_the_command(begin, tmp_path):
    terminal = begin(0)
    terminal.read_until(lambda output: SHOWN in output)
    (tmp_path / "run" / "go").touch()
    assert terminal.end() == 0
    assert b"first line\r\nfinal line" in terminal.output


def test_the_command_survives_its_terminal(begin, tmp_path):
    terminal = begin(0)
    terminal.read_until(lambda output: SHOWN in output and b"zipformer_medium" in output)
    terminal.close()
    os.kill(terminal.process.pid, signal.SIGHUP)  # as the terminal's shell does
    terminal.process.wait(20)
    (tmp_path / "run" / "go").touch()
    until = time.monotonic() + 20
    while not (tmp_path / "run" / "end").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    assert log_of(tmp_path).startswith("first line\n")


def test_a_command_that_cannot_start(begin, tmp_path):
    terminal = begin(2)
    assert terminal.end() == 2
    assert b"error: cannot start" in terminal.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.jsonl"]


def test_the_output_is_moved_by_a_thread(tmp_path):
    """A mount that hangs does not block the interface, which asks for it every second."""
    answers, events = threading.Event(), tmp_path / "run" / "events.jsonl"

    class Hanging(type(tmp_path)):
        def exists(self):
            assert answers.wait(20)
            return super().exists()

    answers.set()
    output = _Output(Hanging(events))
    answers.clear()
    output.path.write_text("first line\n")
    write(events, training(until=50))
    for _ in range(3):
        output.settle()  # returns at once
    assert not (tmp_path / "run" / "console.log").exists()
    answers.set()
    output.close()
    assert log_of(tmp_path) == "first line\n"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_q_closes_while_a_folder_hangs(tmp_path):
    os.mkfifo(tmp_path / "events.jsonl")  # as a file of a mount that hangs: it cannot be opened before it is written
    terminal = InTerminal(["-m", "asr_jax.watch", str(tmp_path)])
    try:
        terminal.read_until(lambda output: SHOWN in output)
        time.sleep(0.5)
        terminal.press("q")
        assert terminal.end(timeout_s=20) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()

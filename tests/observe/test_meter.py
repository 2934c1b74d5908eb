"""Progress of work on audio, on a terminal and elsewhere."""

import sys

from asr_jax.observe import meter as module
from asr_jax.observe.meter import Meter


def test_a_line_now_and_then_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    with Meter(7200.0) as meter:
        meter.add(3723.0)
        meter.add(9000.0)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("1:02:03 of 2:00:00 of audio, ")
    assert first.endswith(" × real time")
    assert second.startswith("2:00:00 of 2:00:00 of audio, ")
    monkeypatch.setattr(module, "EVERY_S", 60.0)
    with Meter(30.0) as meter:
        meter.add(1.25)
    assert capsys.readouterr().err == ""
    assert str(meter).startswith("1.2 s of 30.0 s of audio")


def test_a_bar_on_a_terminal_leaves_standard_output_alone(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with Meter(30.0) as meter:
        meter.add(3.0)
        print("a result")
    assert capsys.readouterr().out == "a result\n"
    with Meter(30.0, has_bar=False):
        print("a result")
    assert capsys.readouterr() == ("a result\n", "")

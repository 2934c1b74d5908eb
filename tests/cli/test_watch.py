"""The watch command, and --tui of training and extraction, with and without a terminal."""

import json
import sys

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.cli import extract_features, train, watch
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.observe.events import read_events
from asr_jax.watching import background
from asr_jax.watching.tail import Tail
from tests.pseudo_terminal import InTerminal
from tests.watching.recorded_runs import extraction, finished, write


def damage_of(path):
    """Lines of a file of events that lack fields, as `watch` shows them."""
    tail = Tail(path)
    assert tail.read()
    return tail.damage


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Flags of manifests of short recordings."""
    folder, rng, lines = tmp_path_factory.mktemp("sets"), np.random.default_rng(0), []
    for number in range(12):
        samples = rng.normal(0, 500, 8000 + 1600 * number).astype(np.int16)
        write_flac(folder / f"{number}.flac", samples, 16000)
        text = "ab a b"[: 2 + number % 5].strip()
        lines.append(json.dumps({"audio_path": f"{number}.flac", "text": text, "duration": len(samples) / 16000}))
    (folder / "train.jsonl").write_text("\n".join(lines))
    (folder / "validation.jsonl").write_text("\n".join(lines[:4]))
    return ["--data.train", str(folder / "train.jsonl"), "--data.validation", str(folder / "validation.jsonl")]


def flags(sets, folder, updates):
    more = ["--training.validation.every", "100", "--data.batching.budget", "8", "--updates", str(updates)]
    return ["--config", "tests/toy_config.py", "--run-dir", str(folder), *sets, *more]


def test_without_a_terminal_lines_are_printed(tmp_path, capsys):
    write(tmp_path / "mine" / "events.jsonl", finished("mine"))
    ends = {**extraction()[0], "event": "extraction_complete", "data": {"files": 1, "elapsed_s": 9.0}}
    write(tmp_path / "features.events.jsonl", [*extraction(), ends])
    watch.main([str(tmp_path / "mine")])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("run mine: ")
    assert shown[-1].startswith("done (all updates done)")
    for output in ("features.parquet", "features"):
        watch.main([str(tmp_path / output)])
        assert capsys.readouterr().out.endswith("done: 1 file in 0:00:09\n")
    watch.main([str(tmp_path / "features.events.jsonl"), str(tmp_path / "mine"), "--plain"])
    assert {line.split(": ")[0] for line in capsys.readouterr().out.splitlines()} == {"features.events.jsonl", "mine"}
    with pytest.raises(UserError, match="no does not exist: expected the folder of a run"):
        watch.main([str(tmp_path / "no")])


@pytest.mark.parametrize(
    ("environment", "has_screen"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, False)],
)
def test_terminals_without_a_dashboard(monkeypatch, environment, has_screen):
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not background.has_screen()
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    assert background.has_screen() == has_screen


def test_packages_that_are_missing(monkeypatch):
    monkeypatch.setattr(background.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"ASR_JAX_EXTRAS=watch "):
        background.check_installed()


def test_plain_training_follows_without_a_terminal(tmp_path, sets, capsys):
    train.main([*flags(sets, tmp_path / "run", 2), "--tui"])
    shown = capsys.readouterr()
    assert "--tui needs a terminal" in shown.err
    assert "done (all updates done): 2 updates" in shown.out
    [step] = read_events(tmp_path / "run" / "events.jsonl", "train_step")
    assert damage_of(tmp_path / "run" / "events.jsonl") == ""
    assert step["data"]["memory"]["host_bytes"] > 10_000_000
    for other in ("--smoke", "--dry-run"):
        with pytest.raises(UserError, match="expected no --show, --smoke and --dry-run"):
            train.main([*flags(sets, tmp_path / "run", 2), "--tui", other])


def test_extraction_has_events(tmp_path, sets, capsys):
    arguments = ["--input", sets[1], "--output", str(tmp_path / "f.parquet"), "--reject-above", "1.45"]
    extract_features.main([*arguments, "--tui"])
    assert "--tui needs a terminal" in capsys.readouterr().err
    path = tmp_path / "f.events.jsonl"
    assert damage_of(path) == ""
    events = list(read_events(path))
    names = [event["event"] for event in events]
    assert (names[0], names[-2:]) == ("extraction_start", ["extracted", "extraction_complete"])
    assert set(names[1:-2]) == {"extraction"}
    begin, last, done = (events[number]["data"] for number in (0, -3, -2))
    assert (begin["utterances"], begin["skipped_long"], begin["workers"], begin["kind"]) == (10, 2, 2, "threads")
    assert (last["done"], last["utterances"], last["shard"]) == (10, 10, "000000000.parquet")
    assert last["last"]["text"]
    assert last["audio_s_per_s"] > 0
    assert (done["rejected"], done["skipped_long"]) == (0, 2)
    watch.main([str(tmp_path / "f.parquet")])
    assert f"{tmp_path / 'f.parquet'}: 10 utterances, 2 skipped as too long" in capsys.readouterr().out
    assert len(read_utterances([tmp_path])) == 10  # events are no manifest
    extract_features.main([*arguments, "--force", "--max-samples", "2"])
    assert sum(event["event"] == "extraction_start" for event in read_events(path)) == 2


@pytest.mark.slow
def test_a_run_survives_q(tmp_path, sets):
    pytest.importorskip("textual_plot")
    run, plain = tmp_path / "run", tmp_path / "plain"
    terminal = InTerminal(["-m", "asr_jax.train", *flags(sets, run, 600), "--tui"])
    terminal.read_until(lambda output: b"Panel" in output)
    terminal.press("q")
    assert terminal.end() == 0
    assert b"the command goes on" in terminal.output
    assert b"done (all updates done): 600 updates" in terminal.output
    train.main(flags(sets, plain, 600))
    assert {path.name for path in run.iterdir()} - {path.name for path in plain.iterdir()} == {"console.log"}
    assert "done (all updates done): 600 updates" in (run / "console.log").read_text()
    losses = [[e["data"]["losses"] for e in read_events(each / "events.jsonl", "train_step")] for each in (run, plain)]
    assert len(losses[0]) == len(losses[1]) == 300


@pytest.mark.slow
def test_extraction_in_a_terminal(tmp_path, sets):
    pytest.importorskip("textual_plot")
    arguments = ["--input", sets[1], "--output", str(tmp_path / "f.parquet"), "--tui"]
    terminal = InTerminal(["-m", "asr_jax.extract_features", *arguments])
    assert terminal.end() == 0
    assert b"12 of 12 utterances" in terminal.output
    assert {path.name for path in tmp_path.iterdir()} == {"f.parquet", "f.events.jsonl", "f.console.log"}

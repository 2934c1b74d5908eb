"""Benchmark that trains and evaluates configs/an4.py; here, its commands are replaced."""

import json
from pathlib import Path

import pytest

from benchmarks import an4
from tests.support import approx

WER = {"ctc": 0.10, "transducer": 0.06}


@pytest.fixture
def commands(monkeypatch):
    """Records commands, and writes what they would write: a WER that grows by 0.01 per seed, half with the 3-gram."""
    given = []

    def run(command, *arguments, **environment):
        given.append((command, arguments, environment))
        if command == "ngram":
            arguments[arguments.index("--output") + 1].write_text("")
        elif command == "train":
            run = arguments[arguments.index("--run-dir") + 1]
            run.mkdir(parents=True, exist_ok=True)
            data = {"parameters": 7, "update": 3, "seconds": 90.0}
            (run / "events.jsonl").write_text(json.dumps({"event": "run_complete", "data": data}))
        else:
            model, seed = arguments[0].name.split("_")
            wer = (WER[model] + 0.01 * int(seed)) * (0.5 if "beam" in arguments else 1.0)
            scores = {"wer": wer, "wer_interval": [0.0, 1.0], "cer": wer / 2, "words": 100, "other": 0}
            manifest = str(arguments[arguments.index("--data") + 1])
            found = {"runs": [{"sets": {manifest: scores}}]}
            arguments[arguments.index("--json") + 1].write_text(json.dumps(found))

    monkeypatch.setattr(an4, "_run", run)
    return given


def test_every_training_is_evaluated_once_with_each_search(commands, tmp_path, capsys):
    out, result = tmp_path / "out", tmp_path / "an4.json"
    arguments = ["--out", str(out), "--seeds", "0", "2", "--json", str(result)]
    an4.main(arguments)
    rows = json.loads(result.read_text())
    assert len(rows) == 2 * 2 * len(an4.SEARCHES)
    for row in rows:
        wer = (WER[row["model"]] + 0.01 * row["seed"]) * (0.5 if row["search"] == "3-gram" else 1.0)
        scores = {"wer": approx(wer), "wer_interval": [0.0, 1.0], "cer": approx(wer / 2), "words": 100}
        sizes = {"parameters": 7, "updates": 3, "minutes": 1.5}
        assert row == {"model": row["model"], "seed": row["seed"], "search": row["search"], **sizes} | dict.fromkeys(
            ("dev", "test"), scores
        )
    models = [environment["MODEL"] for command, _, environment in commands if command == "train"]
    assert models == ["ctc", "ctc", "transducer", "transducer"]
    beams = [given for command, given, _ in commands if command == "evaluate" and "beam" in given]
    widths = {given[0].name.split("_")[0]: given[given.index("--decoding.beam-width") + 1] for given in beams}
    assert widths == {"ctc": 50, "transducer": 8}
    assert all(given[given.index("--decoding.fusion.kenlm") + 1] == out / "lm.arpa" for given in beams)
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()[:2] == ["ctc", "greedy"]]
    assert float(row[3]) == approx(100 * (0.10 + 0.12) / 2)
    commands.clear()
    an4.main(arguments)
    assert {command for command, _, _ in commands} == {"train"}  # which finds its finished runs
    assert json.loads(result.read_text()) == rows


def test_settings_are_chosen_without_the_test_set(commands, tmp_path):
    an4.main(["--out", str(tmp_path), "--models", "ctc", "--seeds", "0", "--sets", "dev"])
    manifests = [given[given.index("--data") + 1] for command, given, _ in commands if command == "evaluate"]
    assert manifests == [Path("data/an4/manifests/dev.jsonl")] * 2

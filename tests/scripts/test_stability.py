"""scripts/stability.sh trains seeds and prints their results."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.forked import made_corpus
from tests.support import approx

ROOT = Path(__file__).parents[2]


def stability(*arguments, **environment):
    command = [str(ROOT / "scripts" / "stability.sh"), *map(str, arguments)]
    given = {**os.environ, "PYTHONPATH": str(ROOT)} | {name: str(value) for name, value in environment.items()}
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False)


def test_wrong_arguments():
    for arguments in (["tests/toy_config.py"], ["tests/toy_config.py", "0"], ["tests/toy_config.py", "many"]):
        done = stability(*arguments)
        assert done.returncode == 2
        assert "usage: scripts/stability.sh CONFIG N" in done.stderr


@pytest.mark.slow
def test_two_seeds(tmp_path):
    corpus = made_corpus(tmp_path / "made")
    sets = ["--data.train", corpus / "train.jsonl", "--data.validation", corpus / "validation.jsonl"]
    done = stability("tests/toy_config.py", 2, *sets, OUT=tmp_path / "runs", SEED=3)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "runs" / "results.json").read_text())
    assert [Path(result["run"]).name for result in results["runs"]] == ["seed-3", "seed-4"]
    seeds = [json.loads((tmp_path / "runs" / f"seed-{n}" / "experiment.json").read_text())["seed"] for n in (3, 4)]
    assert seeds == [3, 4]
    wers = [result["sets"][str(corpus / "validation.jsonl")]["wer"] for result in results["runs"]]
    row = next(row for row in results["over_runs"] if row["measure"] == "wer")
    assert row["mean"] == approx(sum(wers) / 2)
    assert "over all runs" in done.stdout

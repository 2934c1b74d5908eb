"""Training on AN4 and decoding with a 3-gram of the training texts, as in docs/an4.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "data/an4/manifests"


def run(command, *arguments):
    environment = os.environ | {"MODEL": "ctc"}
    environment.pop("NPROC", None)  # that of virtual devices
    words = [sys.executable, "-m", f"asr_jax.{command}", *map(str, arguments)]
    subprocess.run(words, cwd=ROOT, env=environment, check=True)


@pytest.mark.slow
@pytest.mark.skipif(not MANIFESTS.exists(), reason="data/an4 does not exist: scripts/prepare_an4.py makes it")
def test_1900_updates_reach_15_percent(tmp_path):
    """They take 5 to 10 minutes on two cores."""
    pytest.importorskip("kenlm")
    folder, lm, figures = tmp_path / "run", tmp_path / "lm.arpa", tmp_path / "test.json"
    # The average of the recipe is over more updates than this run has.
    short = ("--training.num-updates", 1900, "--training.ema.decay", 0.995)
    run("train", "--config", "configs/an4.py", "--run-dir", folder, *short)
    run("ngram", "--input", MANIFESTS / "train.jsonl", "--output", lm)
    beam = ("--decoding.kind", "beam", "--decoding.beam-width", 50)
    run("evaluate", folder, "--data", MANIFESTS / "test.jsonl", *beam, "--decoding.fusion.kenlm", lm, "--json", figures)
    (found,) = json.loads(figures.read_text())["runs"][0]["sets"].values()
    assert found["wer"] <= 0.15

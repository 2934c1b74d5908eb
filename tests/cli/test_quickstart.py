"""The quickstart as new users run it: in a fresh clone, with an empty compilation cache."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def quickstart(clone, cache):
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    start = time.monotonic()
    done = subprocess.run(
        ["./scripts/quickstart.sh"], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, time.monotonic() - start


@pytest.mark.slow
def test_a_fresh_clone_trains_and_a_second_run_does_only_the_rest(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    (clone / ".venv").symlink_to(ROOT / ".venv")  # making the environment would need a network
    output, seconds = quickstart(clone, tmp_path / "cache")
    summary = json.loads((clone / "runs/quickstart/summary.json").read_text())
    print(f"{seconds:.0f} s, WER {summary['wer']:.2%}")
    assert summary["wer"] <= 0.075
    assert {"cer", "train_seconds", "corpus_seconds", "steps", "parameters"} <= summary.keys()
    for name in ("checkpoint", "events", "curves", "reference texts"):
        assert name in output
    (clone / "runs/quickstart/test.json").unlink()
    again, seconds = quickstart(clone, tmp_path / "cache")
    assert "already exists" in again
    assert "already trained" in again
    assert json.loads((clone / "runs/quickstart/summary.json").read_text())["wer"] == summary["wer"]
    assert seconds < 120

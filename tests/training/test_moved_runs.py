"""Runs with relative data that are continued in another working directory, and after their project was moved."""

import json

import pytest
from recordings import jsonl, write

from asr_jax.cli import train
from asr_jax.core.errors import UserError
from asr_jax.observe.events import read_events
from tests.cli.test_transcribe import sound
from tests.support import ROOT

CONFIG = str(ROOT / "tests/toy_config.py")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder whose manifests have paths that start from it and not from the folders of the manifests."""
    folder, lines = tmp_path / "project [2024]", []
    for n in range(12):
        write(folder / "audio" / f"{n}.flac", sound(0.5 + 0.1 * n, n))
        lines.append(
            {"audio_path": f"audio/{n}.flac", "text": "ab a b"[: 2 + n % 5].strip(), "duration": 0.5 + 0.1 * n}
        )
    jsonl(folder / "data/lists/train.jsonl", *lines)
    jsonl(folder / "data/lists/validation.jsonl", *lines[:4])
    monkeypatch.chdir(folder)
    return folder


def updates_of(run):
    """Number of updates at the end of each job."""
    return [event["data"]["update"] for event in read_events(run / "events.jsonl", "checkpoint_saved")]


@pytest.mark.slow
def test_a_run_goes_on_from_anywhere_and_after_it_was_moved(project, monkeypatch):
    sets = ["--data.train", "data/lists/train.jsonl", "--data.validation", "data/lists/validation.jsonl"]
    more = ["--updates", "6", "--training.validation.every", "6", "--training.saving.every-updates", "2"]
    train.main(["--config", CONFIG, "--run-dir", "runs/a*[1]", *sets, *more, "--epochs-this-job", "1"])
    run = project / "runs/a*[1]"
    first = updates_of(run)
    assert 0 < max(first) < 6
    kept = json.loads((run / "experiment.json").read_text())
    assert kept["data"]["train"] == [str(project / "data/lists/train.jsonl")]
    assert kept["training"]["limits"]["epochs_this_job"] == 0

    monkeypatch.chdir("/")
    train.main(["--run-dir", str(run)])  # without the limit of the first job
    assert updates_of(run)[len(first) :] == [update for update in (2, 4, 6) if update > max(first)]

    moved = project.rename(project.with_name("elsewhere"))
    train.main(["--run-dir", str(moved / "runs/a*[1]"), "--updates", "8"])
    assert max(updates_of(moved / "runs/a*[1]")) == 8
    train.main(["--run-dir", str(moved / "runs/a*[1]/checkpoints/6"), "--updates", "7"])
    assert updates_of(moved / "runs/a*[1]-2") == [7]


@pytest.mark.parametrize("name", ["a\udcff", "a\nb", "a\tb"])
def test_a_folder_that_logs_cannot_name_is_refused(name, project):
    with pytest.raises(UserError, match="is not UTF-8, or has control characters: choose another --run-dir"):
        train.main(["--config", CONFIG, "--run-dir", name, "--data.train", "data/lists/train.jsonl"])
    assert not (project / name).exists()

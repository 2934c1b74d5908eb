"""Settings that a run keeps: absolute paths, which follow a folder that is moved, and nothing that is for one job."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from asr_jax.config import Experiment, Init, Limits, Resume, Training, located, of_run
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.search.ctc import CTCDecoding
from asr_jax.search.word_scores import Fusion
from asr_jax.text.tokenizers import TokenizerSettings


def experiment(**changes):
    decoding = CTCDecoding(kind="beam", fusion=Fusion(lexicon="words.txt"))
    return replace(
        Experiment(
            name="x",
            model=Model(encoder=Zipformer(), heads={"ctc": CTC(decoding=decoding)}),
            data=Data(train=("data/*.jsonl", "s3://bucket/a.tar"), tokenizer=TokenizerSettings(path="bpe.model")),
            init=Init("weights"),
        ),
        **changes,
    )


def test_a_run_keeps_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = of_run(experiment())
    here = os.getcwd()
    assert kept.data.train == (f"{here}/data/*.jsonl", "s3://bucket/a.tar")
    assert (kept.data.tokenizer.path, kept.init.path) == (f"{here}/bpe.model", f"{here}/weights")
    assert kept.model.heads["ctc"].decoding.fusion.lexicon == f"{here}/words.txt"
    assert (kept.run_dir, kept.data.root, kept.data.cache) == (f"{here}/runs/x", here, "")
    monkeypatch.chdir("/")
    assert of_run(kept) == kept


def test_a_run_keeps_nothing_that_is_for_one_job():
    limits = Limits(epochs_this_job=2.0, max_hours=3.0)
    training = Training(num_updates=5, limits=limits, profile="1:2")
    kept = of_run(experiment(training=training, resume=Resume(("optim",))))
    assert kept.training == replace(training, limits=Limits(max_hours=3.0), profile="")
    assert kept.resume == Resume()


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project [1] with data, words and a run in it."""
    folder = tmp_path / "project [1]"
    for name in ("data/a.jsonl", "words.txt", "bpe.model"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    monkeypatch.chdir(folder)
    return folder


def test_paths_follow_a_run_that_is_moved_with_its_data(project):
    kept = of_run(experiment())
    assert located(kept, project / "runs/x") == kept
    moved = project.rename(project.with_name("elsewhere"))
    found = located(kept, moved / "runs/x")
    assert found.data.train == (f"{moved}/data/*.jsonl", "s3://bucket/a.tar")
    assert found.data.tokenizer.path == f"{moved}/bpe.model"
    assert (found.data.root, found.run_dir) == (str(moved), f"{moved}/runs/x")
    assert found.model.heads["ctc"].decoding.fusion.lexicon == f"{moved}/words.txt"
    assert found.init.path == kept.init.path  # it is nowhere, and the message names the former place


def test_a_run_that_is_copied_or_moved_alone_keeps_the_paths_that_exist(project):
    kept = of_run(experiment())
    for folder in (project / "runs/y", Path("/another/disk/x")):
        found = located(kept, folder)
        assert found == replace(kept, run_dir=str(folder))

"""A run that is killed, at any moment, and started again ends bit for bit as one that was never killed."""

import json
import random
import shutil
import signal
import time

import numpy as np
import orbax.checkpoint as ocp
import pytest

from asr_jax.core.meshes import abstract, data_mesh, replicated
from asr_jax.core.pytrees import flatten
from asr_jax.observe.events import read_events
from tests.forked import finished, made_corpus


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    return made_corpus(tmp_path_factory.mktemp("corpus") / "made")


def command(manifests, folder, *more, kill="never"):
    """The module that trains, and its arguments."""
    sets = ["--data.train", manifests / "train.jsonl", "--data.validation", manifests / "validation.jsonl"]
    recorded = ["tests.training.recorded", folder.with_suffix(".log"), kill]
    return [*recorded, "--config", "tests/resume_config.py", *sets, "--run-dir", folder, *more]


def train(manifests, folder, *, kill="never", more=()):
    """Starts the run once; gives its exit code (-9: killed) and what it printed."""
    done = finished(*command(manifests, folder, *more, kill=kill), devices=2)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def unbroken(manifests, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    code, said = train(manifests, folder)
    assert code == 0, said[-3000:]
    return folder


def contents(folder, updates):
    """Every array of a checkpoint, on whichever devices it was."""
    found, here = {}, replicated(data_mesh(1))
    for item in ("state", "average"):
        path = (folder / "checkpoints" / str(updates) / item).absolute()
        with ocp.StandardCheckpointer() as reader:
            tree = reader.restore(path, abstract(reader.metadata(path).item_metadata, here))
        found |= {f"{item}/{path}": np.asarray(leaf) for path, leaf in flatten(tree).items()}
    return found


def batches(folder):
    """Rows and lengths by position; a position that was taken twice must have held the same."""
    found = {}
    for line in folder.with_suffix(".log").read_text().splitlines():
        position, *rows = json.loads(line)
        assert found.setdefault(position, rows) == rows, f"position {position} changed"
    return found


def assert_same(folder, unbroken, updates):
    expected, found = contents(unbroken, updates), contents(folder, updates)
    assert found.keys() == expected.keys()
    assert any("batch_stats" in path for path in found)
    for path, leaf in found.items():
        assert leaf.tobytes() == expected[path].tobytes(), path
    assert batches(folder) == batches(unbroken)


@pytest.mark.parametrize("kill", ["update:2", "save:2", "update:8"])
def test_killed_once_and_started_again_nothing_differs(manifests, unbroken, tmp_path, kill):
    folder = tmp_path / "killed"
    code, said = train(manifests, folder, kill=kill)
    assert code == -signal.SIGKILL, said[-3000:]
    code, said = train(manifests, folder)
    assert code == 0, said[-3000:]
    assert ("resumed at update" in said) == (kill != "update:2")
    assert not list(read_events(folder / "events.jsonl", "recompiled"))
    assert_same(folder, unbroken, 12)


@pytest.mark.slow
def test_killed_a_hundred_times_nothing_differs(manifests, tmp_path):
    rng, begun = random.Random(0), time.monotonic()
    longer = ("--training.num-updates", "150")
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    assert train(manifests, whole, more=longer)[0] == 0
    kinds = {"update": 0, "save": 0, "saving": 0}
    while True:
        kind = rng.choice(list(kinds))
        number = rng.randint(1, 8) if kind == "update" else 1
        kill = f"{kind}:{number}" + (f":{rng.randint(0, 120)}" if kind == "saving" else "")
        if sum(kinds.values()) == 100:
            kill = "never"
        code, said = train(manifests, folder, kill=kill, more=longer)
        if code == 0:
            break
        assert code == -signal.SIGKILL, said[-3000:]
        kinds[kind] += 1
    print(f"killed {kinds} in {time.monotonic() - begun:.0f} s")
    assert sum(kinds.values()) >= 90
    assert_same(folder, whole, 150)


def test_without_a_checkpoint_nothing_is_lost_and_mended_settings_are_taken(manifests, tmp_path):
    folder = tmp_path / "mended"
    code, said = train(manifests, folder, kill="update:2")
    assert code == -signal.SIGKILL, said[-3000:]
    assert (folder / "experiment.json").exists()
    code, said = train(manifests, folder, more=("--training.ema.decay", "0.5", "--training.num-updates", "3"))
    assert code == 0, said[-3000:]


@pytest.mark.parametrize("gone", ["experiment.json", "plan.json", "tokenizer"])
def test_what_a_run_is_lies_in_its_checkpoints(manifests, unbroken, tmp_path, gone):
    folder = tmp_path / "gone"
    shutil.copytree(unbroken, folder)
    shutil.rmtree(folder / gone) if gone == "tokenizer" else (folder / gone).unlink()
    code, said = train(manifests, folder, more=("--training.ema.decay", "0.5", "--training.num-updates", "13"))
    assert code == 2, said[-3000:]
    assert "training.ema.decay: 0.9 there, 0.5 now" in said
    code, said = train(manifests, folder)
    assert code == 0, said[-3000:]
    assert "already trained" in said
    assert (folder / gone).exists()

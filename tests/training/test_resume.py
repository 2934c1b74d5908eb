"""Runs that are killed, stopped or out of disk space at any time and restarted are bitwise equal to unbroken runs."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from asr_jax.observe.events import read_events
from tests.forked import ROOT, Forked, finished, made_corpus, with_devices
from tests.resume_config import experiment
from tests.training.arrays import contents

UPDATES = experiment().training.num_updates


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    return made_corpus(tmp_path_factory.mktemp("corpus") / "made")


def command(manifests, folder, *more, when="never"):
    """Returns the training module and its arguments; see `recorded` for `when`."""
    sets = ["--data.train", manifests / "train.jsonl", "--data.validation", manifests / "validation.jsonl"]
    recorded = ["tests.training.recorded", folder.with_suffix(".log"), when]
    return [*recorded, "--config", "tests/resume_config.py", *sets, "--run-dir", folder, *more]


def train(manifests, folder, *more, when="never"):
    """Starts the run once. Returns its exit code (-9: killed) and its output."""
    done = finished(*command(manifests, folder, *more, when=when), devices=2)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def unbroken(manifests, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    code, output = train(manifests, folder)
    assert code == 0, output[-3000:]
    return folder


def batches(folder):
    """Returns rows and lengths by position. Checks that repeated positions are equal."""
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


@pytest.mark.parametrize(
    "when",
    [
        "save:2",
        pytest.param("update:2", marks=pytest.mark.slow),  # before the first checkpoint
    ],
)
def test_killed_once_and_started_again_nothing_differs(manifests, unbroken, tmp_path, when):
    folder = tmp_path / "killed"
    code, output = train(manifests, folder, when=when)
    assert code == -signal.SIGKILL, output[-3000:]
    code, output = train(manifests, folder)
    assert code == 0, output[-3000:]
    assert ("resumed at update 3" in output) == (when == "save:2")
    assert not list(read_events(folder / "events.jsonl", "recompiled"))
    assert_same(folder, unbroken, UPDATES)


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ([signal.SIGINT], 130),
        pytest.param([signal.SIGUSR1], 75, marks=pytest.mark.slow),
        # Slurm sends SIGUSR1 and then SIGTERM; the second signal must not interrupt the save.
        pytest.param([signal.SIGUSR1, signal.SIGTERM], 75, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_the_same_command_goes_on_exactly(manifests, unbroken, tmp_path, signals, code):
    folder = tmp_path / "stopped"
    when = " ".join(["update:1", *(each.name for each in signals)])
    found, output = train(manifests, folder, "--training.log-every", "1000", when=when)
    assert found == code, output
    assert "Traceback" not in output
    assert f"{signals[0].name}: saved after update 1" in output
    assert "1 update in 1 job" in output
    assert (folder / "curves.png").stat().st_size > 0
    (step,) = read_events(folder / "events.jsonl", "train_step")  # written although no line was due
    assert step["data"]["update"] == 1
    found, output = train(manifests, folder)
    assert found == 0, output
    assert "resumed at update 1" in output
    assert_same(folder, unbroken, UPDATES)


def can_mount(tmp_path):
    mounting = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    return shutil.which("unshare") and subprocess.run(mounting, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_good_checkpoint_and_says_what_to_do(manifests, unbroken, tmp_path):
    """The folder of checkpoints is a separate file system with space for one or two checkpoints."""
    if not can_mount(tmp_path):
        pytest.skip("no right to mount a small file system")
    folder = tmp_path / "full"
    checkpoints = folder / "checkpoints"
    shutil.copytree(unbroken, folder)
    shutil.copy(unbroken.with_suffix(".log"), folder.with_suffix(".log"))
    shutil.rmtree(checkpoints / str(UPDATES))
    size_kb = sum(path.stat().st_size for path in checkpoints.rglob("*")) // 1000
    saving = (
        "--training.saving.every-minutes",
        "0.0001",
        "--training.log-every",
        "1",
        "--training.saving.keep-last",
        "9",
    )
    words = command(manifests, folder, *saving)
    done = finished("tests.training.small_disk", checkpoints, size_kb * 2, *words, devices=2)
    assert done.returncode == 1, done
    assert "could not be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    code, output = train(manifests, folder)
    assert code == 0, output
    assert "resumed at update" in output
    assert_same(folder, unbroken, UPDATES)


@pytest.mark.slow
def test_a_signal_during_validation_saves_at_once_and_the_validation_is_made_up_for(manifests, unbroken, tmp_path):
    folder = tmp_path / "validating"
    code, output = train(manifests, folder, when="validation:1 SIGTERM")
    assert code == 75, output
    assert "SIGTERM: saved after update 3" in output
    assert train(manifests, folder)[0] == 0
    assert_same(folder, unbroken, UPDATES)
    found = [
        (event["data"]["update"], event["data"]["weights"])
        for event in read_events(folder / "events.jsonl", "validation")
    ]
    assert {update for update, weights in found if weights == "ema"} == {3, UPDATES}


def wait_for(job, is_there):
    """Waits until `is_there()` is true. Fails if the job ends before."""
    while not is_there():
        assert job.poll() is None, job.communicate()
        time.sleep(0.005)


@pytest.mark.slow
def test_a_signal_before_the_first_update_ends_the_job_before_it(manifests, unbroken, tmp_path):
    """A signal during compilation is recorded. Nothing is saved, and the same command starts the run again."""
    folder = tmp_path / "early"
    events = folder / "events.jsonl"
    job = Forked(*command(manifests, folder), env=with_devices(2))
    wait_for(job, lambda: events.exists() and list(read_events(events, "compile_start")))
    job.send_signal(signal.SIGTERM)
    output = "".join(job.communicate(timeout=120))
    assert job.returncode == 75, output
    assert "Traceback" not in output
    assert not folder.with_suffix(".log").exists()
    code, output = train(manifests, folder)
    assert code == 0, output
    assert_same(folder, unbroken, UPDATES)


@pytest.mark.slow
def test_a_signal_to_the_whole_process_group_saves_as_well(manifests, tmp_path):
    """Schedulers send signals to all processes. The processes that read audio ignore them."""
    folder = tmp_path / "group"
    log = folder.with_suffix(".log")
    words = command(manifests, folder, "--data.workers", "1", "--training.num-updates", "3000")
    job = subprocess.Popen(
        ["setsid", sys.executable, "-m", *map(str, words)], cwd=ROOT, env=with_devices(2),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(job, lambda: log.exists() and len(log.read_text().splitlines()) >= 2)
    os.killpg(job.pid, signal.SIGTERM)
    output = "".join(job.communicate(timeout=120))
    assert job.returncode == 75, output
    assert "Traceback" not in output
    assert "SIGTERM: saved after update" in output
    assert list(read_events(folder / "events.jsonl", "checkpoint_saved"))


@pytest.mark.slow
def test_killed_a_hundred_times_nothing_differs(manifests, tmp_path):
    rng, begun = random.Random(0), time.monotonic()
    longer = ("--training.num-updates", "150")
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    assert train(manifests, whole, *longer)[0] == 0
    kinds = {"update": 0, "save": 0, "saving": 0}
    while True:
        kind = rng.choice(list(kinds))
        number = rng.randint(1, 8) if kind == "update" else 1
        when = f"{kind}:{number}" + (f":{rng.randint(0, 120)}" if kind == "saving" else "")
        if sum(kinds.values()) == 100:
            when = "never"
        code, output = train(manifests, folder, *longer, when=when)
        if code == 0:
            break
        assert code == -signal.SIGKILL, output[-3000:]
        kinds[kind] += 1
    print(f"killed {kinds} in {time.monotonic() - begun:.0f} s")
    assert sum(kinds.values()) >= 90
    assert_same(folder, whole, 150)

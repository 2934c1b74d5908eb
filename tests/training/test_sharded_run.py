"""Runs on shards that are killed and restarted equal unbroken ones bit by bit, in one process and in two."""

import io
import json
import signal
import socket
import tarfile
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from asr_jax.cli import plan
from asr_jax.config import Experiment, Training, Validation
from asr_jax.core.errors import UserError
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.training import loop
from asr_jax.training.batches import stream_of
from asr_jax.training.setup import set_up
from tests.forked import Forked, finished, made_corpus, with_devices
from tests.support import assert_close
from tests.training.arrays import contents
from tests.training.test_resume import batches
from tests.training.toy import toy_model

UPDATES = 6


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    """Folder with shards of the training set, and the manifest of the validation set."""
    folder = made_corpus(tmp_path_factory.mktemp("corpus") / "made")
    train = list(read_utterances([folder / "train.jsonl"]))
    for shard in range(4):
        with tarfile.open(folder / f"train-{shard:04}.tar", "w") as tar:
            for each in train[shard::4]:
                with open(each.location, "rb") as file:
                    parts = {"flac": file.read(), "txt": each.text.encode()}
                for ending, content in parts.items():
                    member = tarfile.TarInfo(f"{each.id}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return folder


def settings(manifests, folder):
    return [
        "--config", "tests/resume_config.py", "--data.train", str(manifests / "train-*.tar"), "--data.validation",
        str(manifests / "validation.jsonl"), "--run-dir", str(folder), "--data.order", "sharded",
        "--data.shuffle-window", "7", "--data.sampled-items", "12",
    ]  # fmt: skip


def train(manifests, folder, when="never", more=()):
    recorded = ["tests.training.recorded", folder.with_suffix(".log"), when]
    done = finished(*recorded, *settings(manifests, folder), *more)
    return done.returncode, done.stdout + done.stderr


def test_a_run_in_parts_equals_a_whole_one(manifests, tmp_path):
    data = Data(
        train=(str(manifests / "train-*.tar"),), validation=(str(manifests / "validation.jsonl"),), order="sharded",
        shuffle_window=7, sampled_items=12, batching=Batching.planned(num_buckets=1, seconds=4.0, row_multiple=4),
    )  # fmt: skip

    def run(name, num_updates):
        training = Training(num_updates=num_updates, validation=Validation(every=50, live=False), accumulate=2)
        schedule = WarmupHoldDecay(peak_lr=1e-2, warmup_updates=1, decay="none")
        loop.train(
            Experiment(
                name="toy", model=toy_model(), data=data, run_dir=str(tmp_path / name), optim=AdamW(schedule=schedule),
                training=training,
            )
        )  # fmt: skip

    run("whole", 4)
    run("parts", 2)
    run("parts", 4)
    for name, expected in (("whole", {4: {2}}), ("parts", {2: {1}, 4: {2}})):
        epochs = defaultdict(set)  # of train_step and validation events, by update
        for line in (tmp_path / name / "events.jsonl").read_text().splitlines():
            if "epoch" in (data := json.loads(line)["data"]) and "batches" not in data:
                epochs[data["update"]].add(data["epoch"])
        assert epochs == expected
    whole, parts = (contents(tmp_path / name, 4) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all((whole[path] == parts[path]).all() for path in whole)


def test_rows_follow_from_the_budget_and_not_from_the_sample(manifests, tmp_path):
    """12 sampled items of 0.75 to 0.85 s stand for many: a batch of 40 s has more rows than them."""
    data = Data(
        train=(str(manifests / "train-*.tar"),), validation=(str(manifests / "validation.jsonl"),), order="sharded",
        sampled_items=12, batching=Batching.planned(num_buckets=2, seconds=40.0, row_multiple=1),
    )  # fmt: skip
    experiment = Experiment("toy", toy_model(), data, optim=AdamW(), training=Training(num_updates=1))
    setup = set_up(experiment, tmp_path)
    stream = stream_of(setup)
    rows = [bucket.batch_size for bucket in stream.buckets]
    assert rows == [int(40 * 16000 / bucket.length) for bucket in stream.buckets]
    assert min(rows) > 40
    numbers = np.array(setup.data.train.plan.entries_by_bucket())
    assert numbers.sum() == 12
    assert_close(stream.shares, numbers / rows / (numbers / rows).sum())
    with pytest.raises(UserError, match=r"shuffle_window is 20, and a batch has \d+ rows on each process"):
        replace(stream, window=20)


@pytest.mark.slow
def test_a_killed_run_continues_exactly(manifests, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    code, output = train(manifests, whole)
    assert code == 0, output[-3000:]
    assert "4 shards, read one after the other" in output
    assert train(manifests, broken, when="save:2")[0] == -signal.SIGKILL
    code, output = train(manifests, broken)
    assert code == 0, output[-3000:]
    assert "resumed at update 3" in output
    assert batches(broken) == batches(whole)
    assert len(batches(whole)) == 2 * UPDATES
    expected, found = contents(whole, UPDATES), contents(broken, UPDATES)
    assert found.keys() == expected.keys()
    assert all((found[path] == expected[path]).all() for path in expected)


def two(manifests, folder, when="never"):
    """Starts two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        Forked(
            "tests.training.recorded", folder.with_name(f"{folder.name}-{number}.log"), when,
            *settings(manifests, folder),
            env=with_devices(
                1, JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES="2", JAX_PROCESS_ID=str(number)
            ),
        )
        for number in range(2)
    ]  # fmt: skip


def ends(jobs):
    """Return codes and outputs of processes."""
    try:
        outputs = ["".join(job.communicate(timeout=240)) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    return [job.returncode for job in jobs], outputs


@pytest.mark.slow
def test_two_processes_that_are_killed_continue_exactly(manifests, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    codes, outputs = ends(two(manifests, whole))
    assert codes == [0, 0], outputs
    codes, _ = ends(two(manifests, broken, when="save:2"))
    assert -signal.SIGKILL in codes
    assert 0 not in codes
    code, output = train(manifests, broken, more=("--resume.allow", "devices"))  # it has the shards of both
    assert code == 2, output[-3000:]
    assert "the states of the shards of 2 processes, and there are 1" in " ".join(output.split())
    codes, outputs = ends(two(manifests, broken))
    assert codes == [0, 0], outputs
    assert "resumed at update 3" in outputs[0]
    logs = [[batches(tmp_path / f"{name}-{number}") for number in range(2)] for name in ("whole", "broken")]
    assert logs[0] == logs[1]
    expected, found = contents(whole, UPDATES), contents(broken, UPDATES)
    assert found.keys() == expected.keys()
    assert all((found[path] == expected[path]).all() for path in expected)
    rows = [[[row for row in of_batch if row >= 0] for of_batch, _ in log.values()] for log in logs[0]]
    assert all(len(log) == 2 * UPDATES for log in rows)
    assert not set(rows[0][0] + rows[0][1]) & set(rows[1][0] + rows[1][1])  # the first epoch lasts longer
    assert len({row for log in rows for of_batch in log for row in of_batch}) == 20


def test_the_plan_has_no_epoch(manifests, tmp_path, capsys):
    plan.main([*settings(manifests, tmp_path / "run"), "--global-rows", "9999"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "the sample of the shards: 24 utterances (each utterance at 2 speeds), 0.01 h in 6 batches; " in printed
    assert "the number of items in the shards is not known the run: 6 updates mean batch:" in printed
    assert "--training.accumulate 2500" in printed
    assert "an epoch" not in printed


def test_settings_that_need_an_index_are_refused(manifests, tmp_path):
    given = settings(manifests, tmp_path / "run")
    with pytest.raises(UserError, match=r"crop_s with order 'sharded'"):
        plan.main([*given, "--data.crop-s", "1"])
    with pytest.raises(UserError, match=r"train.jsonl: data.order sharded reads shards"):
        plan.main([each.replace("train-*.tar", "train.jsonl") for each in given])

"""A run on shards that is killed and restarted equals an unbroken one bit by bit."""

import io
import signal
import tarfile

import pytest

from asr_jax.cli import plan
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.reading import read_utterances
from tests.forked import finished, made_corpus
from tests.training.arrays import contents
from tests.training.test_resume import batches

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


def train(manifests, folder, when="never"):
    recorded = ["tests.training.recorded", folder.with_suffix(".log"), when]
    done = finished(*recorded, *settings(manifests, folder))
    return done.returncode, done.stdout + done.stderr


def test_a_killed_run_continues_exactly(manifests, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    code, output = train(manifests, whole)
    assert code == 0, output[-3000:]
    assert "4 shards, read one after the other" in output
    assert train(manifests, broken, when="save:1")[0] == -signal.SIGKILL
    code, output = train(manifests, broken)
    assert code == 0, output[-3000:]
    assert batches(broken) == batches(whole)
    assert len(batches(whole)) == 2 * UPDATES
    expected, found = contents(whole, UPDATES), contents(broken, UPDATES)
    assert found.keys() == expected.keys()
    assert all((found[path] == expected[path]).all() for path in expected)


def test_settings_that_need_an_index_are_refused(manifests, tmp_path):
    given = settings(manifests, tmp_path / "run")
    with pytest.raises(UserError, match=r"crop_s with order 'sharded'"):
        plan.main([*given, "--data.crop-s", "1"])
    with pytest.raises(UserError, match=r"train.jsonl: data.order sharded reads shards"):
        plan.main([each.replace("train-*.tar", "train.jsonl") for each in given])

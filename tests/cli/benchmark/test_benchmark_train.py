"""The training benchmark: warm-ups are excluded, waiting is counted, and all cases have updates of the same size."""

import itertools
import json
import time
from dataclasses import replace

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.cli.benchmark import command, updating
from asr_jax.cli.benchmark.train import BenchmarkOptions, cases, room
from asr_jax.config import Experiment, Training
from asr_jax.core.errors import UserError
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance
from tests.support import approx
from tests.training.toy import toy_model

CONFIG = ("--config", "tests/toy_config.py")


def toy(**buckets):
    data = Data(train=("none.jsonl",), batching=Batching(row_multiple=4, **buckets))
    return Experiment(name="toy", model=toy_model(dim=8), data=data, training=Training(num_updates=1, accumulate=2))


def test_an_update_stays_as_large_with_another_accumulation():
    settings = updating.with_accumulation(toy(budget=96.0, unit="utterances", max_rows=96), 8)
    batching = settings.data.batching
    assert (batching.budget, batching.max_rows, batching.row_multiple) == (24, 24, 4)
    assert settings.training.accumulate == 8
    assert updating.with_accumulation(toy(), 2) == toy()


def test_rows_are_as_many_as_the_config_has_room_for():
    assert room(toy(budget=64.0), [1.0, 2.0], [1, 2], [1, 2]) == 64
    assert room(toy(budget=64.0), [2.0], [1, 3], [1, 2]) == 60
    assert room(toy(budget=96.0, unit="utterances"), [2.0], [1], [1]) == 192
    assert room(toy(budget=1.0), [2.0], [2], [4]) == 8


@pytest.mark.slow
def test_warm_ups_are_left_out_and_waiting_is_counted():
    case, batches = updating.synthetic_case(toy(), rows=4, seconds=[0.5], labels=3, vocabulary=6)

    def slow(delays):
        for group, delay in zip(updating.synthetic_groups(case, batches, 1), delays, strict=False):
            time.sleep(delay)
            yield group

    def measured(delays):
        return next(
            updating.time_updates(case, slow(delays), num_devices=1, accumulation=1, warm_ups=3, updates=4)
        )  # fmt: skip

    found = measured(itertools.chain([0.0, 0.0, 1.0], itertools.repeat(0.05)))
    assert max(found["update_s"]) < 1.0
    assert found["waiting_share"] > 0.3
    assert found["utterances_per_s"] == approx(16 / sum(found["update_s"]))
    assert found["batch_s"] == approx(np.mean(found["update_s"]))
    assert found["voided"] == 0
    assert measured(itertools.repeat(0.0))["waiting_share"] < found["waiting_share"]


def test_labels_fit_into_half_the_frames():
    case, batches = updating.synthetic_case(toy(), rows=2, seconds=[0.4, 5.0], labels=100, vocabulary=6)
    assert [bucket.num_tokens for bucket in case.buckets] == [batches[0].tokens.shape[1], 100]
    assert case.buckets[0].num_tokens == case.recipe.model.output_length(6400) // 2
    assert all(batch.tokens.max() == 4 and batch.tokens.min() == 0 for batch in batches)


@pytest.mark.slow
def test_synthetic_updates_by_accumulation_and_devices(tmp_path, capsys):
    out = tmp_path / "figures" / "train.json"
    command.main(
        ["train", *CONFIG, "--synthetic", "0.5", "1", "--batch", "16", "--accumulation", "2",
         "--num-devices", "2", "64", "--warm-ups", "3", "--updates", "2", "--json", str(out),
         "--trace", str(tmp_path / "trace")]
    )  # fmt: skip
    output, figures = capsys.readouterr().out, json.loads(out.read_text())
    assert output.startswith("toy, f32, 4,589 parameters, on 4 × cpu")
    assert "virtual devices of this CPU share its cores" in output
    cases = figures["cases"]
    assert [(each["accumulation"], each["devices"]) for each in cases] == [(2, 2)]
    for each in cases:
        total_s = sum(each["update_s"])
        assert len(each["update_s"]) == 2
        assert each["rows_of_a_device"] * each["accumulation"] * each["devices"] == 16
        assert each["batch_s"] * 2 * each["accumulation"] == approx(total_s)
        assert each["utterances_per_s"] * total_s == approx(2 * 16)
        assert each["audio_s_per_s"] * total_s == approx(16 * (0.5 + 1))
        assert each["padded_audio_s_per_s"] == approx(each["audio_s_per_s"])
        assert each["voided"] == 0
        assert each["compile_s"] > 0
    largest, of_devices = figures["trace"]["operations"], figures["trace"]["devices"]
    assert [each["ms"] for each in largest] == sorted((each["ms"] for each in largest), reverse=True)
    assert "encoder" in " ".join(each["module"] for each in largest)
    assert [each["device"] for each in of_devices] == ["CPU:0", "CPU:1"]
    assert all(0 <= each["idle_share"] < 1 for each in of_devices)


@pytest.mark.slow
def test_updates_of_a_configs_own_data(tmp_path, capsys):
    rng, utterances = np.random.default_rng(0), []
    for i in range(16):
        samples = rng.integers(-900, 900, 8000 + 500 * (i % 2)).astype(np.int16)
        write_flac(tmp_path / f"{i}.flac", samples, 16000)
        utterances.append(Utterance(str(i), str(tmp_path / f"{i}.flac"), "ab", len(samples) / 16000))
    write_manifest(tmp_path / "train.jsonl", utterances)
    sets = [f"--data.{name}={tmp_path / 'train.jsonl'}" for name in ("train", "validation")]
    out, folder = tmp_path / "train.json", tmp_path / "run"
    command.main(
        ["train", *CONFIG, *sets, "--run-dir", str(folder), "--num-devices", "2",
         "--accumulation", "2", "--warm-ups", "3", "--updates", "4", "--json", str(out)]
    )  # fmt: skip
    cases = json.loads(out.read_text())["cases"]
    assert [(each["accumulation"], each["devices"]) for each in cases] == [(2, 2)]
    for each in cases:
        mean_s = each["audio_s_per_s"] / each["utterances_per_s"]
        assert mean_s == approx(0.515625, rel=0.02)
        assert each["audio_s_per_s"] < each["padded_audio_s_per_s"]
        assert 0 < each["waiting_share"] < 1
    assert "A100" not in capsys.readouterr().out
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--synthetic", "1", "--batch", "6", "--accumulation", "4"), "6 rows cannot be divided into 4 batches on 1"),
        (("--num-devices", "0"), r"num_devices is \(0,\): expected each at least 1"),
        (("--synthetic", "0"), r"synthetic is \(0.0,\): expected each at least 0.1"),
        (("--updates", "0"), "updates is 0: expected at least 1"),
    ],
)
def test_what_cannot_be_timed(arguments, message):
    with pytest.raises(UserError, match=message):
        command.main(["train", *CONFIG, *arguments])


def test_accumulations_divide_budgets_over_all_devices_only():
    experiment = toy()
    data = replace(experiment.data, batching=Batching.fixed(rows=4))
    with pytest.raises(UserError, match=r"expected data\.batching without rows and devices"):
        next(cases(replace(experiment, data=data), BenchmarkOptions(accumulation=(2,))))

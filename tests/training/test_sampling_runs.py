"""Runs with modes of CAIMAN-ASR: they go on exactly, a pass of noise changes nothing, and other devices are named."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.config import Experiment, Resume, Training, Validation
from asr_jax.core import devices, meshes
from asr_jax.core.errors import UserError
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.observe.events import read_events
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.training.loop import train
from asr_jax.training.setup import set_up
from tests.training.arrays import contents
from tests.training.toy import toy_model

NUM, SECONDS = 14, (0.3, 0.4, 0.5)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng, utterances = tmp_path_factory.mktemp("noise"), np.random.default_rng(0), []
    for number in range(NUM + 2):
        samples = rng.normal(0, 900, round(16000 * SECONDS[number % 3])).astype(np.int16)
        write_flac(folder / f"{number}.flac", samples, 16000)
        text = "".join(rng.choice(list("abc"), 2))
        utterances.append(Utterance(f"u{number}", str(folder / f"{number}.flac"), text, len(samples) / 16000))
    write_manifest(folder / "train.jsonl", utterances[:NUM])
    write_manifest(folder / "validation.jsonl", utterances[NUM:])
    return Data(train=(str(folder / "train.jsonl"),), validation=(str(folder / "validation.jsonl"),))


def experiment(data, folder, batching, *, num_updates, **changes):
    training = Training(
        num_updates=num_updates, validation=Validation(every=50, live=False), log_every=1, ema=EMA(0.5), accumulate=2,
        **changes,
    )  # fmt: skip
    return Experiment(
        name="toy", model=toy_model(norm=True), data=replace(data, batching=batching), run_dir=str(folder),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=5e-3, warmup_updates=1, decay="none")), training=training,
    )  # fmt: skip


def events(folder, name):
    return [event["data"] for event in read_events(folder / "events.jsonl") if event["event"] == name]


@pytest.fixture
def on(monkeypatch):
    """Returns a function that chooses the number of devices of later runs."""
    there = tuple(jax.devices())

    def choose(number):
        for module in (devices, meshes):
            monkeypatch.setattr(module, "devices", lambda: there[:number])

    return choose


@pytest.mark.slow
def test_a_run_goes_on_exactly_and_a_pass_of_noise_changes_nothing(data, tmp_path, on):
    """Utterances that fit no bucket are listed. The model has batch normalisation."""
    on(1)
    batching = Batching.bucketing_1d(edges_s=(0.45,), seconds=1.8)
    train(experiment(data, tmp_path / "whole", batching, num_updates=4))
    parts = experiment(data, tmp_path / "parts", batching, num_updates=2, pre_allocate=True)
    train(parts)
    train(replace(parts, training=replace(parts.training, num_updates=4)))
    whole, other = (contents(tmp_path / run, 4) for run in ("whole", "parts"))
    assert whole.keys() == other.keys()
    assert any("batch_stats" in name for name in whole)
    for name, array in whole.items():
        np.testing.assert_array_equal(array, other[name])
    assert [each["shapes"] for each in events(tmp_path / "parts", "pre_allocated")] == [1, 1]
    assert not events(tmp_path / "whole", "pre_allocated")
    [rejected] = events(tmp_path / "parts", "rejected")
    assert rejected["reasons"] == {"longer than the last bucket": 4}
    assert (tmp_path / "parts" / "rejected.jsonl").read_text().count('"longer than the last bucket"') == 4
    assert not events(tmp_path / "parts", "recompiled")


@pytest.mark.slow
def test_rows_for_each_device_stay_with_the_number_of_devices(data, tmp_path, on):
    fixed = Batching.fixed(rows=2, rows_product=4)

    def run(number, batching, num_updates, *allowed):
        on(number)
        made = experiment(data, tmp_path / "run", batching, num_updates=num_updates)
        train(replace(made, resume=Resume(allowed)))

    run(1, fixed, 1)
    assert not [each for each in events(tmp_path / "run", "warning") if each.get("detector") == "rows of an update"]
    with pytest.raises(
        UserError, match=r"The run had 1 device, and .*\(data\.batching\.devices 0\): --data\.batching\.devices 1 keeps"
    ):
        run(2, fixed, 2, "devices")
    run(2, replace(fixed, devices=1, rows_product=8), 2, "devices")
    [warning] = [each for each in events(tmp_path / "run", "warning") if each.get("detector") == "rows of an update"]
    assert "an update has 4 rows (data.batching.rows 2 × training.accumulate 2 × 1 device)" in warning["message"]


@pytest.mark.slow
def test_rows_within_a_memory_budget_are_those_of_the_plan(data, tmp_path, on):
    on(1)
    batching = Batching.bucketing_2d(((0.6, 8),), memory_gb=1.0)
    made = experiment(data, tmp_path / "run", batching, num_updates=1)
    [bucket] = set_up(made, tmp_path / "run").data.train.plan.buckets
    assert bucket.batch_size == NUM  # all of them fit, and more would be empty
    too_little = experiment(data, tmp_path / "run", replace(batching, budget=1e-6), num_updates=1)
    with pytest.raises(UserError, match=r"budget is 1e-06 GB, and a batch of 1 × 0\.61 s with 8 labels needs"):
        set_up(too_little, tmp_path / "run")

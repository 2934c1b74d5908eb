"""Training and `transcribe` compute bitwise identical samples and features of a file."""

import functools
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.io import probe
from asr_jax.audio.presets import funasr, nemo, quartznet, rnnt, w2v_bert
from asr_jax.audio.ramp import Ramp
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.audio.stages import NormaliseByDataSet
from asr_jax.config import Experiment, Training, Validation
from asr_jax.core.random_streams import random_streams
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.loading.source import BatchSource
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference.trained import load_trained
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.training.loop import train
from asr_jax.training.setup import set_up
from tests.support import assert_close, max_abs
from tests.training.toy import toy_batch, toy_model


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """WAV files with two channels and another sample rate."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    utterances = []
    for number in range(8):
        samples = rng.normal(0, 0.1, (22050 + 700 * number, 2)).clip(-1, 1)
        soundfile.write(folder / f"{number}.wav", samples, 44100, subtype="PCM_16")
        utterances.append(Utterance(str(number), str(folder / f"{number}.wav"), "ab", len(samples) / 44100))
    write_manifest(folder / "train.jsonl", utterances)
    data = Data(
        train=(str(folder / "train.jsonl"),), validation=(str(folder / "train.jsonl"),),
        batching=Batching.planned(num_buckets=1, seconds=4.0, row_multiple=4),
    )  # fmt: skip
    training = Training(num_updates=1, validation=Validation(every=1), log_every=1)
    optim = AdamW(schedule=WarmupHoldDecay(peak_lr=1e-2, warmup_updates=1, decay="none"))
    run_dir = str(folder / "run")
    return Experiment(name="toy", model=toy_model(), data=data, optim=optim, training=training, run_dir=run_dir)


def features_of(model, data, *, step):
    """Returns samples and features of each utterance by its location."""
    compute = jax.jit(lambda batch: model.apply({}, batch, step=step, method="augmented"))
    source, found = BatchSource(data.index, data.plan), {}
    for position in range(data.plan.batches_per_epoch):
        batch = source[position].batch
        frames = jax.device_get(compute(batch))
        for row, utterance in enumerate(batch.utterances):
            if utterance >= 0:
                samples = np.asarray(batch.audio[row, : batch.lengths[row]])
                values = frames.values[row, : frames.lengths[row]]
                found[data.index.utterances[int(utterance)].location] = (samples, values)
    return found


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("make", "few_rows"),
    [
        (rnnt, True),
        pytest.param(rnnt, False, marks=SLOW),
        *(
            pytest.param(make, few, marks=SLOW)
            for make in (KaldiFbank, quartznet, funasr, w2v_bert)
            for few in (False, True)
        ),
    ],
)
def test_training_and_transcription_compute_the_same_features(experiment, tmp_path, make, few_rows, monkeypatch):
    front_end = replace(make(), dither=0.0)  # dither is only used in training
    run = replace(experiment, model=replace(experiment.model, front_end=front_end), run_dir=str(tmp_path / "run"))
    train(run)
    setup = set_up(run, Path(run.run_dir))
    trained = load_trained(Path(run.run_dir))
    assert trained.model.front_end == front_end
    paths = [utterance.location for utterance in setup.data.train.index.utterances]
    data = trained.plan(Utterances.of([Utterance(path, path, "", probe(path).duration_s) for path in paths]))
    if few_rows:  # as on a CPU that is not split into several devices
        monkeypatch.setattr(jax, "device_count", lambda: 1)
        monkeypatch.setattr("asr_jax.audio.features.SAMPLES_AT_A_TIME", (1, 20000))
    in_training = features_of(setup.model, setup.data.train, step=jnp.int32(0))
    in_service = features_of(trained.model, data, step=None)
    assert in_training.keys() == in_service.keys() == set(paths)
    for path, (samples, values) in in_training.items():
        assert samples.tobytes() == in_service[path][0].tobytes()
        assert values.shape == in_service[path][1].shape
        assert values.tobytes() == in_service[path][1].tobytes(), path


@pytest.mark.slow
def test_only_training_has_dither_the_ramp_and_masks_before_stacking(experiment):
    ramp = Ramp((0.0,), (1.0,), begin_updates=2, ramp_updates=2)
    statistics = NormaliseByDataSet(mean=(0.0,) * 80, deviation=(1.0,) * 80, share=ramp)
    masks = SpecAugment(probability=1.0, num_time_masks=0, num_freq_masks=1, max_freq_bins=1, system="rust")
    batch = toy_batch(rows=4)

    @functools.cache
    def program(front_end, augment):
        model = replace(experiment.model, front_end=front_end, augment=augment)
        model = model.build(vocab_size=6, blank_id=5, precision="f32")
        return jax.jit(lambda batch, step, rngs: model.apply({}, batch, step=step, method="augmented", rngs=rngs))

    def features(front_end, *, step, key=0, augment=()):
        rngs = random_streams(jax.random.key_data(jax.random.key(key)), jnp.int32(0)) if step is not None else {}
        frames = jax.device_get(program(front_end, augment)(batch, step, rngs))
        return np.asarray(frames.values[0, : int(frames.lengths[0])])

    noisy = replace(rnnt(), dither=0.1)
    assert max_abs(features(noisy, step=jnp.int32(0)), features(noisy, step=jnp.int32(0), key=1)) > 0.01
    np.testing.assert_array_equal(features(noisy, step=None), features(replace(noisy, dither=0.0), step=None))
    assert all(rnnt.dither == 1e-5 for rnnt in (rnnt(), quartznet(), nemo()))
    ramped = replace(rnnt(statistics), dither=0.0)
    served, late = features(ramped, step=None), features(ramped, step=jnp.int32(3))
    np.testing.assert_array_equal(served, late)
    early, middle = (features(ramped, step=jnp.int32(step)) for step in (1, 2))
    assert abs(early.mean()) < 1e-2 < abs(served.mean())
    assert_close(middle, (early + served) / 2, rtol=1e-4, atol=1e-4)
    masked = features(replace(rnnt(), dither=0.0), step=jnp.int32(0), augment=(masks,))
    difference = np.abs(masked - features(replace(rnnt(), dither=0.0), step=None))
    same = (difference.max(axis=0) <= 1e-4).reshape(3, 80)
    assert (same == same[0]).all()  # a bin is masked in all frames that are stacked together
    assert (~same[0]).sum() == 1

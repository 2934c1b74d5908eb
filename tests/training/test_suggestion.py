"""Suggested settings: configs for CPUs and GPUs load and fit the texts, and lengths fit the time and the memory."""

from dataclasses import replace

import numpy as np
import pytest

from asr_jax.cli.command_line import load_config
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.survey import Survey
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.inspection import inspect_texts
from asr_jax.training.config_file import planned, text_of
from asr_jax.training.suggestion import Machine, fitted, more_split, suggest
from asr_jax.training.trial import Trial
from tests.support import approx, assert_within

CPU, GPU, GPUS = (
    Machine("cpu", 1, 2, "1 CPU device (2 cores)"),
    Machine("gpu", 1, 16, "1 × H100"),
    Machine("gpu", 3, 16, "3 × H100"),
)
TRIAL = Trial(
    padded_rate=100.0, compile_s=10.0, memory_bytes=2_000_000_000, limit_bytes=16_000_000_000,
    process_bytes=3_000_000_000, num_shapes=4, updates_per_epoch=200.0, padded_s=36.0, epoch_s=6480.0,
    validation_s=600.0,
)  # fmt: skip
SENTENCES = [f"the {noun} {verb} a {other}" for noun in ("cat", "dog") for verb in ("saw", "met") for other in "xyz"]


def surveyed(hours=0.2, texts=SENTENCES, rate_hz=16000, longest_s=0.0):
    """Survey of 100 utterances of equal durations but for one of another duration; about as many hours of training."""
    each_s = hours * 36
    made = [
        Utterance(f"u{k}", f"/{k}.wav", text, longest_s if longest_s and k == 3 else each_s)
        for k, text in enumerate(np.resize(texts, 100).tolist())
    ]
    sets = {"train": Utterances.of(made), "validation": Utterances.of(made[:10]), "test": Utterances.of(made[:10])}
    found = inspect_texts(texts, ["u"] * len(texts))
    return Survey(("train: a",), sets, "split by speaker", found, {rate_hz: 1.0}, (1.0, 30.0), found.findings)


def loaded(suggestion, tmp_path):
    path = tmp_path / "config.py"
    text = text_of(suggestion)
    assert all(len(line) <= 120 for line in text.split("\n")), text
    path.write_text(text, encoding="utf-8")
    return load_config(path)


def chosen(survey, machine=CPU, hours=None):
    return suggest(survey, machine, name="mine", command="python -m asr_jax.init mine", hours=hours)


@pytest.mark.parametrize(
    ("hours", "machine", "encoder", "dim", "precision"),
    [
        (1.0, CPU, "Conformer", 96, "f32"),
        (200.0, CPU, "Conformer", 96, "f32"),
        (1.0, GPU, "Conformer", 96, "bf16"),
        (20.0, GPU, "Conformer", 176, "bf16"),
        (200.0, GPUS, "Zipformer", None, "bf16"),
    ],
)
def test_the_model_follows_from_the_hours_and_the_device(tmp_path, hours, machine, encoder, dim, precision):
    suggestion = chosen(surveyed(hours), machine)
    experiment = loaded(suggestion, tmp_path)
    assert type(experiment.model.encoder).__name__ == encoder
    assert getattr(experiment.model.encoder, "dim", None) == dim
    assert experiment.training.precision == precision
    assert experiment.data.batching.row_multiple % machine.devices == 0
    assert experiment.data.train == (str(tmp_path / "train.jsonl"),)
    assert (experiment.data.tokenizer.kind == "sentencepiece") == (hours > 100)
    assert experiment.data.workers == (0 if machine is CPU else 8)


@pytest.mark.parametrize(
    ("texts", "kind", "normaliser"),
    [
        (["one two", "two two one", "one one"] * 20, "words", "lower.v1"),
        ([f"word{k} other{k}" for k in range(60)], "characters", "lower.v1"),
        (["It's fine, isn't it?", "No!"], "characters", "words.v1"),
        (["п'ять, п’ять", "їжак"], "characters", "words.v1"),
        (["早上好", "我们去北京"], "characters", "words.v1"),
        (["我们 昨天 去 北京"] * 60, "characters", "words.v1"),
    ],
)
def test_labels_and_normaliser_follow_from_the_texts(tmp_path, texts, kind, normaliser):
    tokenizer = loaded(chosen(surveyed(texts=texts)), tmp_path).data.tokenizer
    assert (tokenizer.kind, tokenizer.normaliser) == (kind, normaliser)


def test_a_word_that_training_lacks_means_no_closed_vocabulary():
    survey = surveyed(texts=["one two", "two one"] * 50)
    assert chosen(survey).labels == "words"
    other = Utterances.of([Utterance("v", "/v.wav", "three", 1.0)])
    assert chosen(replace(survey, sets=survey.sets | {"validation": other})).labels == "characters"


def test_telephone_audio_has_a_front_end_of_its_own(tmp_path):
    front_end = loaded(chosen(surveyed(rate_hz=8000)), tmp_path).model.front_end
    assert (front_end.rate_hz, front_end.num_mels) == (8000, 40)
    assert loaded(chosen(surveyed()), tmp_path).model.front_end.rate_hz == 16000


def test_single_long_recordings_are_rejected(tmp_path):
    assert loaded(chosen(surveyed(hours=0.1, longest_s=19.0)), tmp_path).data.filters.max_duration_s < 19.0
    assert loaded(chosen(surveyed(hours=0.1, longest_s=3.7)), tmp_path).data.filters.max_duration_s == 3.7


def test_the_length_fits_the_time(tmp_path):
    free = fitted(chosen(surveyed()), TRIAL)
    assert free.is_augmented
    all_s = free.num_updates * TRIAL.epoch_s / TRIAL.updates_per_epoch
    assert_within(abs(all_s / (free.epochs * free.survey.train.hours * 3600) - 1), 1e-6)
    for hours in (0.05, 0.2):
        limited = fitted(chosen(surveyed(), hours=hours), TRIAL)
        assert 0.8 * 3600 * hours < limited.planned_s <= 3600 * hours
        experiment = loaded(limited, tmp_path)
        assert experiment.training.num_updates == limited.num_updates
        assert bool(experiment.model.augment) == (limited.epochs >= 20)
        validations = -(-limited.num_updates // experiment.training.validation.every)
        assert validations == limited.num_validations
    slow = replace(TRIAL, validation_s=50_000.0)
    assert 0 < fitted(chosen(surveyed(), hours=0.1), slow).max_validated <= 10


def test_a_run_that_cannot_learn_words_is_known():
    for hours, factor in ((3.0, 2.0), (6.0, 1.0), (60.0, 0.1)):
        found = replace(chosen(surveyed()), epochs=hours)
        assert found.lacking == approx(factor / found.survey.train.hours, rel=1e-6)


def test_the_memory_on_a_cpu_is_that_of_the_process():
    suggestion = fitted(chosen(surveyed()), TRIAL)
    assert planned(suggestion)[1].startswith("3.00 GB of 16.0 GB for the process, by the trial; of it 2.00 GB by XLA")
    on_gpu = replace(suggestion, trial=replace(TRIAL, process_bytes=0))
    assert planned(on_gpu)[1].startswith("2.00 GB of 16.0 GB, by XLA's analysis")


def test_a_batch_is_divided_until_it_fits_the_memory(tmp_path):
    suggestion = chosen(surveyed())
    assert more_split(suggestion, TRIAL) == 1
    large = replace(TRIAL, memory_bytes=40_000_000_000)
    assert more_split(suggestion, large) == 4
    assert more_split(suggestion, replace(large, limit_bytes=0)) == 1  # the limit is not known
    assert loaded(replace(suggestion, split=4), tmp_path).training.split == 4

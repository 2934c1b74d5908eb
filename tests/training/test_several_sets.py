"""Runs with two validation sets: one that a toy recogniser learns, and one whose references it departs from."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from asr_jax.checkpoints.store import checkpoint_to_evaluate, restore_meta
from asr_jax.cli import evaluate
from asr_jax.config import Experiment, Saving, Training, Validation
from asr_jax.core.errors import UserError
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.sets import read_sets
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.metrics.measure import by_set
from asr_jax.observe.events import read_events
from asr_jax.observe.health import health
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.training.loop import train
from asr_jax.training.run_data import check_best_of
from tests.support import approx
from tests.toned import words_of, write_toned
from tests.training.toy import toy_model

pytestmark = pytest.mark.slow

COUNTS = ("substitutions", "deletions", "insertions", "words", "utterances")


def with_training(experiment, **changes):
    return replace(experiment, training=replace(experiment.training, **changes))


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Six utterances with their three words as references, and three of which the references have only one word."""
    folder, rng = tmp_path_factory.mktemp("toned"), np.random.default_rng(0)
    utterances = [write_toned(folder, f"t{number}", words_of(rng, 3), rng)[0] for number in range(33)]
    write_manifest(folder / "train.jsonl", utterances[:24])
    write_manifest(folder / "right.jsonl", utterances[24:30])
    write_manifest(folder / "short.jsonl", [replace(utterance, text="a") for utterance in utterances[30:]])
    data = Data(
        train=(str(folder / "train.jsonl"),), validation=(str(folder / "right.jsonl"), str(folder / "short.jsonl")),
        batching=Batching.planned(num_buckets=1, seconds=16.0, row_multiple=4),
    )  # fmt: skip
    schedule = WarmupHoldDecay(peak_lr=2e-2, warmup_updates=10, decay="none")
    settings = Training(
        num_updates=20,
        validation=Validation(every=60, live=False),
        log_every=50,
        saving=Saving(keep_last=1, best_of="mean"),
        ema=EMA(0.5),
    )
    return Experiment(
        name="two sets", model=toy_model(dim=64, norm=True), data=data, optim=AdamW(schedule=schedule),
        training=settings, run_dir=str(folder / "run"),
    )  # fmt: skip


def validations(run):
    return {event["data"]["update"]: event["data"] for event in read_events(run / "events.jsonl", "validation")}


@pytest.fixture(scope="module")
def run(experiment):
    """A run whose mean error rate is the lowest at update 20, and which was stopped and continued there."""
    train(experiment)
    train(with_training(experiment, num_updates=60))
    return experiment.folder


def test_the_mean_chooses_the_best_checkpoint_also_after_a_restart(run):
    found = validations(run)
    rates = {update: {name: each["wer"] for name, each in by_set(data).items()} for update, data in found.items()}
    lowest = {name: min(rates, key=lambda update: rates[update][name]) for name in ("right", "short", "mean", "all")}
    assert lowest == {"right": 60, "short": 20, "mean": 20, "all": 60}
    for update, data in found.items():
        assert rates[update]["mean"] == approx((rates[update]["right"] + rates[update]["short"]) / 2)
        assert {name: sum(each[name] for each in data["sets"].values()) for name in COUNTS} == {
            name: data[name] for name in COUNTS
        }
    assert checkpoint_to_evaluate(run / "checkpoints") == 20
    best = f"WER {100 * rates[20]['mean']:.2f} % (mean) at update 20, {run}/checkpoints/20"
    assert f"best checkpoint: {best}" in health(run / "events.jsonl")[-1]
    assert restore_meta(run / "checkpoints", 60)["num_without_gain"] == 1
    complete = list(read_events(run / "events.jsonl", "run_complete"))[-1]["data"]
    assert (complete["update"], complete["wer"]) == (60, rates[60]["all"])
    assert (complete["mean"]["wer"], complete["best_wer"]) == (rates[60]["mean"], rates[20]["mean"])
    assert {name: each["wer"] for name, each in complete["sets"].items()} == {
        name: rates[60][name] for name in ("right", "short")
    }


def test_the_figures_of_a_set_are_those_of_evaluate(run, experiment, tmp_path):
    out, paths = tmp_path / "rates.json", experiment.data.validation
    evaluate.main([str(run), "--data", *paths, "--checkpoint", "60", "--json", str(out)])
    (result,) = json.loads(out.read_text())["runs"]
    found = validations(run)[60]["sets"]
    assert list(found) == ["right", "short"]
    for name, path in zip(found, paths, strict=True):
        figures = {key: value for key, value in found[name].items() if key != "empty_share"}
        assert {"wer", "cer", "wer_interval", *COUNTS} <= figures.keys()
        assert figures == {key: result["sets"][path][key] for key in figures}


def test_another_choice_restarts_the_best_and_keeps_the_run(run, experiment, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    other = with_training(
        replace(experiment, run_dir=str(tmp_path / "run")), num_updates=61, saving=Saving(best_of="right")
    )
    summary = train(other)
    found = validations(tmp_path / "run")
    assert summary["best_wer"] == summary["sets"]["right"]["wer"] == found[61]["sets"]["right"]["wer"]
    (message,) = (
        event["data"]["message"] for event in read_events(tmp_path / "run" / "events.jsonl", "warning")
        if "best_of" in event["data"]["message"]
    )  # fmt: skip
    assert f"{100 * found[20]['mean']['wer']:.2f} %, is that of training.saving.best_of mean" in message
    assert checkpoint_to_evaluate(tmp_path / "run" / "checkpoints") == 61
    assert "(training.saving.best_of right, by WER)" in capsys.readouterr().out


def test_a_set_that_is_not_there_is_refused_with_the_names(run, experiment):
    with pytest.raises(UserError, match=r"best_of is 'rigth': .* right, short, all, mean; did you mean 'right'\?"):
        train(with_training(experiment, saving=Saving(best_of="rigth")))
    few = replace(experiment.data, max_validation_utterances=1)
    sets = read_sets(few, seed=0)
    check_best_of("right", sets)
    check_best_of("all", sets)
    for name in ("mean", "short"):
        with pytest.raises(UserError, match=r"max_validation_utterances leaves no utterance of short: raise it"):
            check_best_of(name, sets)
    one = read_sets(replace(few, validation=few.validation[:1]), seed=0)
    for name in ("right", "mean", "all"):
        check_best_of(name, one)


def test_a_set_that_is_added_is_refused_with_the_command_that_measures_it(run, experiment):
    more = replace(experiment.data, validation=(*experiment.data.validation, experiment.data.train[0]))
    with pytest.raises(UserError, match=r"validation data .* changed .*asr_jax\.evaluate .* measures other sets"):
        train(replace(with_training(experiment, num_updates=61), data=more))

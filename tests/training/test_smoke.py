"""Smoke runs: twenty updates with one shape in a folder of their own, which each call replaces."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.cli import train
from asr_jax.config import Experiment, Limits, Training, Validation
from asr_jax.core.errors import UserError
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.heads.transducer import Transducer
from asr_jax.inference.trained import load_trained
from asr_jax.observe.events import read_events
from asr_jax.training.run import held
from asr_jax.training.smoke import clear, smoke_of, smoke_run
from tests.training.toy import toy_model


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Settings of a long run with three shapes, on 60 utterances of noise."""
    folder, rng, utterances = tmp_path_factory.mktemp("noise"), np.random.default_rng(0), list[Utterance]()
    for number in range(60):
        samples = rng.integers(-9000, 9000, 4000 + 160 * number).astype(np.int16)
        write_flac(folder / f"{number}.flac", samples, 16000)
        utterances.append(Utterance(f"u{number}", str(folder / f"{number}.flac"), "ab ba", len(samples) / 16000))
    write_manifest(folder / "set.jsonl", utterances)
    return Experiment(
        name="toy",
        model=toy_model(),
        data=Data(
            train=(str(folder / "set.jsonl"),),
            validation=(str(folder / "set.jsonl"),),
            batching=Batching.planned(num_buckets=3, seconds=4.0),
        ),
        training=Training(
            num_epochs=1000,
            accumulate=4,
            validation=Validation(each_epoch=True),
            limits=Limits(patience=3, max_hours=1e-9),
        ),
        run_dir=str(folder / "runs" / "mine"),
    )


def test_a_smoke_run_does_what_a_run_does_and_replaces_the_one_before(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "parse_with_experiment", lambda *_, **__: (train.TrainOptions(smoke=True), experiment))
    folder = Path(f"{experiment.run_dir}-smoke")
    for _ in range(2):
        train.main(["--config", "my config.py", "--smoke", "--optim.clip-at", "2"])
        printed = capsys.readouterr().out
        events = list(read_events(folder / "events.jsonl"))
        assert [event["data"]["update"] for event in events if event["event"] == "validation"] == [20]
        (compiled,) = [event["data"]["rows"] for event in events if event["event"] == "compile"]
        assert len(compiled) == 1
        assert events[-1]["event"] == "run_complete"
        assert load_trained(folder).updates == 20
        assert f"20 updates, a validation and a checkpoint in {folder}" in printed
        assert "warm-up" not in printed
        assert printed.endswith("next: python -m asr_jax.train --config 'my config.py' --optim.clip-at 2\n")
        assert not (folder / "left over").exists()
        (folder / "left over").touch()
    started = [event["data"] for event in events if event["event"] == "run_start"]
    assert [(data["utterances"], data["num_updates"]) for data in started] == [(50, 20)], "the second run is a new run"
    assert started[0]["versions"].keys() >= {"asr-jax", "jax", "flax"}
    assert not Path(experiment.run_dir).exists()


def test_everything_that_the_smoke_run_does_not_shorten_is_as_in_the_experiment(experiment: Experiment) -> None:
    small = smoke_of(experiment)
    assert (small.optim, small.seed, small.init, small.model) == (
        experiment.optim, experiment.seed, experiment.init, experiment.model,
    )  # fmt: skip
    assert replace(small.data, batching=experiment.data.batching) == replace(
        experiment.data, max_train_utterances=50, max_validation_utterances=8
    )
    assert (small.training.ema, small.training.precision, small.training.accumulate) == (
        experiment.training.ema, experiment.training.precision, 2,
    )  # fmt: skip
    split = replace(experiment, model=replace(experiment.model, heads={"transducer": Transducer(split=4)}))
    assert smoke_of(split).data.batching.row_multiple == 4
    fewer = replace(experiment, data=replace(experiment.data, max_train_utterances=7))
    assert smoke_of(fewer).data.max_train_utterances == 7


def test_other_folders_are_not_touched(experiment: Experiment, tmp_path: Path) -> None:
    folder = tmp_path / "mine-smoke"
    folder.mkdir()
    (folder / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"mine-smoke is not empty and is not a smoke run"):
        smoke_run(replace(experiment, run_dir=str(tmp_path / "mine")))
    assert (folder / "thesis.tex").exists()
    (folder / "thesis.tex").unlink()
    clear(folder)
    (folder / "experiment.json").touch()
    with held(folder), pytest.raises(UserError, match="is being trained in already"):
        clear(folder)
    assert (folder / "experiment.json").exists()
    clear(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "smoke"]


def test_a_dry_run_or_a_schedule_is_no_smoke_run(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--smoke trains and --dry-run does not"):
        smoke_of(replace(experiment, dry_run=True))
    with pytest.raises(UserError, match=r"--smoke starts .* RUN/checkpoints/9 is a checkpoint"):
        smoke_of(replace(experiment, run_dir="RUN/checkpoints/9"))
    options = train.TrainOptions(show="schedule", smoke=True)
    monkeypatch.setattr(train, "parse_with_experiment", lambda *_, **__: (options, experiment))
    with pytest.raises(UserError, match="--smoke trains and --show does not"):
        train.main(["--smoke", "--show", "schedule"])

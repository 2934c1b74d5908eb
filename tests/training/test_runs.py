"""Complete short runs in this process: start, voided updates, end, events and reports."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from asr_jax.audio.distort import BackgroundNoise, Reverberation
from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.io import write_flac
from asr_jax.checkpoints.store import checkpoint_to_evaluate
from asr_jax.cli import average, export
from asr_jax.config import Experiment, Init, Limits, Resume, Saving, Training, Validation, load_experiment
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.pytrees import flatten
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference.trained import load_trained
from asr_jax.observe.events import read_events
from asr_jax.observe.health import health
from asr_jax.optim.ema import EMA
from asr_jax.optim.lora import LoRA
from asr_jax.optim.loss_scale import LossScale
from asr_jax.optim.optimizers import NEVER, AdamW, Muon
from asr_jax.optim.schedules import RunLength, WarmupHoldDecay
from asr_jax.search.ctc import CTCDecoding
from asr_jax.search.hypotheses import Search
from asr_jax.search.word_scores import Fusion
from asr_jax.text.tokenizers import TokenizerSettings
from asr_jax.training import loop, preview
from asr_jax.training.loop import train
from asr_jax.training.run import held
from asr_jax.training.stopping import Signals, Stopped
from asr_jax.training.timetable import Timetable
from tests.support import approx, assert_close, skip_without_float16
from tests.training.toy import toy_model

NUM = 20
ODD = {6: "loss", 19: "gradient", 3: "statistics"}
"""Utterances in three of the first four pairs of batches, and the values that they make NaN."""


def length_of(number):
    """Returns the number of samples of an utterance.

    No two utterances of `ODD` have equal numbers. Utterance 0 is the longest.
    """
    return 6400 + 160 * (number if number in ODD else 25 if number == 0 else 0) + 40 * (number % 4)


POISONED = toy_model(
    norm=True, poison=tuple((kind, KaldiFbank().output_length(length_of(number))) for number, kind in ODD.items())
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Noise of different levels with texts of two letters; an epoch has five batches of four utterances.

    `clean.jsonl` lacks the utterances of `ODD`; the shapes of batches are the same.
    """
    folder, rng, utterances = tmp_path_factory.mktemp("noise"), np.random.default_rng(0), []
    for number in range(NUM + 4):
        samples = rng.normal(0, 300 * (number % 7 + 1), length_of(number)).clip(-32768, 32767).astype(np.int16)
        write_flac(folder / f"{number}.flac", samples, 16000)
        text = "".join(rng.choice(list("abc"), 2))
        utterances.append(Utterance(f"u{number}", str(folder / f"{number}.flac"), text, len(samples) / 16000))
    write_manifest(folder / "train.jsonl", utterances[:NUM])
    write_manifest(folder / "clean.jsonl", [each for n, each in enumerate(utterances[:NUM]) if n not in ODD])
    write_manifest(folder / "validation.jsonl", utterances[NUM:])
    batching = Batching.planned(num_buckets=1, seconds=2.4, row_multiple=4)
    return Data(train=(str(folder / "train.jsonl"),), validation=(str(folder / "validation.jsonl"),), batching=batching)


def training(**changes):
    return Training(
        **({"num_updates": 4, "validation": Validation(every=4), "log_every": 1, "ema": EMA(0.5)} | changes)
    )


def experiment(data, folder, *, model=None, **changes):
    settings = {
        "optim": AdamW(schedule=WarmupHoldDecay(peak_lr=5e-3, warmup_updates=2, decay="none")),  # any run length
        "training": training(),
    } | changes
    return Experiment(name="toy", model=model or toy_model(), data=data, run_dir=str(folder), **settings)


def events(folder, *names):
    return [event["data"] for event in read_events(folder / "events.jsonl", *names)]


def weights(folder, updates=None):
    return {path: np.asarray(leaf) for path, leaf in flatten(load_trained(folder, updates=updates).variables).items()}


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "plain"
    train(experiment(data, folder, training=training(saving=Saving(keep_last=9), validation=Validation(every=2))))
    return folder


def test_live_and_averaged_weights_are_validated_and_the_run_is_reported(plain, capsys):
    validations = events(plain, "validation")
    assert [(data["update"], data["weights"]) for data in validations] == [
        (2, "live"), (2, "ema"), (4, "live"), (4, "ema"),
    ]  # fmt: skip
    assert not {"sets", "mean", "best_of"} & validations[-1].keys()  # there is one set
    starts = events(plain, "batch_start")
    assert [data["update"] for data in starts] == [1, 2, 3, 4]
    assert starts[0]["batches"][0]["shape"][0] == 4
    lines = health(plain / "events.jsonl")
    assert lines[0].startswith("ended: complete (all updates done); 4 updates in 1 job")
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "time in training", "detectors", "updates that changed nothing", "rejected utterances", "size",
        "best checkpoint",
    ]  # fmt: skip
    assert "updates that changed nothing: 0; programs compiled after the first update: 0" in lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epoch_end", "groups"),
    [("carried", [[0, 1, 2], [3, 4, 5], [6, 7, 8]]), ("dropped", [[0, 1, 2], [5, 6, 7], [10, 11, 12]])],
)
def test_what_an_epoch_leaves_over(data, tmp_path, epoch_end, groups):
    settings = training(num_updates=3, accumulate=3, epoch_end=epoch_end, validation=Validation(every=99))
    train(experiment(data, tmp_path / "run", training=settings))
    found = [[batch["position"] for batch in data["batches"]] for data in events(tmp_path / "run", "batch_start")]
    assert found == groups
    assert not events(tmp_path / "run", "optimizer_flush")


@pytest.mark.slow
def test_a_run_ends_at_the_end_of_an_epoch_of_its_job_and_goes_on_exactly(data, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    clean = replace(data, train=(str(Path(data.train[0]).with_name("clean.jsonl")),))
    settings = training(
        num_updates=6, accumulate=2, epoch_end="flushed", validation=Validation(each_epoch=True, every=99)
    )
    of_job = replace(settings, limits=replace(settings.limits, epochs_this_job=1.0))
    train(experiment(clean, whole, model=POISONED, training=settings))  # nothing is poisoned
    assert not (whole / "voided.jsonl").exists()
    assert [d["update"] for d in events(whole, "validation") if d["weights"] == "ema"] == [3, 6]
    found = [[batch["position"] for batch in data["batches"]] for data in events(whole, "batch_start")]
    assert found == [[0, 1], [2, 3], [4], [5, 6], [7, 8], [9]]
    assert [data["batches"] for data in events(whole, "optimizer_flush")] == [1, 1]
    assert not events(whole, "recompiled")
    first = train(experiment(clean, parts, model=POISONED, training=of_job))
    assert "saved after update 3" in first["continues"]
    assert events(parts, "job_stopped")[0]["update"] == 3
    train(experiment(clean, parts, model=POISONED, training=of_job))
    found, expected = weights(parts, 6), weights(whole, 6)
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)


def test_hours_that_are_over_end_a_job_with_the_code_of_a_requeue(data, tmp_path, monkeypatch):
    run = experiment(data, tmp_path / "run", training=training(limits=Limits(max_hours=1e-9), log_every=3))
    with pytest.raises(
        Stopped, match=r"training\.limits\.max_hours .* no update was done"
    ) as caught:  # before compiling
        train(run)
    assert caught.value.exit_code == 75
    assert caught.value.is_planned
    assert not events(tmp_path / "run", "compile_start")
    assert health(tmp_path / "run" / "events.jsonl")[0].startswith("ended: stopped (training.limits.max_hours")
    over = iter([False])  # over after the first update, which is not at a line of the log
    monkeypatch.setattr(Timetable, "is_over", lambda timetable: next(over, True))
    with pytest.raises(Stopped, match=r"training\.limits\.max_hours .* saved after update 1"):
        train(run)
    assert events(tmp_path / "run", "checkpoint_saved")


@pytest.mark.slow
def test_a_run_continues_with_another_rate_if_that_is_allowed(data, tmp_path):
    run = experiment(data, tmp_path / "run", training=training(num_updates=2, validation=Validation(every=2)))
    train(run)
    schedule = WarmupHoldDecay(peak_lr=1e-3, warmup_updates=2, decay="none")
    slower = replace(run, optim=AdamW(schedule=schedule), training=replace(run.training, num_updates=3))
    with pytest.raises(UserError) as error:
        train(slower)
    lines = str(error.value).splitlines()
    assert lines[1] == "  optim.schedule.peak_lr: 0.005 before, 0.001 now"
    assert lines[3].endswith("--resume.allow optim")
    assert f"--init-from {tmp_path / 'run'} --run-dir {tmp_path / 'run'}-2" in lines[4]
    train(replace(slower, resume=Resume(("optim",))))
    changed = [event for event in events(tmp_path / "run", "setting_changed") if event["setting"].startswith("optim")]
    assert [(e["setting"], e["old"], e["new"]) for e in changed] == [("optim.schedule.peak_lr", 0.005, 0.001)]
    assert events(tmp_path / "run", "train_step")[-1]["learning_rate"] == approx(1e-3)
    assert load_experiment(tmp_path / "run" / "experiment.json").resume == Resume()
    with pytest.raises(UserError, match=r"peak_lr: 0.001 before, 0.005 now"):
        train(run)
    other = replace(slower, optim=Muon(schedule=schedule), resume=Resume(("optim",)))
    with pytest.raises(UserError, match=r"optim.class: .*\n(.*\n)*Ways to go on:\n  start a new run from its weights"):
        train(other)


def test_a_signal_breaks_a_validation_off_and_the_next_job_makes_up_for_it(data, tmp_path, monkeypatch):
    have_come = Signals.have_come

    def come(signals):
        signal.raise_signal(signal.SIGTERM)
        return have_come(signals)

    run = experiment(data, tmp_path / "run", training=training(validation=Validation(every=2)))
    with monkeypatch.context() as patched:
        patched.setattr(Signals, "have_come", come)
        with pytest.raises(Stopped, match="SIGTERM: saved after update 2") as caught:
            train(run)
    assert caught.value.exit_code == 75
    assert not events(tmp_path / "run", "validation")
    assert [data["update"] for data in events(tmp_path / "run", "checkpoint_saved")] == [2]
    train(run)
    assert {data["update"] for data in events(tmp_path / "run", "validation")} == {2, 4}


FROZEN = AdamW(freeze_updates=(("encoder/.*", NEVER), ("heads_.*", 1000)))
"""An optimizer that changes nothing."""


@pytest.mark.slow
def test_patience_remembers_over_a_restart_that_keeps_no_best_checkpoint(data, tmp_path):
    settings = training(
        num_updates=1,
        validation=Validation(every=1),
        limits=Limits(patience=2),
        saving=Saving(keep_best=0, keep_last=1),
    )
    run = experiment(data, tmp_path / "run", training=settings, optim=FROZEN)
    train(run)
    summary = train(replace(run, training=replace(settings, num_updates=50)))
    assert summary["update"] == 3  # the first validation was the best, two had no gain
    assert events(tmp_path / "run", "run_complete")[-1]["reason"] == "no gain in 2 validations"
    changed = {data["setting"]: (data["old"], data["new"]) for data in events(tmp_path / "run", "setting_changed")}
    assert changed == {"training.num_updates": (1, 50)}


@pytest.mark.slow
def test_a_run_without_gain_stays_ended_until_another_decoding_is_set(data, tmp_path, capsys):
    settings = training(
        num_updates=9,
        validation=Validation(every=1),
        limits=Limits(patience=1),
        saving=Saving(keep_best=1, keep_last=1),
    )
    run = experiment(data, tmp_path / "run", training=settings, optim=FROZEN)
    assert train(run)["update"] == 2
    assert events(tmp_path / "run", "run_complete")[0]["reason"] == "no gain in 1 validation"
    beam = CTCDecoding(kind="beam", search=Search(beam_width=3), fusion=Fusion(hot_words=("ab",)))
    assert "--training.limits.patience N" in train(run.with_decoding(replace(run.primary_decoding)))["already"]
    capsys.readouterr()
    assert (
        train(run.with_decoding(beam))["update"] == 4
    )  # the first of this decoding is its best, the next one gains nothing
    (message,) = (data["message"] for data in events(tmp_path / "run", "warning") if "decoding" in data["message"])
    assert "(greedy)" in message
    assert "beam 3" in message
    assert message in " ".join(capsys.readouterr().out.split())
    assert train(run.with_decoding(beam))["already"]
    decodings = [data["decoding"] for data in events(tmp_path / "run", "validation") if data["weights"] == "ema"]
    assert decodings == ["greedy"] * 2 + [beam.digest()] * 2
    assert not events(tmp_path / "run", "recompiled")
    assert load_trained(tmp_path / "run").decoder().search.decoding == beam


def test_what_is_not_finite_voids_its_update_and_names_its_batches(data, tmp_path):
    """Three utterances make their update not finite: one its loss, one its gradient and one its statistics."""
    folder, settings = tmp_path / "run", training(accumulate=2, validation=Validation(every=99))
    train(experiment(data, folder, model=POISONED, training=settings))
    voided = [json.loads(line) for line in (folder / "voided.jsonl").read_text().splitlines()]
    for entry, number in zip(voided, ODD, strict=True):
        (bad,) = [batch for batch in entry["batches"] if f"u{number}" in batch["ids"]]
        assert entry["first_bad_position"] == bad["position"]
        assert len(entry["batches"]) == 2
        assert all(len(batch["ids"]) == len(batch["rows"]) == 4 for batch in entry["batches"])
    assert events(folder, "train_step")[-1]["voided"] == 3
    assert [data["updates"] for data in events(folder, "voided")] == [[entry["update"]] for entry in voided]
    warned = [data for data in events(folder, "warning") if data.get("detector") == "not finite"]
    assert "lower the learning rate" in warned[0]["message"]
    assert all(np.isfinite(leaf).all() for leaf in weights(folder).values())
    assert "updates that changed nothing: 3; their batches are in" in "".join(health(folder / "events.jsonl"))


HOT = AdamW(schedule=WarmupHoldDecay(peak_lr=1e30, warmup_updates=0, decay="none"), clip_at=0.0)


def test_a_run_stops_if_updates_are_no_longer_finite(data, tmp_path):
    """The run stops before the next line. The folder has no checkpoint and therefore accepts other settings."""
    settings = training(num_updates=400, validation=Validation(every=400), log_every=400, limits=Limits(max_failed=3))
    with pytest.raises(RunError, match=r"the last \d updates were not finite"):
        train(experiment(data, tmp_path / "run", optim=HOT, training=settings))
    voided = [json.loads(line) for line in (tmp_path / "run" / "voided.jsonl").read_text().splitlines()]
    assert 3 <= len(voided) <= 6
    (warned,) = [data for data in events(tmp_path / "run", "warning") if data.get("detector") == "not finite"]
    assert warned["update"] == voided[0]["update"]
    assert "FAILED" in health(tmp_path / "run" / "events.jsonl")[0]
    assert train(experiment(data, tmp_path / "run"))["update"] == 4


@pytest.mark.slow
def test_half_precision_scales_its_loss_and_stops_at_the_floor(data, tmp_path):
    skip_without_float16()
    half = training(num_updates=40, precision="f16", loss_scale=LossScale(initial=1.0, growth_updates=1, floor=0.1))
    with pytest.raises(RunError, match=r"fell to 0\.0625, below training\.loss_scale\.floor"):
        train(experiment(data, tmp_path / "run", optim=HOT, training=half))
    scales = [data["loss_scale"] for data in events(tmp_path / "run", "train_step")]
    assert scales[:5] == [2, 1, 0.5, 0.25, 0.125]  # after each update, of which the first is finite


UNCHANGED = {"training": training(num_updates=1, ema=EMA(0.0)), "optim": AdamW(freeze_updates=(("rest", 1),))}
"""A run of one update that changes nothing."""


def test_weights_of_a_file_begin_another(data, plain, tmp_path):
    export.main([str(plain), "--to", "safetensors", "--out", str(tmp_path / "w.safetensors"), "--checkpoint", "4"])
    train(experiment(data, tmp_path / "run", init=Init(str(tmp_path / "w.safetensors")), **UNCHANGED))
    expected, found = weights(plain, 4), weights(tmp_path / "run")
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], leaf, err_msg=name)
    (event,) = events(tmp_path / "run", "initialised")
    assert len(event["loaded"]) == len(expected)
    assert event["missing"] == event["unused"] == []


@pytest.mark.slow
def test_weights_of_a_run_keep_the_rows_of_shared_pieces_and_what_does_not_fit_is_named(data, plain, tmp_path):
    folder = tmp_path / "more"
    rows = [json.loads(line) for line in Path(data.train[0]).read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["text"] = row["text"].replace("c", "x")
        row["audio_path"] = str(Path(data.train[0]).parent / row["audio_path"])
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    other = replace(data, train=(str(tmp_path / "train.jsonl"),))
    train(experiment(other, folder, init=Init(str(plain)), **UNCHANGED))
    old, new = load_trained(plain), load_trained(folder)
    assert set(new.tokenizer.symbols) ^ set(old.tokenizer.symbols) == {"c", "x"}
    kernels = [run.variables["params"]["heads_ctc"]["output"]["kernel"] for run in (old, new)]
    for symbol in set(old.tokenizer.symbols) & set(new.tokenizer.symbols):
        rows_of = [run.tokenizer.symbols.index(symbol) for run in (old, new)]
        np.testing.assert_array_equal(kernels[0][:, rows_of[0]], kernels[1][:, rows_of[1]])
    (event,) = events(folder, "initialised")
    assert event["kept_rows"]["params/heads_ctc/output/kernel"].startswith("3 of 4 ")
    wider = experiment(data, tmp_path / "wider", model=toy_model(dim=20), init=Init(str(plain)), **UNCHANGED)
    with pytest.raises(UserError, match=r"params/encoder/hidden/bias \(\(16,\) in the weights, \(20,\) in the"):
        train(wider)
    with pytest.raises(UserError, match="the folder of a run, one of its checkpoints"):
        train(experiment(data, tmp_path / "x", init=Init(str(tmp_path)), **UNCHANGED))


@pytest.mark.slow
def test_adapters_alone_are_trained_and_evaluation_sees_their_sum(data, plain, tmp_path):
    lora = LoRA(rank=2, kernels=("encoder/hidden/kernel",))
    settings = {"init": Init(str(plain / "checkpoints" / "2")), "training": training(ema=EMA(0.0)), "lora": lora}
    train(experiment(data, tmp_path / "run", **settings))
    before, after = weights(plain, 2), weights(tmp_path / "run")
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {
        "params/encoder/hidden/kernel", "params/heads_ctc/output/kernel", "params/heads_ctc/output/bias",
    }  # fmt: skip
    difference = after["params/encoder/hidden/kernel"] - before["params/encoder/hidden/kernel"]
    assert np.linalg.matrix_rank(difference, tol=1e-5) == 2
    for wrong, message in (
        ({"kernels": ("nothing",)}, r"lora\.kernels: 'nothing'"),
        ({"also_trained": ("head_typo.*",)}, r"lora\.also_trained: 'head_typo\.\*'"),
        ({"kernels": ("(",)}, r"lora\.kernels: '\('"),
    ):
        with pytest.raises(UserError, match=message):
            train(experiment(data, tmp_path / "none", **settings | {"lora": replace(lora, **wrong)}))


def test_the_mean_of_checkpoints_is_a_run_of_its_own(data, plain, tmp_path, capsys):
    average.main([str(plain), "--out", str(tmp_path / "mean")])
    assert "averaged parameters of checkpoints 2, 4" in capsys.readouterr().out
    found, two, four = weights(tmp_path / "mean"), weights(plain, 2), weights(plain, 4)
    for name, leaf in found.items():
        assert_close(leaf, (two[name] + four[name]) / 2, rtol=1e-6, what=name)
    average.main([str(plain), "--out", str(tmp_path / "live"), "--from", "4", "--weights", "live"])
    live = weights(tmp_path / "live")
    assert any(not np.array_equal(live[name], four[name]) for name in live)
    for arguments, message in (
        (["--out", str(tmp_path / "mean")], "already exists"),
        (["--out", str(tmp_path / "x"), "--from", "9"], "there are 2, 4"),
        (["--out", str(tmp_path / "x.pt")], r"expected a folder, .* asr_jax\.export writes its weights"),
    ):
        with pytest.raises(UserError, match=message):
            average.main([str(plain), *arguments])


def recordings(folder, number, seed=0):
    folder.mkdir()
    for name in range(number):
        samples = np.random.default_rng(seed + name).integers(-3000, 3000, 8000).astype(np.int16)
        write_flac(folder / f"{name}.flac", samples, 16000)
    return str(folder)


@pytest.mark.slow
def test_augmentations_of_samples_and_the_recordings_that_they_add(data, tmp_path):
    noise, rooms = recordings(tmp_path / "noise", 2), recordings(tmp_path / "rooms", 3)
    augment = (BackgroundNoise(probability=1.0, folder=noise), Reverberation(folder=rooms))
    settings = training(num_updates=2, validation=Validation(every=2))
    run = experiment(data, tmp_path / "run", model=replace(toy_model(), augment=augment), training=settings)
    train(run)
    assert all(np.isfinite(line["losses"]["total"]) for line in events(tmp_path / "run", "train_step"))
    recordings(tmp_path / "noise" / "more", 1, seed=9)
    with pytest.raises(UserError, match=r"recordings .*augmentations .*changed"):
        train(run)
    shutil.rmtree(tmp_path / "noise" / "more")
    assert "already" in train(run)


@pytest.mark.slow
def test_between_validations_it_shows_samples_saves_by_the_clock_and_traces(data, tmp_path):
    settings = training(
        validation=Validation(every=3, sample_every=1, num_samples=1),
        saving=Saving(every_minutes=0.0001),
        profile="0:1",
    )
    train(experiment(data, tmp_path / "run", training=settings))
    shown = events(tmp_path / "run", "samples")
    assert [data["update"] for data in shown] == [1, 2]
    assert shown[0]["samples"][0].keys() == {"id", "reference", "hypothesis"}
    assert [data["update"] for data in events(tmp_path / "run", "checkpoint_saved")] == [1, 2, 3, 4]
    validated = {
        data["update"]: data["wer"] for data in events(tmp_path / "run", "validation")
    }  # the averages are last
    best = max(validated, key=lambda update: (-validated[update], update))
    assert checkpoint_to_evaluate(tmp_path / "run" / "checkpoints") == best
    (event,) = events(tmp_path / "run", "profile")
    traces = list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    assert str(tmp_path / "run" / "profile") == event["path"]
    assert any(b"accumulate" in trace.read_bytes() for trace in traces)
    assert any(b"apply_update" in trace.read_bytes() for trace in traces)


def test_a_trace_of_updates_that_were_not_made_and_curves_that_cannot_be_drawn_are_named(data, tmp_path, monkeypatch):
    def full(events, picture):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop, "draw_curves", full)
    settings = training(
        num_updates=6, validation=Validation(every=6), profile="100:105", saving=Saving(every_epochs=1)
    )  # of 5 updates
    assert train(experiment(data, tmp_path / "run", training=settings))["update"] == 6
    assert [data["update"] for data in events(tmp_path / "run", "checkpoint_saved")] == [5, 6]
    messages = [data["message"] for data in events(tmp_path / "run", "warning")]  # a busy machine adds others
    expected = ("training.profile is 100:105, and this job made 6 updates", "No space left on device")
    assert [sum(text in message for message in messages) for text in expected] == [1, 1]


def test_unreadable_files_are_listed_and_counted(data, tmp_path):
    rows = [json.loads(line) for line in Path(data.train[0]).read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["audio_path"] = str(Path(data.train[0]).parent / row["audio_path"])
    short = tmp_path / "cut.flac"
    short.write_bytes(Path(rows[2]["audio_path"]).read_bytes()[:2000])
    rows[0]["text"] += "é"
    rows[1]["audio_path"] += ".gone"
    rows[2]["audio_path"] = str(short)
    rows[3]["duration"] += 0.1
    validation = [json.loads(line) for line in Path(data.validation[0]).read_text(encoding="utf-8").splitlines()]
    for row in validation:
        row["audio_path"] = str(Path(data.validation[0]).parent / row["audio_path"])
    validation[0]["duration"] += 0.1
    (tmp_path / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in validation))
    manifest = tmp_path / "train.jsonl"
    manifest.write_text("\n".join(map(json.dumps, rows)) + '\n{"audio_path": "cut\n')
    settings = training(num_updates=0, num_epochs=2.0)
    letters = TokenizerSettings(normaliser="english_letters.v1")
    data = replace(data, train=(str(manifest),), tokenizer=letters, max_removed_share=0.05)
    data = replace(data, validation=(str(tmp_path / "validation.jsonl"),))
    train(experiment(data, tmp_path / "run", training=settings))
    lines = [json.loads(line) for line in (tmp_path / "run/rejected.jsonl").read_text().splitlines()]
    rejected = [line for line in lines if line["stage"] != "used"]
    of_used = [line for line in lines if line["stage"] == "used"]
    assert [(line["id"], line["value"]) for line in of_used if "value" in line] == [(rows[0]["id"], "é")]
    differing = {line["id"]: line["reason"] for line in of_used if "value" not in line}
    assert differing.keys() == {rows[3]["id"], validation[0]["id"]}
    assert all(reason.startswith("shorter than its manifest says: ") for reason in differing.values())
    assert sum(event["count"] for event in events(tmp_path / "run", "differing")) == 2
    warning = next(event for event in events(tmp_path / "run", "warning") if event["detector"] == "removed_characters")
    assert "'é' (LATIN SMALL LETTER E WITH ACUTE): 1 time in 1 text" in warning["message"]
    assert sorted(entry["location"] for entry in rejected) == sorted(
        [rows[1]["audio_path"], str(short), f"{manifest}:{len(rows) + 1}"]
    )
    assert sum(event["count"] for event in events(tmp_path / "run", "rejected")) == 3


def test_a_fresh_run_begins_beside_the_one_that_is_there(data, plain, tmp_path):
    shutil.copytree(plain, tmp_path / "run")
    begun = train(replace(experiment(data, tmp_path / "run", training=training(num_updates=1)), fresh=True))
    assert begun["folder"] == str(tmp_path / "run-2")
    assert load_experiment(tmp_path / "run-2" / "experiment.json").training.num_updates == 1
    assert load_experiment(tmp_path / "run" / "experiment.json").training.num_updates == 4


def test_checkpoints_contain_everything_of_a_run(data, plain, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(plain, folder)
    shutil.rmtree(folder / "tokenizer")
    for name in ("experiment.json", "plan.json"):
        (folder / name).unlink()
    with pytest.raises(UserError, match=r"training\.ema\.decay: 0\.5 before, 0\.9 now"):
        train(experiment(data, folder, training=training(num_updates=6, ema=EMA(0.9))))
    assert "already" in train(experiment(data, folder))
    assert all((folder / name).exists() for name in ("experiment.json", "plan.json", "tokenizer"))


def test_while_a_job_is_in_a_folder_another_is_refused(data, tmp_path):
    with held(tmp_path / "run"), pytest.raises(UserError, match=rf"{tmp_path / 'run'} .*\(process {os.getpid()} on"):
        train(experiment(data, tmp_path / "run"))


def test_a_dry_run_computes_a_batch_and_writes_nothing(data, tmp_path, capsys):
    (train,), (validation,) = data.train, data.validation
    lines = Path(validation).read_text(encoding="utf-8").splitlines()
    foreign = json.loads(lines[-1]) | {"id": "v", "text": "äb", "audio_path": json.loads(lines[0])["audio_path"]}
    folder = Path(train).parent
    (folder / "dev.jsonl").write_text("\n".join([*lines, json.dumps(foreign), "{", ""]))
    (folder / "more.jsonl").write_text(Path(train).read_text(encoding="utf-8") + lines[0] + "\n{\n")
    of = replace(data, train=(str(folder / "more.jsonl"),), validation=(str(folder / "dev.jsonl"),))
    preview.dry_run(experiment(of, tmp_path / "run"))
    output = capsys.readouterr().out
    for name in ("more", "dev"):
        assert f"{folder}/{name}.jsonl: read as JSON" in output
        assert f"{folder}/{name}.jsonl:" in output[output.index("rejected 1 utterance: 1 not JSON") :]
    assert output.count("rejected 1 utterance: 1 not JSON") == 2
    assert "validation utterances have the same audio as a training utterance" in output
    assert "validation texts is not what the labels write; even if every label is right, WER is" in output
    assert (
        "'ä' (LATIN SMALL LETTER A WITH DIAERESIS): 1 time in 1 text, not in the vocabulary; for example in v: 'äb'"
        in output
    )
    assert "nothing was written" in output
    assert "gradient norm" in output
    assert not (tmp_path / "run").exists()


def test_the_schedule_is_shown_and_drawn(data, tmp_path, capsys):
    run = experiment(data, tmp_path / "run", training=training(num_updates=100))
    preview.show_schedule(run, tmp_path / "s.png")
    output = capsys.readouterr().out
    assert "WarmupHoldDecay, 100 updates" in output
    assert "nan" not in output
    rows = [line.split() for line in output.splitlines() if line.strip()[:1].isdecimal()]
    assert len(rows) == 21  # the second update as well
    rate = jax.jit(run.optim.schedule.build(RunLength(100, 10)))
    for update, shown in rows:
        assert shown == f"{float(rate(int(update) - 1)):.4g}"
    assert "epoch" not in output
    assert (tmp_path / "s.png").stat().st_size > 5000
    by_epoch = AdamW(schedule=WarmupHoldDecay(warmup_updates=0, warmup_epochs=2, decay="exponential"))
    preview.show_schedule(replace(run, optim=by_epoch), tmp_path / "e.png")
    assert "epoch" in capsys.readouterr().out

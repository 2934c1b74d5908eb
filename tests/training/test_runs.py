"""Whole runs of seconds, in this process: how they begin, what voids an update, how they end and what they tell."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asr_jax import average
from asr_jax.audio.distort import Babble, BackgroundNoise, Gain, NarrowBand, Reverberation, UniformNoise
from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.io import write_flac
from asr_jax.audio.presets import quartznet
from asr_jax.audio.specaugment import Cutout, SpecAugment, TimeWarp
from asr_jax.config import Experiment, Init, Training
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.pytrees import flatten
from asr_jax.data.buckets import Buckets
from asr_jax.data.dataset import Data
from asr_jax.data.manifest import write_manifest
from asr_jax.data.records import Record
from asr_jax.decoding.ctc import Decoding
from asr_jax.decoding.hypotheses import Search
from asr_jax.decoding.word_scores import Fusion
from asr_jax.observe.events import read_events
from asr_jax.observe.health import health
from asr_jax.optim.ema import EMA
from asr_jax.optim.lora import LoRA
from asr_jax.optim.loss_scale import LossScale
from asr_jax.optim.optimizers import NEVER, AdamW
from asr_jax.optim.schedules import RunLength, WarmupHoldDecay
from asr_jax.training import preview
from asr_jax.training.loop import train
from asr_jax.training.stopping import Signals, Stopped
from asr_jax.training.trained import load_trained
from tests.training.toy import toy_model

NUM, ODD = 44, 17


def length_of(number):
    """Samples of an utterance: of one of them as no other's."""
    return 6400 + 480 * (number == ODD) + 40 * (number % 4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Noise of different colours with texts of three letters; 11 batches of four an epoch."""
    folder, rng, records = tmp_path_factory.mktemp("noise"), np.random.default_rng(0), []
    for number in range(NUM + 4):
        samples = rng.normal(0, 300 * (number % 7 + 1), length_of(number)).clip(-32768, 32767).astype(np.int16)
        write_flac(folder / f"{number}.flac", samples, 16000)
        text = "".join(rng.choice(list("abc"), 2))
        records.append(Record(f"u{number}", str(folder / f"{number}.flac"), text, len(samples) / 16000))
    write_manifest(folder / "train.jsonl", records[:NUM])
    write_manifest(folder / "validation.jsonl", records[NUM:])
    buckets = Buckets(num=1, batch_seconds=2.3, batch_multiple=4)
    return Data(train=(str(folder / "train.jsonl"),), validation=(str(folder / "validation.jsonl"),), buckets=buckets)


def experiment(data, folder, *, model=None, **changes):
    settings = {
        "optim": AdamW(schedule=WarmupHoldDecay(peak_lr=5e-3, warmup_updates=2, decay="none")),  # of runs of any length
        "training": Training(num_updates=4, validate_every=4, log_every=1, ema=EMA(0.5)),
    } | changes
    return Experiment(name="toy", model=model or toy_model(), data=data, run_dir=str(folder), **settings)


def training(**changes):
    return Training(**({"num_updates": 4, "validate_every": 4, "log_every": 1, "ema": EMA(0.5)} | changes))


def events(folder, *names):
    return [event["data"] for event in read_events(folder / "events.jsonl", *names)]


def weights(folder, updates=None):
    return {path: np.asarray(leaf) for path, leaf in flatten(load_trained(folder, updates=updates).variables).items()}


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "plain"
    train(experiment(data, folder, training=training(keep_last=9, validate_every=2)))
    return folder


def test_live_and_averaged_weights_are_validated_and_the_run_tells_of_itself(plain, capsys):
    validations = events(plain, "validation")
    assert [(data["update"], data["weights"]) for data in validations] == [
        (2, "live"), (2, "ema"), (4, "live"), (4, "ema"),
    ]  # fmt: skip
    starts = events(plain, "batch_start")
    assert [data["update"] for data in starts] == [1, 2, 3, 4]
    assert starts[0]["batches"][0]["shape"][0] == 4
    lines = health(plain / "events.jsonl")
    assert lines[0].startswith("ended: complete (all updates done); 4 updates in 1 job")
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "time in training", "detectors", "updates that changed nothing", "skipped recordings", "best checkpoint",
    ]  # fmt: skip
    assert "updates that changed nothing: 0; programs compiled late: 0" in lines


@pytest.mark.parametrize(
    ("epoch_end", "groups"),
    [
        ("carried", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]),
        ("flushed", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]),
        ("dropped", [[0, 1, 2, 3], [4, 5, 6, 7], [11, 12, 13, 14]]),
    ],
)
def test_what_an_epoch_leaves_over(data, tmp_path, epoch_end, groups):
    settings = training(num_updates=3, accumulate=4, epoch_end=epoch_end, validate_every=99)
    train(experiment(data, tmp_path / "run", training=settings))
    found = [[batch["position"] for batch in data["batches"]] for data in events(tmp_path / "run", "batch_start")]
    assert found == groups
    flushed = [data["batches"] for data in events(tmp_path / "run", "optimizer_flush")]
    assert flushed == ([3] if epoch_end == "flushed" else [])
    assert not events(tmp_path / "run", "recompiled")


def test_a_run_ends_at_the_end_of_an_epoch_of_its_job_and_goes_on_exactly(data, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = training(num_updates=12, accumulate=2, epoch_end="flushed", validate_epochs=True, validate_every=99)
    train(experiment(data, whole, training=settings))
    assert [d["update"] for d in events(whole, "validation") if d["weights"] == "ema"] == [6, 12]
    first = train(experiment(data, parts, training=replace(settings, epochs_this_job=1.0)))
    assert "the epochs of this job are done: saved after update 6" in first["continues"]
    assert events(parts, "job_stopped")[0]["update"] == 6
    train(experiment(data, parts, training=replace(settings, epochs_this_job=1.0)))
    found, expected = weights(parts, 12), weights(whole, 12)
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)


def test_hours_that_are_over_end_a_job_with_the_code_of_a_requeue(data, tmp_path):
    with pytest.raises(Stopped, match=r"training\.max_hours are over: saved after update 1") as caught:
        train(experiment(data, tmp_path / "run", training=training(max_hours=1e-9)))
    assert caught.value.exit_code == 75
    assert health(tmp_path / "run" / "events.jsonl")[0].startswith("ended: stopped (training.max_hours are over)")
    assert events(tmp_path / "run", "checkpoint_saved")


def test_without_gain_a_run_ends_and_stays_ended(data, tmp_path):
    settings = training(num_updates=50, validate_every=1, patience=2)
    frozen = AdamW(freeze_updates=(("encoder/.*", NEVER), ("heads_.*", 1000)))  # nothing is learned
    run = experiment(data, tmp_path / "run", training=settings, optim=frozen)
    summary = train(run)
    assert summary["update"] == 3
    assert events(tmp_path / "run", "run_complete")[0]["reason"] == "no gain in 2 validations"
    assert "to go on: --training.patience N" in train(run)["already"]


def test_a_signal_breaks_a_validation_off_and_the_next_job_makes_up_for_it(data, tmp_path, monkeypatch):
    def come(signals):
        signals._noted = "SIGTERM"
        return True

    run = experiment(data, tmp_path / "run", training=training(validate_every=2))
    with monkeypatch.context() as patched:
        patched.setattr(Signals, "have_come", come)
        with pytest.raises(Stopped, match="SIGTERM: saved after update 2"):
            train(run)
    assert not events(tmp_path / "run", "validation")
    assert [data["update"] for data in events(tmp_path / "run", "checkpoint_saved")] == [2]
    train(run)
    assert {data["update"] for data in events(tmp_path / "run", "validation")} == {2, 4}


def test_patience_remembers_over_a_restart_that_keeps_no_best_checkpoint(data, tmp_path):
    settings = training(num_updates=2, validate_every=1, patience=3, keep_best=0, keep_last=1)
    frozen = AdamW(freeze_updates=(("encoder/.*", NEVER), ("heads_.*", 1000)))
    run = experiment(data, tmp_path / "run", training=settings, optim=frozen)
    train(run)
    summary = train(replace(run, training=replace(settings, num_updates=50)))
    assert summary["update"] == 4  # the first validation was the best, three brought no gain
    assert events(tmp_path / "run", "run_complete")[-1]["reason"] == "no gain in 3 validations"


def test_with_another_decoding_the_best_and_patience_begin_anew(data, tmp_path, capsys):
    settings = training(num_updates=9, validate_every=1, patience=2, keep_best=1, keep_last=1)
    frozen = AdamW(freeze_updates=(("encoder/.*", NEVER), ("heads_.*", 1000)))
    run = experiment(data, tmp_path / "run", training=settings, optim=frozen)
    assert train(run)["update"] == 3
    beam = Decoding(kind="beam", search=Search(beam_width=3))
    assert train(replace(run, decoding=replace(run.decoding)))["already"]
    capsys.readouterr()
    assert train(replace(run, decoding=beam))["update"] == 6  # the first of this decoding is its best, two gain nothing
    (told,) = (data["message"] for data in events(tmp_path / "run", "warning") if "decoding" in data["message"])
    assert "was found by another decoding (greedy) and does not compare with those of beam 3" in told
    assert told in " ".join(capsys.readouterr().out.split())
    assert train(replace(run, decoding=beam))["already"]
    decodings = [data["decoding"] for data in events(tmp_path / "run", "validation") if data["weights"] == "ema"]
    assert decodings == ["greedy"] * 3 + [beam.digest()] * 3


@pytest.mark.parametrize("where", ["loss", "gradient", "statistics"])
def test_what_is_not_finite_voids_its_update_and_names_its_batches(data, tmp_path, where):
    """In the update that has a certain utterance in its second batch."""
    folder, frames = tmp_path / "run", KaldiFbank().output_length(length_of(ODD))
    model = toy_model(norm=True, poison=where, poison_frames=frames)
    settings = training(num_updates=11, accumulate=2, validate_every=99, ema=EMA(0.5))
    train(experiment(data, folder, model=model, training=settings))
    voided = [json.loads(line) for line in (folder / "voided.jsonl").read_text().splitlines()]
    assert len(voided) == 2  # once in each epoch
    for entry in voided:
        (bad,) = [batch for batch in entry["batches"] if f"u{ODD}" in batch["ids"]]
        assert entry["first_bad_position"] == bad["position"]
        assert len(entry["batches"]) == 2
        assert all(len(batch["ids"]) == len(batch["rows"]) == 4 for batch in entry["batches"])
    assert events(folder, "train_step")[-1]["voided"] == 2
    assert [data["updates"] for data in events(folder, "voided")] == [[entry["update"]] for entry in voided]
    warned = [data for data in events(folder, "warning") if data.get("detector") == "not finite"]
    assert "lower the learning rate" in warned[0]["message"]
    assert all(np.isfinite(leaf).all() for leaf in weights(folder).values())
    assert "updates that changed nothing: 2; their batches are in" in "".join(health(folder / "events.jsonl"))


def test_a_run_stops_where_nothing_is_finite_any_more(data, tmp_path):
    """Not at the next line, which may be far away."""
    hot = AdamW(schedule=WarmupHoldDecay(peak_lr=1e30, warmup_updates=0, decay="none"), clip_at=0.0)
    settings = training(num_updates=400, validate_every=400, log_every=400, max_failed=3)
    with pytest.raises(RunError, match=r"the last \d updates were not finite .* look at these recordings"):
        train(experiment(data, tmp_path / "run", optim=hot, training=settings))
    voided = [json.loads(line) for line in (tmp_path / "run" / "voided.jsonl").read_text().splitlines()]
    assert 3 <= len(voided) <= 6
    (warned,) = [data for data in events(tmp_path / "run", "warning") if data.get("detector") == "not finite"]
    assert warned["update"] == voided[0]["update"]
    assert "FAILED" in health(tmp_path / "run" / "events.jsonl")[0]


def test_half_precision_scales_its_loss_and_stops_at_the_floor(data, tmp_path):
    scale = LossScale(initial=64.0, growth_updates=2)
    train(experiment(data, tmp_path / "run", training=training(precision="f16", loss_scale=scale)))
    assert [data["loss_scale"] for data in events(tmp_path / "run", "train_step")] == [64, 128, 128, 256]
    hot = AdamW(schedule=WarmupHoldDecay(peak_lr=1e30, warmup_updates=0, decay="none"), clip_at=0.0)
    low = training(num_updates=40, precision="f16", loss_scale=LossScale(initial=1.0, floor=0.1))
    with pytest.raises(RunError, match=r"the scale of the loss fell to 0\.0625, below training\.loss_scale\.floor"):
        train(experiment(data, tmp_path / "hot", optim=hot, training=low))


def test_weights_of_a_run_of_a_checkpoint_and_of_a_file_begin_another(data, plain, tmp_path):
    one_update = {"training": training(num_updates=1, ema=EMA(0.0)), "optim": AdamW(freeze_updates=(("rest", 1),))}
    average.main([str(plain), "--out", str(tmp_path / "w.safetensors"), "--last", "1"])
    for path, updates in ((plain, None), (plain / "checkpoints" / "2", 2), (tmp_path / "w.safetensors", 4)):
        folder = tmp_path / f"from-{path.name}"
        train(experiment(data, folder, init=Init(str(path)), **one_update))
        expected, found = weights(plain, updates), weights(folder)
        for name, leaf in expected.items():
            np.testing.assert_array_equal(found[name], leaf, err_msg=name)
        (told,) = events(folder, "initialised")
        assert len(told["loaded"]) == len(expected)
        assert told["missing"] == told["unused"] == []


def test_what_does_not_fit_is_named_and_the_rows_of_shared_pieces_are_kept(data, plain, tmp_path):
    folder = tmp_path / "more"
    rows = [json.loads(line) for line in Path(data.train[0]).read_text().splitlines()]
    rows[0]["text"] = "xa"
    for row in rows:
        row["audio_path"] = str(Path(data.train[0]).parent / row["audio_path"])
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    other = replace(data, train=(str(tmp_path / "train.jsonl"),))
    one_update = {"training": training(num_updates=1, ema=EMA(0.0)), "optim": AdamW(freeze_updates=(("rest", 1),))}
    train(experiment(other, folder, init=Init(str(plain)), **one_update))
    old, new = load_trained(plain), load_trained(folder)
    assert set(new.tokenizer.symbols) - set(old.tokenizer.symbols) == {"x"}
    kernels = [run.variables["params"]["heads_ctc"]["output"]["kernel"] for run in (old, new)]
    for symbol in old.tokenizer.symbols:
        rows_of = [run.tokenizer.symbols.index(symbol) for run in (old, new)]
        np.testing.assert_array_equal(kernels[0][:, rows_of[0]], kernels[1][:, rows_of[1]])
    (told,) = events(folder, "initialised")
    assert told["kept_rows"]["params/heads_ctc/output/kernel"].startswith("4 of 5 pieces are shared")
    wider = experiment(data, tmp_path / "wider", model=toy_model(dim=20), init=Init(str(plain)), **one_update)
    with pytest.raises(
        UserError, match=r"of another shape: params/encoder/hidden/bias \(\(16,\) there, \(20,\) in the"
    ):
        train(wider)
    train(replace(wider, init=Init(str(plain), strict=False), model=toy_model(norm=True), run_dir=str(tmp_path / "n")))
    assert "params/encoder/norm/gain" in events(tmp_path / "n", "initialised")[0]["missing"]
    with pytest.raises(UserError, match="expected the folder of a run, one of its checkpoints"):
        train(experiment(data, tmp_path / "x", init=Init(str(tmp_path)), **one_update))


def test_adapters_alone_are_trained_and_evaluation_sees_their_sum(data, plain, tmp_path):
    lora = LoRA(rank=2, kernels=("encoder/hidden/kernel",))
    settings = {"init": Init(str(plain)), "training": training(ema=EMA(0.0)), "lora": lora}
    train(experiment(data, tmp_path / "run", **settings))
    before, after = weights(plain), weights(tmp_path / "run")
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {
        "params/encoder/hidden/kernel", "params/heads_ctc/output/kernel", "params/heads_ctc/output/bias",
    }  # fmt: skip
    difference = after["params/encoder/hidden/kernel"] - before["params/encoder/hidden/kernel"]
    assert np.linalg.matrix_rank(difference, tol=1e-5) == 2
    for wrong, said in (
        ({"kernels": ("nothing",)}, r"lora\.kernels: 'nothing' matches no parameter"),
        ({"also_trained": ("head_typo.*",)}, r"lora\.also_trained: 'head_typo\.\*' matches no parameter"),
        ({"kernels": ("(",)}, r"lora\.kernels: '\(' is not a regular expression"),
    ):
        with pytest.raises(UserError, match=said):
            train(experiment(data, tmp_path / "none", **settings | {"lora": replace(lora, **wrong)}))


def test_the_mean_of_checkpoints_is_a_run_of_its_own(data, plain, tmp_path, capsys):
    average.main([str(plain), "--out", str(tmp_path / "mean")])
    assert "the mean of the averaged weights of checkpoints 2, 4" in capsys.readouterr().out
    found, two, four = weights(tmp_path / "mean"), weights(plain, 2), weights(plain, 4)
    for name, leaf in found.items():
        np.testing.assert_allclose(leaf, (two[name] + four[name]) / 2, rtol=1e-6, err_msg=name)
    average.main([str(plain), "--out", str(tmp_path / "live"), "--from", "4", "--weights", "live"])
    live = weights(tmp_path / "live")
    assert any(not np.array_equal(live[name], four[name]) for name in live)
    for arguments, said in (
        (["--out", str(tmp_path / "mean")], "is there already"),
        (["--out", str(tmp_path / "x"), "--from", "9"], "no such checkpoint: there are 2, 4"),
        (["--out", str(tmp_path / "x"), "--names", "nemo"], r"is for weights alone: expected --out NAME\.safetensors"),
        (["--out", str(tmp_path / "x.pt")], r"another system's kind of file: expected --names, or NAME\.safetensors"),
        (["--out", str(tmp_path / "x.safetensors"), "--names", "nemo"], "no weights of Toy by the names of nemo"),
    ):
        with pytest.raises(UserError, match=said):
            average.main([str(plain), *arguments])


def recordings(folder, number, seed=0):
    folder.mkdir()
    for name in range(number):
        samples = np.random.default_rng(seed + name).integers(-3000, 3000, 8000).astype(np.int16)
        write_flac(folder / f"{name}.flac", samples, 16000)
    return str(folder)


def test_augmentations_of_samples_and_the_recordings_that_they_add(data, tmp_path):
    noise, rooms = recordings(tmp_path / "noise", 2), recordings(tmp_path / "rooms", 3)
    augment = (
        Gain(), UniformNoise(), BackgroundNoise(probability=1.0, folder=noise), Babble(),
        Reverberation(folder=rooms), NarrowBand(), SpecAugment.quartznet(max_freq_bins=4, max_time_frames=3), Cutout(),
        TimeWarp(max_frames=2),
    )  # fmt: skip
    model = replace(toy_model(), front_end=quartznet(num_mels=80), augment=augment)
    run = experiment(data, tmp_path / "run", model=model)
    train(run)
    assert all(np.isfinite(line["losses"]["total"]) for line in events(tmp_path / "run", "train_step"))
    longer = replace(run, training=training(num_updates=6))
    recordings(tmp_path / "noise" / "more", 1, seed=9)
    with pytest.raises(UserError, match="the recordings that augmentations add have changed"):
        train(longer)
    shutil.rmtree(tmp_path / "noise" / "more")
    train(longer)
    before, after = weights(tmp_path / "run", 4), weights(tmp_path / "run", 6)
    assert any((before[name] != after[name]).any() for name in before)


def test_validation_by_beam_search_compiles_nothing_late(data, tmp_path):
    beam = Decoding(kind="beam", search=Search(beam_width=3), fusion=Fusion(hot_words=("ab",)))
    train(experiment(data, tmp_path / "run", decoding=beam, training=training(num_updates=2, validate_every=1)))
    assert [each["weights"] for each in events(tmp_path / "run", "validation")] == ["live", "ema"] * 2
    assert not events(tmp_path / "run", "recompiled")
    assert load_trained(tmp_path / "run").decoder().text.settings == beam


def test_samples_between_validations_and_a_trace(data, tmp_path):
    settings = training(sample_every=1, num_samples=1, profile="1:3")
    train(experiment(data, tmp_path / "run", training=settings))
    shown = events(tmp_path / "run", "samples")
    assert [data["update"] for data in shown] == [1, 2, 3]
    assert shown[0]["samples"][0].keys() == {"id", "reference", "hypothesis"}
    (told,) = events(tmp_path / "run", "profile")
    traces = list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    assert str(tmp_path / "run" / "profile") == told["path"]
    assert any(b"accumulate" in trace.read_bytes() for trace in traces)
    assert any(b"apply_update" in trace.read_bytes() for trace in traces)


def test_a_trace_of_updates_that_were_not_made_is_told(data, tmp_path):
    train(experiment(data, tmp_path / "run", training=training(profile="100:105")))
    (warned,) = events(tmp_path / "run", "warning")
    assert "training.profile is 100:105, and this job made 4 updates: nothing was traced" in warned["message"]


def test_a_dry_run_computes_a_batch_and_writes_nothing(data, tmp_path, capsys):
    preview.dry_run(experiment(data, tmp_path / "run"))
    said = capsys.readouterr().out
    assert "nothing was written" in said
    assert "gradient norm" in said
    assert not (tmp_path / "run").exists()


def test_the_schedule_is_shown_and_drawn(data, tmp_path, capsys):
    run = experiment(data, tmp_path / "run", training=training(num_updates=100))
    preview.show_schedule(run, tmp_path / "s.png")
    said = capsys.readouterr().out
    assert "WarmupHoldDecay, 100 updates" in said
    assert "nan" not in said
    rows = [line.split() for line in said.splitlines() if line.strip()[:1].isdecimal()]
    assert len(rows) == 21  # the second update as well
    rate = run.optim.schedule.build(RunLength(100, 10))
    for update, shown in rows:
        assert shown == f"{float(rate(int(update) - 1)):.4g}"
    assert "epoch" not in said
    assert (tmp_path / "s.png").stat().st_size > 5000
    by_epoch = AdamW(schedule=WarmupHoldDecay(warmup_updates=0, warmup_epochs=2, decay="exponential"))
    preview.show_schedule(replace(run, optim=by_epoch), tmp_path / "e.png")
    assert "epoch" in capsys.readouterr().out

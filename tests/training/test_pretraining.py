"""A run of pre-training on audio only: validation, checkpoints, resume, evaluation, extraction of layers and codes, and
fine-tuning."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet
import pytest
import soundfile

from asr_jax.audio.io import write_flac
from asr_jax.audio.presets import wav2vec2
from asr_jax.checkpoints.store import checkpoint_to_evaluate
from asr_jax.cli import align, evaluate, extract_features, plan, transcribe
from asr_jax.config import Experiment, Init, Training, Validation
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import data_mesh, replicated
from asr_jax.core.pytrees import flatten
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.heads.contrastive import Contrastive
from asr_jax.heads.ctc import CTC
from asr_jax.inference.losses import measure
from asr_jax.inference.trained import load_trained
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.nn.wav2vec.quantizer import Quantizer
from asr_jax.nn.wav2vec.span_masks import SpanMask
from asr_jax.nn.wav2vec.waveform_convs import WaveformConv
from asr_jax.observe.events import read_events
from asr_jax.observe.health import health
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings
from asr_jax.training import preview
from asr_jax.training.loop import train
from asr_jax.training.stopping import Stopped
from asr_jax.training.timetable import Timetable
from tests.support import approx, assert_close

NUM, HELD_BACK = 20, 5
ENCODER = Wav2Vec2(
    extractor=(WaveformConv(6, 80, 80),), dim=8, num_heads=2, feedforward_dim=8, num_layers=1, position_kernel=4,
    position_groups=2, time_mask=SpanMask(0.5, 3), dropout=0.0, attention_dropout=0.0, input_dropout=0.0,
    feature_dropout=0.0, layer_drop=0.0,
)  # fmt: skip
HEAD = Contrastive(quantizer=Quantizer(groups=2, entries=6), codes_dim=8, dim=8, num_negatives=4)
MODEL = Model(
    encoder=replace(ENCODER, taps=("features", "extractor")), heads={"pretrain": HEAD}, front_end=wav2vec2(), augment=()
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recordings of noise, and manifests with and without texts."""
    folder, rng = tmp_path_factory.mktemp("noise"), np.random.default_rng(0)
    rows = []
    for number in range(NUM + HELD_BACK):
        samples = rng.normal(0, 300 * (number % 7 + 1), 6000 + 240 * (number % 3)).clip(-32768, 32767).astype(np.int16)
        write_flac(folder / f"{number}.flac", samples, 16000)
        rows.append({"id": f"u{number}", "audio_path": f"{number}.flac", "duration": len(samples) / 16000})
    parts = {"train": rows[:NUM], "validation": rows[NUM:], "few": rows[NUM : NUM + 2], "more": rows[NUM + 2 :]}
    for name, part in parts.items():
        texts = [row | {"text": "".join(rng.choice(list("abc"), 2))} for row in part]
        for kind, lines in ((name, part), (f"{name}_text", texts)):
            (folder / f"{kind}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def data(folder, kind="", **changes):
    sets = {name: (str(folder / f"{name}{kind}.jsonl"),) for name in ("train", "validation")}
    batching = Batching.planned(num_buckets=1, seconds=3.4, row_multiple=8)
    return Data(**({**sets, "batching": batching, "tokenizer": TokenizerSettings(kind="none")} | changes))


def validation_sets(folder):
    return tuple(str(folder / f"{name}.jsonl") for name in ("few", "more"))


def experiment(folder, run, **changes):
    settings = {
        "model": MODEL, "data": data(folder),
        "optim": AdamW(schedule=WarmupHoldDecay(peak_lr=5e-3, warmup_updates=2, decay="none")),
        "training": Training(num_updates=2, validation=Validation(every=1), log_every=1, ema=EMA(0.5)),
    }  # fmt: skip
    return Experiment(name="tiny", run_dir=str(run), **settings | changes)


def events(run, *names):
    return [event["data"] for event in read_events(run / "events.jsonl", *names)]


def weights(run, updates=None):
    return {path: np.asarray(leaf) for path, leaf in flatten(load_trained(run, updates=updates).variables).items()}


@pytest.fixture(scope="module")
def pretrained(folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "pretrained"
    summary = train(experiment(folder, run, data=data(folder, validation=validation_sets(folder))))
    assert summary["update"] == 2
    assert summary["best_loss"] <= summary["loss"]
    return run


@pytest.mark.slow
def test_the_validation_loss_is_what_the_best_checkpoint_goes_by(pretrained):
    validations = events(pretrained, "validation")
    assert [(each["update"], each["weights"]) for each in validations] == [
        (1, "live"), (1, "ema"), (2, "live"), (2, "ema"),
    ]  # fmt: skip
    for each in validations:
        assert each["utterances"] == HELD_BACK
        assert each["loss"] == approx(sum(each["losses"].values()))
        assert each["losses"].keys() == {"pretrain/loss", "pretrain/diversity", "pretrain/penalty"}
        assert each["metrics"].keys() == {"pretrain/accuracy", "pretrain/code_perplexity", "pretrain/prob_perplexity"}
        assert 2 <= each["metrics"]["pretrain/code_perplexity"] <= 12
        assert "wer" not in each
    losses = {each["update"]: each["loss"] for each in validations if each["weights"] == "ema"}
    best = min(losses, key=lambda update: (losses[update], -update))
    assert checkpoint_to_evaluate(pretrained / "checkpoints") == best
    assert f"best checkpoint: loss {losses[best]:.4g} at update {best}," in health(pretrained / "events.jsonl")[-1]
    assert not events(pretrained, "recompiled")
    assert (pretrained / "curves.png").stat().st_size > 5000


@pytest.mark.slow
def test_events_have_the_temperature_and_the_masked_frames(pretrained):
    quantizer = MODEL.heads["pretrain"].quantizer
    for number, event in enumerate(events(pretrained, "train_step")):
        temperature = event["metrics"]["pretrain/temperature"]
        assert temperature == approx(quantizer.start_temperature * quantizer.decay**number, rel=1e-6)
    speed = events(pretrained, "train_step")[-1]["throughput"]
    assert 0.2 * speed["frames_per_s"] < speed["masked_frames_per_s"] < 0.8 * speed["frames_per_s"]
    assert speed["per_device"]["masked_frames_per_s"] == speed["masked_frames_per_s"] / len(jax.devices())
    assert speed["feature_values_per_s"] == approx(16000 * speed["audio_s_per_s"])
    assert speed["tokens_per_s"] == speed["letters_per_s"] == 0


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_bit(folder, pretrained, tmp_path, monkeypatch):
    run = experiment(folder, tmp_path / "run")
    over = iter([False])
    with monkeypatch.context() as patched:
        patched.setattr(Timetable, "is_over", lambda timetable: next(over, True))
        with pytest.raises(Stopped):
            train(run)
    assert train(run)["loss"] == events(pretrained, "run_complete")[0]["loss"]
    found = weights(tmp_path / "run", 2)
    for path, leaf in weights(pretrained, 2).items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)
    assert "already" in train(run)


@pytest.mark.slow
def test_on_one_device_the_validation_loss_is_nearly_the_same(folder, pretrained):
    trained = load_trained(pretrained, updates=2)
    utterances = read_utterances_without_texts(folder / "validation.jsonl")
    one = data_mesh(1)
    alone = replace(trained, mesh=one, variables=jax.device_put(jax.device_get(trained.variables), replicated(one)))
    of_one, rejected, _ = measure(alone.losses(), alone.variables, alone.plan(utterances))
    assert rejected == []
    (event,) = [each for each in events(pretrained, "validation") if (each["update"], each["weights"]) == (2, "ema")]
    for kind in ("losses", "metrics"):
        for name, value in event[kind].items():
            assert of_one[kind][name] == approx(value, rel=1e-5), name


def read_utterances_without_texts(path):
    return read_utterances([path], role="validation", options=ReadOptions(texts_may_lack=True))


@pytest.mark.slow
def test_evaluate_gives_a_table_of_losses_and_refuses_to_find_texts(folder, pretrained, tmp_path, capsys):
    out, manifest, parts = tmp_path / "losses.json", str(folder / "validation.jsonl"), validation_sets(folder)
    evaluate.main([str(pretrained), "--data", manifest, *parts, "--checkpoint", "2", "--json", str(out)])
    output, messages = capsys.readouterr()
    assert "longer" not in messages
    (event,) = [each for each in events(pretrained, "validation") if (each["update"], each["weights"]) == (2, "ema")]
    (result,) = json.loads(out.read_text())["runs"]
    assert (result["checkpoint"], result["weights"]) == (2, "averaged")
    found = result["sets"][manifest]
    for name in ("loss", "losses", "metrics"):  # batches of other sizes may be rounded in another way
        assert found[name] == approx(event[name], rel=1e-6)
    assert (found["utterances"], found["rejected"]) == (HELD_BACK, 0)
    for name, path in zip(("few", "more"), parts, strict=True):  # training has each set in batches of its own
        assert event["sets"][name].pop("loss_utterances") == event["sets"][name]["utterances"]
        expected, of_set = event["sets"][name] | {"rejected": 0}, result["sets"][path]
        assert of_set.keys() == expected.keys()
        for key, value in expected.items():
            assert of_set[key] == (value if isinstance(value, str) else approx(value, rel=1e-6))
    accuracy = f"{100 * event['metrics']['pretrain/accuracy']:.2f} %"
    for words in ("diversity", accuracy, f"{event['loss']:.4g}", "checkpoint 2, averaged parameters, f32"):
        assert words in output
    for option in (["--predictions", str(tmp_path / "p.jsonl")], ["--calibrate"], ["--decoding.kind", "beam"]):
        with pytest.raises(UserError, match=rf"texts.*{option[0]}"):
            evaluate.main([str(pretrained), "--data", manifest, *option])
    audio = str(folder / "0.flac")
    with pytest.raises(UserError, match=r"cannot recognise.*\(pretrain\).*CTC"):
        transcribe.main([str(pretrained), audio])
    (tmp_path / "text").write_text("ab")
    with pytest.raises(UserError, match=r"cannot recognise.*\(pretrain\).*CTC"):
        align.main([str(pretrained), audio, "--text", str(tmp_path / "text")])


@pytest.fixture(scope="module")
def tuned(folder, pretrained, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "tuned"
    model = replace(MODEL, encoder=replace(ENCODER, time_mask=SpanMask(0.0)), heads={"ctc": CTC(dropout=0.0)})
    of_texts = data(folder, "_text", tokenizer=TokenizerSettings())
    train(experiment(folder, run, model=model, data=of_texts, init=Init(str(pretrained), new=("heads_.*",))))
    return run


@pytest.mark.slow
def test_a_ctc_head_is_trained_on_the_pre_trained_encoder(folder, pretrained, tuned):
    (event,) = events(tuned, "initialised")
    encoder = {path for path in weights(pretrained) if path.startswith("params/encoder/")}
    assert encoder == set(event["loaded"])
    assert set(event["missing"]) == {"params/heads_ctc/output/kernel", "params/heads_ctc/output/bias"}
    assert {path.split("/")[1] for path in event["unused"]} == {"heads_pretrain"}
    assert f"{len(event['unused'])} unused: params/heads_pretrain/" in event["message"]
    assert event["mismatched"] == {}


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "dim"), [pytest.param("0", 8, marks=SLOW), pytest.param("features", 6, marks=SLOW), ("output", 8)]
)
def test_a_layer_of_a_trained_encoder_as_features(folder, tuned, tmp_path, layer, dim):
    rows = extracted(folder, tuned, tmp_path / "f.parquet", "--layer", layer)
    trained = load_trained(tuned)
    utterances = read_utterances_without_texts(folder / "validation.jsonl")
    assert [row["id"] for row in rows] == [utterance.id for utterance in utterances]
    for row, utterance in zip(rows, utterances, strict=True):
        length = round(utterance.duration_s * 16000)
        assert (row["rows"], row["cols"]) == (trained.model.output_length(length), dim)
        assert row["duration_ms"] == round(utterance.duration_s * 1000)
        assert len(row["features"]) == row["rows"] * dim
    if layer == "output":
        audio = Location.parse(utterances[1].location).audio(rate_hz=16000)
        encoder, params = trained.experiment.model.encoder.build(dtype=jnp.float32), trained.variables["params"]

        @jax.jit
        def encode(audio, lengths):
            frames = trained.model.front_end(audio, lengths)
            return encoder.apply({"params": params["encoder"]}, frames, step=None).frames

        alone = encode(audio[None], np.array([len(audio)]))
        assert_close(np.reshape(rows[1]["features"], alone.values[0].shape), alone.values[0], atol=2e-5)


def extracted(folder, run, out, *what):
    extract_features.main([str(run), *what, "--input", str(folder / "validation.jsonl"), "--output", str(out)])
    return pyarrow.parquet.read_table(out).to_pylist()


@pytest.mark.slow
def test_recordings_shorter_than_a_frame_have_no_features(tuned, tmp_path):
    soundfile.write(tmp_path / "click.wav", np.full(20, 0.1), 16000)
    out = tmp_path / "f.parquet"
    extract_features.main([str(tuned), "--layer", "0", "--input", str(tmp_path / "click.wav"), "--output", str(out)])
    (row,) = pyarrow.parquet.read_table(out).to_pylist()
    assert (row["rows"], row["cols"], row["features"]) == (0, 8, [])


@pytest.mark.slow
def test_codes_of_the_quantiser(folder, pretrained, tuned, tmp_path):
    rows = extracted(folder, pretrained, tmp_path / "c.parquet", "--codes")
    assert pyarrow.parquet.read_schema(tmp_path / "c.parquet").field("features").type.value_type == pyarrow.int32()
    features = extracted(folder, pretrained, tmp_path / "f.parquet", "--layer", "features")
    quantizer = load_trained(pretrained).variables["params"]["heads_pretrain"]["quantizer"]["logits"]
    for row, of_features in zip(rows, features, strict=True):
        assert (row["id"], row["rows"], row["cols"]) == (of_features["id"], of_features["rows"], 2)
        values = np.reshape(of_features["features"], (row["rows"], 6))
        logits = values @ np.asarray(quantizer["kernel"]) + np.asarray(quantizer["bias"])
        expected = logits.reshape(row["rows"], 2, 6).argmax(-1)
        assert np.mean(np.reshape(row["features"], (-1, 2)) == expected) > 0.99  # except ties, which rounding decides
    for arguments, message in (
        ([str(tuned), "--codes"], "has no quantiser, its heads are ctc; expected a run that was pre-trained"),
        ([str(tuned), "--layer", "7"], "expected names from extractor, features, layer_0; or output"),
        (["--codes"], "need a trained run"),
    ):
        with pytest.raises(UserError, match=message):
            extract_features.main([*arguments, "--input", str(folder), "--output", str(tmp_path / "x.parquet")])


@pytest.mark.slow
def test_the_plan_and_a_dry_run(folder, tmp_path, capsys):
    run = experiment(folder, tmp_path / "run")
    preview.dry_run(run)
    output = capsys.readouterr().out
    assert "gradient norm" in output
    assert "nothing was written" in output
    planned = plan.plan(run).train
    (row,) = plan.bucket_rows(planned)
    assert (row["labels"], row["rows"]) == (0, 8)
    assert planned.rejections.utterances == {}
    uneven = replace(run, model=replace(MODEL, sub_batches=3))
    assert [row["rows"] for row in plan.bucket_rows(plan.plan(uneven).train)] == [24]
    for changes, message in (
        ({"model": replace(MODEL, heads={"pretrain": HEAD, "ctc": CTC()})}, "kind is none and model.heads.ctc learns"),
        (
            {"training": Training(num_updates=2, validation=Validation(sample_every=1))},
            "_every is 1 and the model has no recognising head",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            experiment(folder, tmp_path / "run", **changes)

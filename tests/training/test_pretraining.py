"""Pre-training on audio alone as a run: validated, saved, resumed, evaluated, its layers and codes extracted, and then
fine-tuned."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pyarrow.parquet
import pytest

from asr_jax import align, evaluate, extract_features, plan, transcribe
from asr_jax.audio.io import write_flac
from asr_jax.audio.presets import wav2vec2
from asr_jax.checkpoints.store import checkpoint_to_evaluate
from asr_jax.config import Experiment, Init, Training, save_experiment
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import data_mesh, replicated
from asr_jax.core.pytrees import flatten
from asr_jax.data.buckets import Buckets
from asr_jax.data.dataset import Data
from asr_jax.data.reading import read_records
from asr_jax.heads.contrastive import Contrastive
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.nn.quantizer import Quantizer
from asr_jax.nn.span_masks import SpanMask
from asr_jax.nn.waveform_convs import ConvLayer
from asr_jax.observe.events import read_events
from asr_jax.observe.health import health
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizer import TokenizerSettings
from asr_jax.training import preview
from asr_jax.training.loop import train
from asr_jax.training.losses import measure
from asr_jax.training.stopping import Stopped
from asr_jax.training.trained import load_trained

NUM, HELD_BACK = 20, 5
ENCODER = Wav2Vec2(
    extractor=(ConvLayer(4, 20, 10), ConvLayer(6, 8, 8)), dim=8, num_heads=2, feedforward_dim=8, num_layers=1,
    position_kernel=4, position_groups=2, time_mask=SpanMask(0.5, 3), dropout=0.1, layer_drop=0.0,
)  # fmt: skip
HEAD = Contrastive(quantizer=Quantizer(groups=2, entries=6), codes_dim=8, dim=8, num_negatives=4)
MODEL = Model(
    encoder=replace(ENCODER, taps=("features", "extractor")), heads={"pretrain": HEAD}, front_end=wav2vec2(),
    augment=(), sub_batches=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recordings of noise, and manifests that say nothing of what is said, and such that do."""
    folder, rng = tmp_path_factory.mktemp("noise"), np.random.default_rng(0)
    rows = []
    for number in range(NUM + HELD_BACK):
        samples = rng.normal(0, 300 * (number % 7 + 1), 6000 + 240 * (number % 3)).clip(-32768, 32767).astype(np.int16)
        write_flac(folder / f"{number}.flac", samples, 16000)
        rows.append({"id": f"u{number}", "audio_path": f"{number}.flac", "duration": len(samples) / 16000})
    for name, part in (("train", rows[:NUM]), ("validation", rows[NUM:])):
        texts = [row | {"text": "".join(rng.choice(list("abc"), 2))} for row in part]
        for kind, lines in ((name, part), (f"{name}_text", texts)):
            (folder / f"{kind}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def data(folder, kind="", **changes):
    sets = {name: (str(folder / f"{name}{kind}.jsonl"),) for name in ("train", "validation")}
    buckets = Buckets(num=1, batch_seconds=3.4, batch_multiple=8)
    return Data(**({**sets, "buckets": buckets, "tokenizer": TokenizerSettings(kind="none")} | changes))


def experiment(folder, run, **changes):
    settings = {
        "model": MODEL, "data": data(folder),
        "optim": AdamW(schedule=WarmupHoldDecay(peak_lr=5e-3, warmup_updates=2, decay="none")),
        "training": Training(num_updates=6, validate_every=3, log_every=1, ema=EMA(0.5)),
    }  # fmt: skip
    return Experiment(name="tiny", run_dir=str(run), **settings | changes)


def events(run, *names):
    return [event["data"] for event in read_events(run / "events.jsonl", *names)]


def weights(run, updates=None):
    return {path: np.asarray(leaf) for path, leaf in flatten(load_trained(run, updates=updates).variables).items()}


@pytest.fixture(scope="module")
def pretrained(folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "pretrained"
    summary = train(experiment(folder, run))
    assert summary["update"] == 6
    assert summary["best_loss"] <= summary["loss"]
    return run


def test_the_validation_loss_is_what_the_best_checkpoint_goes_by(pretrained):
    validations = events(pretrained, "validation")
    assert [(each["update"], each["weights"]) for each in validations] == [
        (3, "live"), (3, "ema"), (6, "live"), (6, "ema"),
    ]  # fmt: skip
    for each in validations:
        assert each["utterances"] == HELD_BACK
        assert each["loss"] == pytest.approx(sum(each["losses"].values()))
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


def test_a_run_that_was_stopped_goes_on_to_the_bit(folder, pretrained, tmp_path):
    run = experiment(folder, tmp_path / "run")
    with pytest.raises(Stopped):
        train(replace(run, training=replace(run.training, max_hours=1e-9)))
    assert train(run)["loss"] == events(pretrained, "run_complete")[0]["loss"]
    for path, leaf in weights(pretrained, 6).items():
        np.testing.assert_array_equal(weights(tmp_path / "run", 6)[path], leaf, err_msg=path)
    assert "already" in train(run)

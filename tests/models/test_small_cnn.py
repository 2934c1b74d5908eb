"""The example of docs/adding-a-model.md: the suite of all encoders, and a training from its config."""

import json

import pytest
from encoder_suite import EncoderSuite

import asr_jax
from asr_jax.cli import train
from asr_jax.observe.events import read_events
from examples.new_model.small_cnn import SmallCNN
from tests.inference.test_another_head import corpus  # noqa: F401  a fixture: sentences whose letters are tones
from tests.support import ROOT

CONFIG = ROOT / "examples" / "new_model" / "small_cnn_config.py"


class TestSmallCNN(EncoderSuite):
    settings = SmallCNN(dim=12, num_layers=2, kernel_size=5, dropout=0.0)


@pytest.mark.slow  # tests/cli/test_align.py has a quick run that learns
def test_it_learns_and_transcribes(corpus, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    train.main([
        "--config", str(CONFIG), "--run-dir", str(run), "--updates", "60",
        "--data.train", str(corpus / "train.jsonl"), "--data.validation", str(corpus / "validation.jsonl"),
        "--data.batching.num-buckets", "1", "--data.batching.row-multiple", "4",
        "--model.encoder.dim", "32", "--model.encoder.num-layers", "1",
        "--optim.schedule.peak-lr", "1e-2", "--optim.schedule.warmup-updates", "5",
        "--training.validation.every", "60", "--training.log-every", "10",
    ])  # fmt: skip
    losses = [event["data"]["losses"]["total"] for event in read_events(run / "events.jsonl", "train_step")]
    assert losses[-1] < 0.3 * losses[0]
    texts = [json.loads(line)["text"] for line in (corpus / "train.jsonl").read_text().splitlines()[:4]]
    found = asr_jax.load(run).transcribe([corpus / f"{number}.flac" for number in range(4)])
    assert [each.text for each in found] == texts

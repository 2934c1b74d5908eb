"""An attention decoder beside CTC, from training to transcripts: validation of both heads, n-best lists and times."""

import itertools
import json

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.cli import evaluate, transcribe
from asr_jax.config import Experiment, Training
from asr_jax.core.errors import UserError
from asr_jax.data.batching.buckets import Buckets
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.nn.decoders.label_decoder import LabelDecoder
from asr_jax.observe.events import read_events
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.training.loop import train
from tests.inference.test_another_head import corpus as corpus_of_tones
from tests.inference.test_another_head import spoken
from tests.training.toy import Toy

corpus_of_tones = corpus_of_tones  # a fixture of this module, too
pytestmark = pytest.mark.slow  # test_another_head.py has the same commands with another attention decoder
UPDATES = 60
BEAM = ["--decoding.kind", "beam", "--decoding.beam-width", "3", "--decoding.ctc-weight", "0.9"]


@pytest.fixture(scope="module")
def run(corpus_of_tones, tmp_path_factory):
    folder, corpus = tmp_path_factory.mktemp("attention") / "run", corpus_of_tones
    decoder = LabelDecoder(dim=16, num_layers=1, attention_dim=16, num_heads=2, feedforward_dim=32, dropout=0.0)
    heads = {"attention": AttentionDecoder(decoder=decoder, ctc="ctc", scale=0.7), "ctc": CTC(dropout=0.0)}
    train(Experiment(
        name="attention",
        model=Model(encoder=Toy(dim=24), heads=heads, augment=(), primary="attention"),
        data=Data(
            train=(str(corpus / "train.jsonl"),), validation=(str(corpus / "validation.jsonl"),),
            buckets=Buckets(num=1, batch_seconds=8.0, batch_multiple=4),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=2e-2, warmup_updates=5)),
        training=Training(
            num_updates=UPDATES, validate_every=UPDATES, log_every=5, ema=EMA(0.8), validate_live=False,
            validate_heads=("ctc",),
        ),
        run_dir=str(folder),
    ))  # fmt: skip
    return folder


def test_it_learns_and_validation_reports_both_heads(run):
    steps = [event["data"] for event in read_events(run / "events.jsonl", "train_step")]
    assert steps[-1]["losses"]["attention/loss"] < 0.7 * steps[0]["losses"]["attention/loss"]
    (validation,) = (event["data"] for event in read_events(run / "events.jsonl", "validation"))
    assert (validation["head"], validation["decoding"]) == ("attention", "attention greedy")
    assert validation["heads"]["ctc"]["words"] == validation["words"] == 16


def test_each_head_is_a_row_and_the_joint_score_lists_several_texts(run, corpus_of_tones, tmp_path, capsys):
    command = [str(run), "--data", str(corpus_of_tones / "validation.jsonl"), "--json", str(tmp_path / "out.json")]
    evaluate.main([*command, "--head", "attention", "ctc"])
    heads = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert [(each["head"], each["decoding"]) for each in heads] == [("attention", "greedy"), ("ctc", "greedy")]
    evaluate.main([*command, *BEAM, "--predictions", str(tmp_path / "predictions.jsonl")])
    assert "beam 3, CTC × 0.9" in " ".join(capsys.readouterr().out.split())
    (joint,) = json.loads((tmp_path / "out.json").read_text())["runs"]
    cer = [each["sets"][command[2]]["cer"] for each in (heads[1], joint)]
    assert cer[1] < cer[0] + 0.2, "the joint score follows CTC, which knows the order of frames"
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert max(len(line["n_best"]) for line in lines) == 3
    with pytest.raises(UserError, match=r"ctc_weight is 1.5: expected less than 1"):
        evaluate.main([*command, "--decoding.ctc-weight", "1.5"])


def test_words_have_the_times_of_ctc(run, tmp_path):
    write_flac(tmp_path / "one.flac", np.concatenate([spoken("ab cd"), spoken("  ea bb")]), 16000)
    out = ["--out", str(tmp_path / "texts"), "--format", "json"]
    transcribe.main([str(run), str(tmp_path / "one.flac"), *out, *BEAM])
    found = json.loads((tmp_path / "texts" / "one.json").read_text())
    assert (found["head"], found["decoding"]) == ("attention", "beam 3, CTC × 0.9")
    words = found["words"]
    assert len(words) >= 2
    assert all(0 <= word["start_s"] < word["end_s"] <= 1.82 for word in words)
    assert all(before["end_s"] <= after["start_s"] for before, after in itertools.pairwise(words))
    assert all(0 < word["confidence"] <= 1 for word in words)

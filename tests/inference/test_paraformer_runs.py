"""Paraformer from training to transcripts: it learns, validation reports both heads, and words have times."""

import itertools
import json

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.cli import evaluate, transcribe
from asr_jax.config import Experiment, Training
from asr_jax.data.batching.buckets import Buckets
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.paraformer_v2 import Enhancement, ParaformerV2
from asr_jax.models.base import Model
from asr_jax.nn.decoders.parallel_decoder import SANMDecoder, TransformerDecoder
from asr_jax.observe.events import read_events
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.training.loop import train
from asr_jax.transcripts.transcript import Transcript
from tests.inference.test_another_head import corpus as corpus_of_tones
from tests.inference.test_another_head import spoken
from tests.training.toy import Toy

corpus_of_tones = corpus_of_tones  # a fixture of this module, too
UPDATES = 150
SIZES = {"num_heads": 2, "feedforward_dim": 48, "dropout": 0.0, "attention_dropout": 0.0}
HEADS = {
    "v1": {
        "paraformer": Paraformer(
            decoder=SANMDecoder(
                num_layers=1, num_attention_layers=1, kernel_size=3, memory_dropout=0.0, **SIZES
            ),
            label_scale=0.7,
        ),
        "ctc": CTC(dropout=0.0, scale=0.3),
    },
    "enhanced": {
        "paraformer": ParaformerV2(
            decoder=TransformerDecoder(num_layers=1, **SIZES), enhanced=Enhancement(tap="", refine_below=0.9)
        ),
        "ctc": CTC(dropout=0.0),
        "shallow": CTC(dropout=0.0, scale=0.3),
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.slow) for name in HEADS])
def run(request, corpus_of_tones, tmp_path_factory):
    folder, corpus = tmp_path_factory.mktemp(request.param) / "run", corpus_of_tones
    train(Experiment(
        name="paraformer",
        model=Model(encoder=Toy(dim=32), heads=HEADS[request.param], augment=(), primary="paraformer"),
        data=Data(
            train=(str(corpus / "train.jsonl"),), validation=(str(corpus / "validation.jsonl"),),
            buckets=Buckets(num=1, batch_seconds=8.0, batch_multiple=4),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=1e-2, warmup_updates=5)),
        training=Training(
            num_updates=UPDATES, validate_every=UPDATES, log_every=10, ema=EMA(0.8), validate_live=False,
            validate_heads=("ctc",), validate_loss=True,
        ),
        run_dir=str(folder),
    ))  # fmt: skip
    return folder


def test_it_learns_and_validation_reports_both_heads(run):
    steps = [event["data"] for event in read_events(run / "events.jsonl", "train_step")]
    assert steps[-1]["losses"]["total"] < 0.5 * steps[0]["losses"]["total"]
    assert steps[-1]["metrics"]["paraformer/accuracy"] > 0.8
    (validation,) = (event["data"] for event in read_events(run / "events.jsonl", "validation"))
    assert (validation["head"], validation["decoding"]) == ("paraformer", "parallel")
    assert validation["heads"]["ctc"]["decoding"] == "greedy"
    assert validation["heads"]["ctc"]["words"] == validation["words"] == 16
    if "paraformer/refined" in steps[-1]["metrics"]:
        assert 0 <= validation["metrics"]["paraformer/refined"] <= 1
    else:  # the queries of v2 are labels that CTC finds, which needs frames with context
        assert validation["cer"] < 0.4


def test_each_head_is_a_row_of_one_table(run, corpus_of_tones, tmp_path, capsys):
    command = [str(run), "--data", str(corpus_of_tones / "validation.jsonl"), "--json", str(tmp_path / "out.json")]
    evaluate.main([*command, "--head", "paraformer", "ctc"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "head paraformer, parallel" in printed
    results = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert [(each["head"], each["decoding"]) for each in results] == [("paraformer", "parallel"), ("ctc", "greedy")]
    (of_set,) = results[0]["sets"].values()
    evaluate.main([*command, "--decoding.refine", "False"])
    assert "parallel, not refined" in " ".join(capsys.readouterr().out.split())
    (plain,) = json.loads((tmp_path / "out.json").read_text())["runs"][0]["sets"].values()
    assert "before_refinement" not in plain
    if "enhanced" in str(run):
        assert ": before refinement" in printed
        before = of_set["before_refinement"]
        assert (before["wer"], before["cer"]) == (plain["wer"], plain["cer"])
        assert (before["changed"] is None) == (not plain["words"] or plain["deletions"] == plain["words"])
        assert before["refined"] is None or 0 <= before["refined"] <= 1


def test_share_of_words_that_refinement_changed():
    assert evaluate.share_changed([("a b c", "a x c"), ("d", "d e"), ("", "")]) == 0.5
    assert evaluate.share_changed([("", "a")]) is None


def test_share_of_labels_that_were_refined():
    transcripts = [Transcript((), 0.0, tokens=(1, 2), log_probs=(-0.1, -0.5)), Transcript((), 0.0)]
    assert evaluate.share_below(transcripts, 0.7) == 0.5
    assert evaluate.share_below(transcripts, 0.0) == 0
    assert evaluate.share_below(transcripts[1:], 0.7) is None


def test_words_have_times_and_confidences(run, tmp_path):
    write_flac(tmp_path / "one.flac", np.concatenate([spoken("ab cd"), spoken("  ea bb")]), 16000)
    transcribe.main([str(run), str(tmp_path / "one.flac"), "--out", str(tmp_path / "texts"), "--format", "json"])
    found = json.loads((tmp_path / "texts" / "one.json").read_text())
    assert (found["head"], found["decoding"]) == ("paraformer", "parallel")
    words = found["words"]
    assert len(words) >= 3 or "enhanced" in str(run)
    assert all(0 <= word["start_s"] < word["end_s"] <= 1.82 for word in words)
    assert all(before["end_s"] <= after["start_s"] for before, after in itertools.pairwise(words))
    assert all(0 < word["confidence"] <= 1 for word in words)


def test_heads_of_validation_exist():
    model = Model(encoder=Toy(), heads=HEADS["v1"], augment=(), primary="paraformer")
    with pytest.raises(
        ValueError, match=r"training.validate_heads has 'paraformer': expected recognising heads beside"
    ):
        Experiment("x", model, Data(train=("t",)), training=Training(num_updates=1, validate_heads=("paraformer",)))

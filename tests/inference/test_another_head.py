"""A head that is defined only in this file: an attention decoder with a label-synchronous search.

It is trained with and without a CTC head, validated, evaluated, averaged and resumed, and transcribes recordings that
are longer than those of training.
"""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from asr_jax.audio.io import write_flac
from asr_jax.cli import align, average, evaluate, transcribe
from asr_jax.config import Experiment, Limits, Training, Validation
from asr_jax.core.batch import length_mask
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.pytrees import flatten
from asr_jax.core.sums import Sum
from asr_jax.core.timed_tokens import TimedTokens
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.heads.base import Head, HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.inference.trained import load_trained
from asr_jax.models.base import Model
from asr_jax.observe.events import read_events
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.search.base import Decoding, HostStage
from asr_jax.training.loop import train
from tests.support import approx, assert_close
from tests.training.toy import Toy

pytestmark = pytest.mark.slow

UPDATES = 50


class OnTheHost(HostStage):
    """A stage that returns what the device found."""

    name = "identity"

    def __call__(self, given, rows):
        return jax.tree.map(lambda array: np.asarray(array)[np.asarray(rows, int)], jax.device_get(given))


@dataclass(frozen=True)
class LabelByLabel(Decoding):
    """Greedy search for the most likely next label, until the end of the sentence."""

    max_labels: int = 12
    """Largest number of labels of a row."""
    on_host: bool = False
    """Whether the search has a stage on the host."""
    words: tuple[str, ...] = ()
    """Not used."""

    def host_stage(self, tokenizer, *, num_shares=1):
        return OnTheHost() if self.on_host else None

    def __str__(self):
        return f"label by label, at most {self.max_labels}"

    def digest(self):
        return str(self)


@dataclass(frozen=True)
class AttentionDecoder(HeadSettings):
    """One attention layer: the query is the previous label and its position, the keys are all frames."""

    recognises: ClassVar[bool] = True

    dim: int = 16
    """Number of channels."""
    decoding: LabelByLabel = LabelByLabel()
    """Settings of the search."""

    def build(self, *, vocab_size, blank_id, dtype):
        return AttentionDecoderHead(self, vocab_size, blank_id)


class AttentionDecoderHead(Head):
    """The blank is the token for the start and the end of a sentence."""

    recognises: ClassVar[bool] = True

    settings: AttentionDecoder
    vocab_size: int
    blank_id: int

    def setup(self):
        self.before = nn.Embed(self.vocab_size, self.settings.dim)
        self.place = nn.Embed(64, self.settings.dim)
        self.query, self.key = nn.Dense(self.settings.dim), nn.Dense(self.settings.dim)
        self.output = nn.Dense(self.vocab_size)

    def attend(self, encoded, before, places):
        """Log-probabilities [B U V] of the labels after `before` [B U], and the most attended frame of each [B U]."""
        frames = encoded.frames
        times = jnp.sin(jnp.arange(frames.values.shape[1])[:, None] / 2.0 ** jnp.arange(8)[None])
        keys = self.key(
            jnp.concatenate([frames.values, jnp.broadcast_to(times[None], (*frames.values.shape[:2], 8))], -1)
        )
        scores = jnp.einsum("bud,btd->but", self.query(self.before(before) + self.place(places)), keys)
        scores = jnp.where(length_mask(frames.lengths, frames.values.shape[1])[:, None], scores, -1e9)
        context = jnp.einsum("but,btd->bud", jax.nn.softmax(scores), keys)
        return jax.nn.log_softmax(self.output(context + self.before(before))), scores.argmax(-1)

    def __call__(self, encoded, batch, *, step):
        num_labels = batch.tokens.shape[1]
        ends = jnp.arange(num_labels + 1)[None] == batch.token_lengths[:, None]
        targets = jnp.where(ends, self.blank_id, jnp.pad(batch.tokens, ((0, 0), (0, 1))))
        before = jnp.pad(batch.tokens, ((0, 0), (1, 0)), constant_values=self.blank_id)
        log_probs, _ = self.attend(encoded, before, jnp.arange(num_labels + 1)[None])
        losses = -jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
        counted = length_mask(batch.token_lengths + 1, num_labels + 1)
        rows = jnp.sum(jnp.where(counted, losses, 0.0), axis=1)
        return {"loss": Sum(jnp.sum(rows * batch.weights), self._weight(batch))}

    def denominators(self, lengths, batch, *, mask):
        return {"loss": self._weight(batch)}

    def _weight(self, batch):
        return jnp.sum(batch.weights * (batch.token_lengths + 1))

    def search(self, encoded, decoding, state=None):
        num_rows = len(encoded.frames.lengths)

        def next_label(carried, place):
            before, has_ended = carried
            log_probs, frame = self.attend(encoded, before[:, None], place[None, None])
            label = jnp.where(has_ended, self.blank_id, log_probs[:, 0].argmax(-1)).astype(jnp.int32)
            logp = jnp.where(has_ended, 0.0, log_probs[:, 0].max(-1))
            ended = has_ended | (label == self.blank_id)
            return (label, ended), (label, frame[:, 0], logp, ended)

        begin = jnp.full(num_rows, self.blank_id, jnp.int32), encoded.frames.lengths == 0
        # jax.lax.scan cannot be used with the parameters of a bound module; Flax would have to lift it.
        found, carried = [], begin
        for place in range(decoding.max_labels):
            carried, each = next_label(carried, jnp.int32(place))
            found.append(each)
        tokens, frames, logps, ended = (jnp.stack(each, axis=1)[:, None] for each in zip(*found, strict=True))
        starts = jax.lax.cummax(frames.astype(jnp.int32), axis=2)  # a later label does not begin earlier
        return TimedTokens(
            tokens=tokens, starts=starts, ends=starts + 1, log_probs=logps, lengths=(~ended).sum(-1, dtype=jnp.int32),
            scores=logps.sum(-1),
        ), None  # fmt: skip


TONES = {letter: 300.0 * 1.6**place for place, letter in enumerate("abcde")}


def spoken(text):
    """Audio with a tone for each letter and a pause for each space."""
    time = np.arange(2400) / 16000
    tones = [np.zeros(2400) if letter == " " else 8000 * np.sin(2 * np.pi * TONES[letter] * time) for letter in text]
    noise = np.random.default_rng(len(text)).normal(0, 30, 2400 * len(text))
    return (np.concatenate(tones) + noise).astype(np.int16)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder, rng, utterances = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0), []
    for number in range(24):
        text = " ".join("".join(rng.choice(list("abcde"), 2)) for _ in range(2))
        write_flac(folder / f"{number}.flac", spoken(text), 16000)
        utterances.append(Utterance(f"u{number}", str(folder / f"{number}.flac"), text, 2400 * len(text) / 16000))
    write_manifest(folder / "train.jsonl", utterances[:16])
    write_manifest(folder / "validation.jsonl", utterances[16:])
    return folder


def experiment(corpus, folder, heads, **training):
    return Experiment(
        name="attention",
        model=Model(encoder=Toy(dim=24), heads=heads, augment=(), primary="attention" if len(heads) > 1 else ""),
        data=Data(
            train=(str(corpus / "train.jsonl"),), validation=(str(corpus / "validation.jsonl"),),
            batching=Batching.planned(num_buckets=1, seconds=8.0, row_multiple=4),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=1e-2, warmup_updates=2)),
        training=Training(num_updates=UPDATES, validation=Validation(every=25), log_every=5, ema=EMA(0.8), **training),
        run_dir=str(folder),
    )  # fmt: skip


HEADS = {"alone": {"attention": AttentionDecoder()}, "hybrid": {"ctc": CTC(scale=0.3), "attention": AttentionDecoder()}}


@pytest.fixture(scope="module", params=[pytest.param("alone", marks=pytest.mark.slow), "hybrid"])
def run(request, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "run"
    train(experiment(corpus, folder, HEADS[request.param]))
    return folder


def test_it_learns_and_every_validation_names_it(run):
    losses = [event["data"]["losses"]["total"] for event in read_events(run / "events.jsonl", "train_step")]
    assert losses[-1] < 0.6 * losses[0]
    validations = [event["data"] for event in read_events(run / "events.jsonl", "validation")]
    assert {each["head"] for each in validations} == {"attention"}
    assert {each["decoding"] for each in validations} == {"label by label, at most 12"}
    metrics = json.loads((run / "checkpoints" / str(UPDATES) / "metrics" / "metrics").read_text())
    assert (metrics["head"], metrics["decoding"]) == ("attention", "label by label, at most 12")


@pytest.mark.slow
def test_what_the_search_finds_has_the_likelihood_that_training_computes(run):
    trained = load_trained(run)
    samples = np.stack([spoken("ab cd"), spoken("ea bb")])
    num = np.full(2, samples.shape[1], np.int32)
    batch = batch_of(samples, num)
    head = {"head": "attention", "decoding": trained.experiment.primary_decoding}
    search = jax.jit(lambda variables, batch: trained.model.apply(variables, batch, **head, method="search")[0])
    found = jax.device_get(search(trained.variables, batch))
    for row in range(2):
        (sequence,) = found.sequences(row)
        assert len(sequence.tokens) < 12, "the sentence ends"
        assert list(sequence.starts) == sorted(sequence.starts)
        labelled = batch_of(samples[row : row + 1], num[:1], sequence.tokens)
        sums = trained.model.apply(trained.variables, labelled, step=None)
        assert float(sums["attention/loss"].total) == approx(-sequence.score, rel=1e-4)


def batch_of(samples, lengths, tokens=()):
    from asr_jax.core.batch import Batch

    rows = len(samples)
    return Batch(
        audio=jnp.asarray(samples), features=None, lengths=jnp.asarray(lengths),
        tokens=jnp.tile(np.array(tokens, np.int32)[None], (rows, 1)), token_lengths=jnp.full(rows, len(tokens)),
        weights=jnp.ones(rows), utterances=jnp.arange(rows),
    )  # fmt: skip


def test_commands_name_head_and_decoding(run, corpus, tmp_path, capsys):
    evaluate.main([str(run), "--data", str(corpus / "validation.jsonl"), "--json", str(tmp_path / "out.json")])
    assert "head attention, label by label, at most 12" in " ".join(capsys.readouterr().out.split())
    (result,) = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert (result["head"], result["decoding"]) == ("attention", "label by label, at most 12")
    counts = result["sets"][str(corpus / "validation.jsonl")]
    transcribe.main([str(run), str(corpus / "20.flac"), "--out", str(tmp_path / "texts"), "--format", "json"])
    (made_by,) = map(json.loads, (tmp_path / "texts" / "made_by.jsonl").read_text().splitlines())
    assert made_by["head"] == "attention"
    words = json.loads((tmp_path / "texts" / "20.json").read_text())["words"]
    assert counts["utterances"] == 8
    assert all(0 <= word["start_s"] <= word["end_s"] <= 0.76 for word in words)
    with pytest.raises(UserError, match=r"head attention of .* has no log-probabilities of frames"):
        evaluate.main([str(run), "--data", str(corpus / "validation.jsonl"), "--log-probs", str(tmp_path / "lp")])


def test_each_head_is_a_row_of_one_table(run, corpus, tmp_path, capsys):
    command = [str(run), "--data", str(corpus / "validation.jsonl"), "--head", "attention", "ctc"]
    out = ["--json", str(tmp_path / "out.json"), "--predictions", str(tmp_path / "predictions")]
    if "hybrid" not in str(run):
        with pytest.raises(UserError, match=r"'ctc' is not a recognising head of the model: expected one of attention"):
            evaluate.main(command)
        return
    evaluate.main([*command, *out])
    printed = capsys.readouterr().out
    assert all(f"head {name}, {how}" in printed for name, how in (("attention", "label by label"), ("ctc", "greedy")))
    results = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert [(each["head"], each["decoding"]) for each in results] == [
        ("attention", "label by label, at most 12"), ("ctc", "greedy")
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "predictions").iterdir()) == [
        f"run-{UPDATES}-{name}.jsonl" for name in ("attention", "ctc")
    ]
    blocked = tmp_path / "predictions" / f"run-{UPDATES}-attention.jsonl"
    blocked.unlink()
    blocked.mkdir()
    with pytest.raises(RunError, match=r"attention\.jsonl cannot be written: Is a directory; the figures are complete"):
        evaluate.main([*command, *out])
    assert json.loads((tmp_path / "out.json").read_text())["runs"] == results


def test_alignment_asks_for_ctc(run, corpus, tmp_path):
    command = [str(run), "--data", str(corpus / "validation.jsonl"), "--out", str(tmp_path / "aligned.ctm")]
    if "hybrid" in str(run):
        align.main([*command, "--format", "ctm"])
        assert len((tmp_path / "aligned.ctm").read_text().splitlines()) == 16
    else:
        with pytest.raises(UserError, match=r"alignment needs a CTC head, and the heads of the model are attention"):
            align.main([*command, "--format", "ctm"])


def test_long_audio_is_joined_by_its_tokens(run, tmp_path):
    """The recording is five times as long as those of training. Windows begin on the grid of the model's frames."""
    path = tmp_path / "long.flac"
    write_flac(path, np.concatenate([spoken("ab cd "), spoken("ea bb ")] * 4), 16000)
    transcribe.main([str(run), str(path), "--out", str(tmp_path / "texts"), "--format", "json"])
    found = json.loads((tmp_path / "texts" / "long.json").read_text())
    starts = [word["start_s"] for word in found["words"]]
    assert starts == sorted(starts)
    assert starts[-1] > 3.5, "words of the later windows are there"
    assert found["words"][-1]["end_s"] <= 7.3
    assert (found["head"], found["decoding"]) == ("attention", "label by label, at most 12")
    flags = ["--decoding.on-host", "True", "--decoding.words", "a", "b"]  # a stage on the host changes nothing
    transcribe.main([*flags, "--out", str(tmp_path / "staged"), "--format", "json", str(run), str(path)])
    assert json.loads((tmp_path / "staged" / "long.json").read_text()) == found


def test_checkpoints_are_averaged(run, corpus, tmp_path):
    average.main([str(run), "--last", "2", "--out", str(tmp_path / "mean")])
    means, *each = (
        flatten(load_trained(folder, updates=updates).variables["params"])
        for folder, updates in ((tmp_path / "mean", UPDATES), (run, 25), (run, 50))
    )
    for path, value in means.items():
        assert_close(value, (each[0][path] + each[1][path]) / 2, atol=1e-6)
    evaluate.main([str(tmp_path / "mean"), "--data", str(corpus / "validation.jsonl")])


@pytest.mark.slow
def test_it_resumes_exactly(run, corpus, tmp_path):
    heads = HEADS["hybrid" if "hybrid" in str(run) else "alone"]
    parts = experiment(corpus, tmp_path / "parts", heads, limits=Limits(epochs_this_job=8.0))
    assert "continues" in train(parts)
    train(replace(parts, training=replace(parts.training, limits=replace(parts.training.limits, epochs_this_job=0.0))))
    whole, again = (
        flatten(load_trained(folder, live=True).variables["params"]) for folder in (run, tmp_path / "parts")
    )
    for path, value in whole.items():
        np.testing.assert_array_equal(again[path], value, err_msg=path)


def test_several_that_recognise_and_none_named():
    with pytest.raises(ValueError, match="the heads ctc, attention recognise, and primary is empty"):
        Model(encoder=Toy(), heads=HEADS["hybrid"], augment=())
    with pytest.raises(ValueError, match=r"primary is 'rnnt': expected a recognising head, one of ctc, attention"):
        Model(encoder=Toy(), heads=HEADS["hybrid"], augment=(), primary="rnnt")

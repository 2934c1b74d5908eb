"""Judged words with their confidence; searches shared by several processes; scores that are not finite."""

from dataclasses import asdict, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.batch import Frames
from asr_jax.core.meshes import data_mesh, global_batch
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.evaluation import plan_evaluation
from asr_jax.data.batching.index import scale_of
from asr_jax.data.batching.limits import BatchLimits
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Transducer
from asr_jax.inference import decoder as decoders
from asr_jax.inference.decoder import Decoder, HeadSearch, without_labels
from asr_jax.inference.recognition import Recognition, judged_rows
from asr_jax.inference.scored_sets import scored
from asr_jax.nn.recurrent.prediction import StatelessPrediction
from asr_jax.search.ctc import CTCDecoding
from asr_jax.search.ctc_beam import CTCBeamSearch
from asr_jax.search.ctc_greedy import greedy_search
from asr_jax.search.hypotheses import Search
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.search.transducer_beam import TransducerBeamSearch
from asr_jax.search.word_scores import Fusion
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.transcripts.transcript import ScoredText, Transcript, Word
from tests.training.toy import toy_batch, toy_model

NORMALISER = "english_letters.v1"
LETTERS = CharacterTokenizer.train((), alphabet=" 'abcdefghijklmnopqrstuvwxyz", normaliser=NORMALISER)
FEW = CharacterTokenizer.train((), alphabet=" abcd", normaliser="none")
SCALE = scale_of(KaldiFbank(), of_features=False)


def planned(*references):
    utterances = [Utterance(str(row), f"/{row}.flac", text, 0.5) for row, text in enumerate(references)]
    return plan_evaluation(
        Utterances.of(utterances), BatchLimits(4.0), front_end=KaldiFbank(), tokenizer=LETTERS, takes_ids=False,
        num_devices=1,
    )  # fmt: skip


def transcript_of(words, *texts):
    """A transcript of words with confidences."""
    spans = tuple(Word(text, 0.1 * i, 0.1 * i + 0.1, sure) for i, (text, sure) in enumerate(words))
    return Transcript(spans, -1.0, tuple(ScoredText(text, -float(rank)) for rank, text in enumerate(texts)))


def judged(references, transcripts, normaliser=NORMALISER):
    rows = judged_rows(planned(*references), Recognition(transcripts, []), LETTERS, normaliser)
    return [word for row in rows for word in zip(*row, strict=True)]


@pytest.mark.parametrize(
    ("reference", "words", "expected"),
    [
        ("one two", [("one", 0.9), ("too", 0.4)], [(0.9, True), (0.4, False)]),
        ("two", [("one", 0.2), ("two", 0.8)], [(0.2, False), (0.8, True)]),
        ("one two three", [("one", 0.9), ("three", 0.7)], [(0.9, True), (0.7, True)]),
        ("One, TWO!", [("one", 0.9), ("Two", 0.8)], [(0.9, True), (0.8, True)]),
        ("by and by", [("by-and", 0.6), ("by", 0.5)], [(0.6, True), (0.5, True)]),
        ("by or by", [("by-and", 0.6), ("by", 0.5)], [(0.6, False), (0.5, True)]),
        ("one two", [("one", 0.9), ("—", 0.1), ("two", 0.8)], [(0.9, True), (0.8, True)]),
        ("", [("one", 0.3)], [(0.3, False)]),
        ("one", [], []),
    ],
    ids=["another word", "one too many", "one missing", "another spelling", "of several parts",
         "of parts that are not all right", "nothing is left of it", "nothing was spoken", "nothing was recognised"],
)  # fmt: skip
def test_words_are_judged_after_the_normaliser(reference, words, expected):
    assert judged([reference], {0: transcript_of(words)}) == expected


def test_words_of_scripts_without_spaces_are_judged_one_by_one():
    found = {0: transcript_of([("今", 0.9), ("大，", 0.8), ("ok", 0.7)])}
    assert judged(["今天， ok"], found, "lower.v1") == [(0.9, True), (0.8, False), (0.7, True)]


def test_token_errors_of_a_set_count_what_has_no_label():
    """The references are 'ab é' (é has no label in this vocabulary) and 'c'."""
    found = {row: Transcript((), -1.0, tokens=tuple(FEW.encode(text))) for row, text in enumerate(("ab d", "cc"))}
    counts = scored(planned("ab é", "c"), Recognition(found, []), FEW)
    assert [counts[f"token_{name}"] for name in ("substitutions", "deletions", "insertions")] == [1, 0, 1]
    assert (counts["tokens"], counts["ter"]) == (5, 2 / 5)


def test_the_best_text_alone_is_judged_and_each_by_its_own_reference():
    found = {
        1: transcript_of([("three", 0.7)], "three", "two"),
        0: transcript_of([("won", 0.6), ("two", 0.5)], "won two", "one two", "one"),
    }
    assert judged(["one two", "two", "not read"], found) == [(0.6, False), (0.5, True), (0.7, False)]


TRANSDUCER = Transducer(prediction=StatelessPrediction(8), joint_dim=8)
BEAMS = {
    "ctc": (CTC(), CTCDecoding(kind="beam", search=Search(beam_width=4, num_best=3)), CTCBeamSearch),
    "transducer": (
        TRANSDUCER, TransducerDecoding(kind="beam", max_symbols=1, fusion=Fusion(hot_words=("ab",))),
        TransducerBeamSearch,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("head", BEAMS)
def test_processes_search_their_shares_of_the_rows_and_all_have_the_whole(head, monkeypatch):
    """Simulates three processes one after the other; the stage on the device is computed once."""
    rows, mesh = 5, data_mesh(1)
    settings, decoding, kind = BEAMS[head]
    model = replace(toy_model(dim=8), heads={head: settings}).build(
        vocab_size=FEW.vocab_size, blank_id=FEW.blank_id, precision="f32"
    )
    batch = toy_batch(rows=rows).replace(weights=np.array([1, 0, 1, 1, 1], np.float32))
    variables = jax.jit(partial(model.init, step=None))(jax.random.key(0), batch)
    bucket = Bucket(batch.signal.shape[1], 3, rows, batch.signal.shape[1])

    def decoded():
        decoder = Decoder(model, FEW, mesh=mesh, variables=variables, decoding=decoding)
        decoder.prepare([bucket], SCALE)
        return decoder, decoder(variables, global_batch(without_labels(batch), mesh))

    decoder, emitted = decoded()
    alone = decoder.whole(decoder.finish(emitted))
    assert alone.keys() == set(np.flatnonzero(batch.weights).tolist())
    assert all(len(transcript.n_best) > 1 for transcript in alone.values())
    shares, searched, search = [], [], kind.__call__
    monkeypatch.setattr(
        kind, "__call__", lambda self, *given: searched.append(len(jax.tree.leaves(given)[0])) or search(self, *given)
    )
    for number in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(jax, "process_index", lambda number=number: number)
            patched.setattr(jax, "process_count", lambda: 3)
            decoder = Decoder(model, FEW, mesh=mesh, variables=variables, decoding=decoding)
        shares.append((decoder, decoder.finish(emitted)))
    assert searched == [2, 2, 2]
    assert sorted(row for _, share in shares for row in share) == sorted(alone)
    sent = []
    monkeypatch.setattr(decoders, "gathered", lambda value: sent.append(value) or [value])
    for decoder, share in shares:
        decoder.whole(share)
    monkeypatch.setattr(decoders, "gathered", lambda value: sent)
    wholes = [decoder.whole(share) for decoder, share in shares]
    assert wholes == wholes[:1] * 3
    # The program of a share has fewer rows, so that its sums may be rounded otherwise.
    found, expected = ({row: asdict(each) for row, each in whole.items()} for whole in (wholes[0], alone))
    assert found.keys() == expected.keys()
    for value, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if isinstance(other, float):
            assert_close(value, other, atol=1e-6)
        else:
            assert value == other


@pytest.mark.parametrize("kind", [pytest.param("greedy", marks=pytest.mark.slow), "beam"])
def test_scores_that_are_not_finite_are_reported(kind, capsys):
    model = toy_model(dim=8).build(vocab_size=FEW.vocab_size, blank_id=FEW.blank_id, precision="f32")
    search = HeadSearch(model, FEW, head="ctc", decoding=CTCDecoding(kind=kind, search=Search(beam_width=4)))
    values = np.full((2, 3, FEW.vocab_size), -9.0, np.float32)
    values[:, [0, 1, 2], [1, FEW.blank_id, 2]] = 0.0
    whole, broken = Frames(jnp.asarray(values), jnp.array([3, 3])), values.copy()
    broken[0] = np.nan

    def texts(frames):
        found = frames if kind == "beam" else greedy_search(frames.values, frames.lengths, blank_id=FEW.blank_id)
        return [search.transcript(each).text for each in search.sequences(found, [0, 1])]

    assert texts(whole.replace(values=jnp.asarray(broken))) == ["", "ab"]
    assert "1 of 2 recordings of a batch have no finite score" in capsys.readouterr().err
    assert texts(whole) == ["ab", "ab"]
    assert not capsys.readouterr().err

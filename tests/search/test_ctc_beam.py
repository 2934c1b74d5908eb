"""Prefix beam search on the device, compared with the reference in plain Python on the host."""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.search.ctc_beam import CTCBeamSearch
from asr_jax.search.hypotheses import Search
from asr_jax.search.word_scores import Fusion
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.spelling import Spelling
from asr_jax.training.programs import COMPILED
from tests.search.ctc_beam_reference import beam_search
from tests.search.unchecked import unchecked
from tests.support import approx, assert_close

CHARACTERS = Spelling.of_surfaces(["", " ", "a", "b", "c"], blank_id=0)
NO_BORDER = Spelling.of_surfaces(["a", "b", "c", "d", ""], blank_id=4)
WORDS = ("ab", "a", "cab", "bac", "ca")
LENGTHS = np.array([14, 0, 1, 2, 14, 9])
UNSPACED = Spelling.of_surfaces(["", " ", "北", "京", "a", "大"], blank_id=0)
BEAM = Search(beam_width=8)
"""Settings of most tests, which share its compiled programs."""
FLASHLIGHT = Search(
    beam_width=8, beam_prune_logp=-20.0, token_min_logp=-np.inf, max_tokens=4, rules="flashlight_lexicon"
)  # fmt: skip
ARPA = """\\data\\
ngram 1=7
ngram 2=5

\\1-grams:
-2.1\t<unk>\t0
0\t<s>\t-0.4
-0.9\t</s>\t0
-0.7\tab\t-0.3
-1.2\ta\t-0.2
-1.0\tcab\t-0.5
-1.4\tbac\t0

\\2-grams:
-0.2\t<s> cab
-0.5\tcab a
-0.3\ta ab
-0.6\tab </s>
-0.1\tab cab

\\end\\
"""


def emissions(seed, spelling, scale=2.0):
    """Log-probabilities with likely blanks, and NaN beyond the lengths."""
    x = np.random.default_rng(seed).normal(0, scale, (len(LENGTHS), LENGTHS.max(), len(spelling.texts)))
    x[..., spelling.blank_id] += 0.7 * scale
    x -= np.logaddexp.reduce(x, axis=-1, keepdims=True)
    x[np.arange(x.shape[1]) >= LENGTHS[:, None]] = np.nan
    return x.astype(np.float32)


def assert_equal(found, expected):
    """Texts, frames and log-probabilities of words must be equal, scores within the precision of float32."""
    assert [each.words for each in found] == [each.words for each in expected]
    assert [each.labels for each in found] == [each.labels for each in expected]
    for name in ("log_prob", "lm_score", "score"):
        ours, theirs = ([getattr(each, name) for each in hypotheses] for hypotheses in (found, expected))
        assert_close(ours, theirs, rtol=0, atol=2e-5)


on_host = unchecked()(beam_search)


def assert_as_on_host(log_probs, spelling, search, fusion=None):
    scores = (fusion or Fusion()).build()
    found = CTCBeamSearch(spelling, search=search, scores=scores)(log_probs, LENGTHS)
    assert len(found) == len(LENGTHS)
    for x, length, ours in zip(log_probs, LENGTHS, found, strict=True):
        assert_equal(ours, on_host(x[:length], spelling, search=search, scores=scores))


# tests/goldens/test_ctc_beam_*.py cover these cases too, with longer utterances.
of_goldens = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("spelling", "search"),
    [
        (CHARACTERS, BEAM),
        of_goldens(CHARACTERS, Search(beam_width=4, rules="flashlight", alignments="max", beam_prune_logp=-4.0)),
        pytest.param(CHARACTERS, Search(beam_width=1, token_min_logp=-2.0), marks=pytest.mark.slow),
        of_goldens(CHARACTERS, Search(beam_width=9, max_tokens=3, rules="pyctcdecode")),
        of_goldens(CHARACTERS, replace(FLASHLIGHT, beam_width=6)),
        (NO_BORDER, Search(beam_width=7, rules="pyctcdecode", beam_prune_logp=-3.0)),
    ],
)
def test_the_device_finds_what_the_host_finds(spelling, search):
    for seed, scale in enumerate((0.5, 2.0, 5.0)):
        assert_as_on_host(emissions(seed, spelling, scale), spelling, search)


@pytest.mark.parametrize("listed", [of_goldens("hot words"), "lexicon", "both"])
def test_with_lists_of_words(listed, tmp_path):
    (tmp_path / "words").write_text("\n".join(WORDS))
    options = {"lexicon": str(tmp_path / "words")} if listed != "hot words" else {}
    options |= {"hot_words": ("cab", "bb"), "hot_word_weight": 3.0} if listed != "lexicon" else {}
    assert_as_on_host(emissions(1, CHARACTERS), CHARACTERS, BEAM, Fusion(**options))


@pytest.mark.parametrize("kind", [of_goldens("free"), of_goldens("lexicon")])
def test_with_a_language_model(kind, tmp_path):
    pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
    (tmp_path / "words").write_text("\n".join(WORDS))
    (tmp_path / "lm.arpa").write_text(ARPA)
    options = {"hot_words": ("ca",), "unknown_score": -3.0, "eos": False}
    search = Search(beam_width=8, rules="pyctcdecode")
    if kind == "lexicon":
        options = {"lexicon": str(tmp_path / "words"), "lookahead": True}
        search = FLASHLIGHT
    assert_as_on_host(emissions(2, CHARACTERS), CHARACTERS, search, Fusion(kenlm=str(tmp_path / "lm.arpa"), **options))


@pytest.mark.parametrize("kind", ["hot words", of_goldens("lexicon"), of_goldens("model")])
def test_words_without_spaces(kind, tmp_path):
    options = {"hot_words": ("京大", "a北", "大:2", "北京a"), "hot_word_weight": 4.0}
    if kind == "lexicon":
        (tmp_path / "words").write_text("京大\n京\n北\na\n大北")
        options = {"lexicon": str(tmp_path / "words")}
    if kind == "model":
        pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
        names = {"cab": "北京", "ab": "京", "bac": "大北"}
        of_words = re.sub(r"\b(cab|bac|ab)\b", lambda found: names[found[0]], ARPA)
        (tmp_path / "lm.arpa").write_text(of_words)
        options |= {"kenlm": str(tmp_path / "lm.arpa"), "unknown_score": -3.0}
    for seed in range(3):
        assert_as_on_host(emissions(seed, UNSPACED), UNSPACED, BEAM, Fusion(**options))


@pytest.mark.parametrize("lexicon", ["", pytest.param("the\ncat\nhat\nhas\na", marks=pytest.mark.slow)])
def test_pieces(lexicon, tmp_path):
    (tmp_path / "words").write_text(lexicon)
    texts = ["the cat has a hat", "a hat has the cat", "that cat sat", "the heat"] * 9
    tokenizer = SentencePieceTokenizer.train(
        texts, vocab_size=20, pieces="unigram", character_coverage=1.0, normaliser="none"
    )
    spelling = Spelling.of(tokenizer)
    assert spelling.is_of_pieces
    fusion = Fusion(lexicon=str(tmp_path / "words")) if lexicon else None
    assert_as_on_host(emissions(3, spelling), spelling, Search(beam_width=8, token_min_logp=-4.0), fusion)


def test_what_is_not_a_number_leaves_no_text():
    log_probs = emissions(5, CHARACTERS)
    log_probs[0, 5, 2] = np.nan
    found = CTCBeamSearch(CHARACTERS, search=BEAM)(log_probs, LENGTHS)
    assert [(each.words, each.score) for each in found[0]] == [((), -np.inf)]
    assert_equal(found[0], on_host(log_probs[0], CHARACTERS, search=BEAM))
    assert_equal(found[4], on_host(log_probs[4], CHARACTERS, search=BEAM))


def test_a_row_alone_and_one_without_frames():
    log_probs, search = emissions(6, CHARACTERS), CTCBeamSearch(CHARACTERS, search=BEAM)
    alone = search(log_probs[2:3, : LENGTHS[2]], LENGTHS[2:3])
    assert_equal(search(log_probs, LENGTHS)[2], alone[0])
    assert [each.words for each in search(log_probs[:1, :0], np.array([0]))[0]] == [()]


@pytest.mark.parametrize("with_model", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_prepared_shape_is_not_compiled_again(with_model, tmp_path):
    compiled, batch, fusion = [], jnp.asarray(emissions(7, CHARACTERS)), Fusion(hot_words=("ab",))
    if with_model:
        pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
        (tmp_path / "lm.arpa").write_text(ARPA)
        fusion = Fusion(kenlm=str(tmp_path / "lm.arpa"))

    def record(event, seconds, **about):
        if event == COMPILED:
            compiled.append(about)

    search = CTCBeamSearch(CHARACTERS, search=Search(beam_width=3), scores=fusion.build())
    search(jnp.zeros(batch.shape), np.zeros(len(batch), np.int32))
    jax.monitoring.register_event_duration_secs_listener(record)
    try:
        search(batch, LENGTHS)
        search(batch, LENGTHS - LENGTHS // 2)
        assert not compiled
        jax.jit(lambda x: x + 1)(np.float32(0))
        assert compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(record)


def test_log_probabilities_of_words():
    path = [0, 2, 2, 0, 3, 1, 0, 4, 4, 0]  # "ab c"
    log_probs = np.full((len(path), 5), -9.0, np.float32)
    log_probs[np.arange(len(path)), path] = -0.01 * np.arange(len(path))
    (best, *_) = beam_search(log_probs, CHARACTERS, search=Search())
    assert [(word.text, word.start_frame, word.end_frame) for word in best.words] == [("ab", 1, 5), ("c", 7, 9)]
    assert [word.logp for word in best.words] == approx([-(0.01 + 0.04) / 2, -0.07])


def test_a_sum_of_alignments_is_more_than_the_likeliest():
    log_probs = np.log(np.full((2, 2), 0.5, np.float32))
    spelling = Spelling.of_surfaces(["", "a"], blank_id=0)
    best = {how: beam_search(log_probs, spelling, search=Search(alignments=how))[0] for how in ("sum", "max")}
    assert {how: (each.text, round(np.exp(each.score), 6)) for how, each in best.items()} == {
        "sum": ("a", 0.75),
        "max": ("", 0.25),
    }

"""Scores of sentences against KenLM: by re-ranking, and word by word as in beam search."""

import json

import pytest
from support import GOLDENS, approx, assert_within, max_abs

from asr_jax.search.hypotheses import Hypothesis, WordSpan
from asr_jax.search.language_model import model_words
from asr_jax.search.rerank import Reranking
from asr_jax.search.word_scores import LN10, Fusion

pytestmark = pytest.mark.golden

WHERE = GOLDENS / "decoding"
GOLDEN = json.loads(path.read_text()) if (path := WHERE / "kenlm_scores.json").is_file() else {}
MODELS = ["word.arpa", "word.kenlm.bin"]
# The golden's score without the sentence begin is also without the sentence end.
SWITCHES = {"score": {}, "score_no_eos": {"eos": False}, "score_no_bos": {"bos": False, "eos": False}}


@pytest.fixture(params=MODELS)
def model(request):
    if not GOLDEN:
        pytest.skip(f"no kenlm_scores.json under {WHERE}: set ASR_JAX_GOLDENS to the folder of goldens")
    pytest.importorskip("kenlm", reason="requires kenlm: pip install 'asr-jax[lm]'")
    return str(WHERE / request.param)


def hypothesis(text):
    words = tuple(WordSpan(word, 0, 1, 0.0) for word in text.split())
    return Hypothesis(words=words, labels=(), log_prob=-1.0, lm_score=0.0)


@pytest.mark.parametrize("name", SWITCHES)
def test_sentences(model, name):
    rerank = Reranking(kenlm=model, lm_weight=1 / LN10, word_bonus=0.0, **SWITCHES[name]).build()
    scores = Fusion(kenlm=model, lm_weight=1 / LN10, word_bonus=0.0, unknown_score=0.0, **SWITCHES[name]).build()
    expected = [sentence[name] for sentence in GOLDEN["sentences"]]
    texts = [sentence["text"] for sentence in GOLDEN["sentences"]]
    ranked = {each.text: each.lm_score for each in rerank([hypothesis(text) for text in texts])}
    worst = max_abs([ranked[text] for text in texts], expected)
    assert_within(worst, 1e-5, what=f"{name}: largest difference, sentences")
    worst = max_abs([scores.text(text.split()) for text in texts], expected)
    assert_within(worst, 1e-5, what=f"{name}: largest difference, sums of words")


def test_a_binary_file_has_the_words_of_its_arpa_file(model):
    assert model_words(model) == model_words(WHERE / MODELS[0])


def test_words(model):
    scores = Fusion(kenlm=model, lm_weight=1 / LN10, word_bonus=0.0, unknown_score=0.0).build()
    for sentence in GOLDEN["sentences"]:
        state, *expected = scores.start(), *sentence["full"]
        for word, (log10, _, is_unknown) in zip(sentence["text"].split(), expected[:-1], strict=True):
            state, added = scores.word(state, word)
            assert added == approx(log10, abs=1e-6)
            assert scores.is_unknown(word) == is_unknown
        assert scores.end(state) == approx(expected[-1][0], abs=1e-6)

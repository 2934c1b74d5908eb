"""Re-ranking of n-best lists with a language model."""

import pytest

from asr_jax.core.errors import UserError
from asr_jax.search.hypotheses import Hypothesis, WordSpan
from asr_jax.search.rerank import Reranking
from asr_jax.search.word_scores import LN10
from tests.support import approx

ARPA = """\\data\\
ngram 1=5
ngram 2=1

\\1-grams:
-3\t<unk>
-99\t<s>
-1\t</s>
-2\tcat
-1\tthe\t0

\\2-grams:
-1\tthe the

\\end\\
"""


def hypothesis(text, log_prob):
    words = tuple(WordSpan(word, 0, 1, 0.0) for word in text.split())
    return Hypothesis(words=words, labels=(), log_prob=log_prob, lm_score=-7.0)


@pytest.fixture
def model(tmp_path):
    pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
    (tmp_path / "lm.arpa").write_text(ARPA)
    return str(tmp_path / "lm.arpa")


def test_the_formula(model):
    rerank = Reranking(kenlm=model, lm_weight=0.5, word_bonus=0.25).build()
    found = rerank([hypothesis("zat", -1.0), hypothesis("the cat", -2.0), hypothesis("", -9.0)])
    scores = {each.text: each.score for each in found}
    assert scores == approx(
        {
            "the cat": -2.0 - 0.5 * LN10 * (1 + 2 + 1) + 2 * 0.25,
            "zat": -1.0 - 0.5 * LN10 * (3 + 1) + 0.25,
            "": -9.0 - 0.5 * LN10 * 1,
        }
    )
    assert list(scores.values()) == sorted(scores.values(), reverse=True)


def test_another_order_than_before(model):
    texts = [hypothesis("zat", -1.0), hypothesis("the", -2.0)]
    assert [each.text for each in Reranking(kenlm=model).build()(texts)] == ["the", "zat"]
    assert [each.text for each in Reranking(kenlm=model, lm_weight=0.0).build()(texts)] == ["zat", "the"]


def test_a_list_stays_in_order_where_scores_are_equal(model):
    texts = [hypothesis("cat the", -1.0), hypothesis("the cat", -1.0)]
    assert [each.text for each in Reranking(kenlm=model).build()(texts)] == ["cat the", "the cat"]


@pytest.mark.parametrize(
    ("content", "message"), [(None, "there is no language model"), ("no model", "KenLM cannot read")]
)
def test_a_missing_or_broken_model_is_an_error(content, message, tmp_path):
    pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
    if content:
        (tmp_path / "lm.bin").write_text(content)
    with pytest.raises(UserError, match=message):
        Reranking(kenlm=str(tmp_path / "lm.bin")).build()


def test_a_wrong_weight_is_an_error():
    with pytest.raises(ValueError, match="lm_weight"):
        Reranking(kenlm="lm.arpa", lm_weight=float("nan"))

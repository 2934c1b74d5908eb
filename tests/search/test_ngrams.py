"""N-gram language models: probabilities of KenLM's lmplz, sums of probabilities, words that cannot be in a model."""

import math
from collections import defaultdict

import pytest

from asr_jax.core.errors import UserError
from asr_jax.search.ngrams import arpa, estimate
from tests.support import approx

# lmplz -o 3 of KenLM, without --discount_fallback: log10 of the probability, n-gram, and log10 of the back-off weight.
LMPLZ = """-0.8948989\t</s>\t0
-1.2256383\tw8\t-0.36579928
-1.4585783\tw14\t-0.4473674
-1.7886429\tw20\t-0.17172478
-1.8404367\t<unk>\t0
-0.23523556\tw14 </s>\t0
-0.91909945\tw9 w13\t-0.073473394
-1.197972\tw10 w8\t-0.073473394
-1.361268\tw1 w0\t-0.5179777
-1.7523947\tw2 w17\t-0.073473394
-0.082273364\tw7 w10 </s>
-0.5488246\tw0 w3 </s>
-0.7452602\tw2 w2 w2
-1.0347245\tw1 w7 w11
-1.8384681\t<s> w2 w23"""
# The same with --discount_fallback, of the texts "a b c", "a b d" and "b c".
LMPLZ_FEW = """-1.0791812\t<unk>\t0
0\t<s>\t-0.30103
-0.6455257\t</s>\t0
-0.81033593\ta\t-0.30103
-0.38646019\t<s> a
-0.55321145\t<s> b
-0.38646019\tb c"""


def texts():
    return [[f"w{(i * i // 7 + j * j * i) % (3 + (i * j) % 23)}" for j in range(i % 7)] for i in range(120)]


def values(lines):
    """Probability and back-off weight by n-gram, from the lines of an ARPA file."""
    rows = [line.split("\t") for line in lines.splitlines() if "\t" in line]
    return {row[1]: [float(value) for value in (row[0], *row[2:])] for row in rows}


@pytest.mark.parametrize(
    ("given", "order", "expected"),
    [(texts(), 3, LMPLZ), ([["a", "b", "c"], ["a", "b", "d"], ["b", "c"]], 2, LMPLZ_FEW)],
    ids=["discounts", "fallback"],
)
def test_values_are_those_of_lmplz(given, order, expected):
    content = arpa(estimate(given, order))
    found = values(content)
    for ngram, wanted in values(expected).items():
        assert found[ngram] == approx(wanted, abs=2e-6)
    assert content.startswith(
        "\\data\\\nngram 1=26\nngram 2=162\nngram 3=259\n\n\\1-grams:\n" if order == 3 else "\\data"
    )
    assert content.endswith("\n\\end\\\n")


@pytest.mark.parametrize("order", [1, 2, 4])
def test_probabilities_after_each_context_sum_to_one(order):
    model = estimate(texts(), order)
    vocabulary = [ngram[0] for ngram in model[0] if ngram != ("<s>",)]

    def probability(words):
        if words in (model[len(words) - 1]):
            return math.exp(model[len(words) - 1][words][0])
        weight = model[len(words) - 2].get(words[:-1], (0.0, 0.0))[1]
        return math.exp(weight) * probability(words[1:])

    contexts = defaultdict(float)
    for ngram in [(), *(ngram for ngrams in model[:-1] for ngram in ngrams if ngram[-1] != "</s>")]:
        contexts[ngram] = sum(probability((*ngram, word)) for word in vocabulary)
    assert list(contexts.values()) == approx([1.0] * len(contexts), abs=1e-9)


def test_a_word_that_models_reserve_is_an_error():
    with pytest.raises(UserError, match="'a <unk>' has the word <unk>, which a language model reserves"):
        estimate([["a", "<unk>"]], 2)

"""Random segmentations of words into pieces."""

from collections import Counter

import pytest
from sentencepiece import SentencePieceProcessor, set_random_generator_seed

from asr_jax.core.errors import UserError
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.sampling import SampledPieces
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from tests.support import assert_within

TEXTS = ["the three threads of the thread", "these are there", "read the other thread", "earth and heart"] * 3
OPTIONS = {"vocab_size": 40, "character_coverage": 1.0, "normaliser": "lower.v1"}


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(TEXTS, pieces="unigram", **OPTIONS)


def frequencies(drawn):
    drawn = [tuple(each) for each in drawn]
    return {labels: number / len(drawn) for labels, number in Counter(drawn).items()}


@pytest.mark.parametrize("alpha", [0.05, pytest.param(0.2, marks=pytest.mark.slow)])
def test_segmentations_have_sentencepieces_distribution(tokenizer, alpha):
    sampled = SampledPieces.of(tokenizer, probability=1.0, alpha=alpha, seed=0)
    ours = frequencies(sampled("thread", position=number, row=0, most=99) for number in range(20_000))
    set_random_generator_seed(0)
    model = SentencePieceProcessor(model_proto=tokenizer.model)
    options = {"enable_sampling": True, "nbest_size": -1, "alpha": alpha}
    theirs = frequencies(model.encode("thread", **options) for _ in range(20_000))
    assert len(ours) > 3
    # The standard error of the difference of two frequencies is at most 0.005.
    assert_within(max(abs(ours.get(key, 0) - theirs.get(key, 0)) for key in ours | theirs), 0.04)


def test_labels_spell_the_text_and_depend_on_seed_position_and_row(tokenizer):
    text = "The three threads, of earth"
    sampled = SampledPieces.of(tokenizer, probability=0.5, alpha=0.1, seed=3)
    of = {key: sampled(text, position=key[0], row=key[1], most=99) for key in ((0, 0), (0, 1), (1, 0), (1, 1))}
    assert {key: sampled(text, position=key[0], row=key[1], most=99) for key in of} == of
    assert len({str(labels) for labels in of.values()}) > 1
    best = tokenizer.decode(tokenizer.encode(text))
    assert {tokenizer.decode(labels or tokenizer.encode(text)) for labels in of.values()} == {best}
    assert sampled(text, position=0, row=0, most=2) is None
    with_unknown = SampledPieces.of(tokenizer, probability=1.0, alpha=0.1, seed=3)(
        "x thread", position=0, row=0, most=99
    )
    assert with_unknown[: len(tokenizer.encode("x"))] == tokenizer.encode("x")


def test_other_tokenizers_are_refused():
    characters = CharacterTokenizer.train(TEXTS, alphabet="", normaliser="lower.v1")
    pairs = SentencePieceTokenizer.train(TEXTS, pieces="bpe", **OPTIONS)
    for each in (characters, pairs):
        assert SampledPieces.of(each, probability=0.0, alpha=0.1, seed=0) is None
        with pytest.raises(UserError, match=r"sampling is 0\.1: expected 0, or a tokenizer .* unigram"):
            SampledPieces.of(each, probability=0.1, alpha=0.1, seed=0)

"""Words of label sequences, compared with the tokenizer's decoded text."""

import itertools

import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.text.characters import CharacterTokenizer, WordTokenizer
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.spelling import Spelling

TEXTS = ["the cat has a hat", "a hat's the cat", "that cat sat", "ökonomie heat"] * 9
TOKENIZERS = {
    "characters": lambda: CharacterTokenizer.train(TEXTS, alphabet="", normaliser="none"),
    "words": lambda: WordTokenizer.train(TEXTS, normaliser="none"),
    "unigram": lambda: SentencePieceTokenizer.train(
        TEXTS, vocab_size=24, pieces="unigram", character_coverage=1.0, normaliser="none"
    ),
    "bpe": lambda: SentencePieceTokenizer.train(
        TEXTS, vocab_size=24, pieces="bpe", character_coverage=1.0, normaliser="none"
    ),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


def test_words_are_those_of_the_tokenizer(tokenizer):
    spelling, random = Spelling.of(tokenizer), np.random.default_rng(0)
    ids = [i for i in range(tokenizer.vocab_size) if i != tokenizer.blank_id and "⁇" not in tokenizer.decode([i])]
    for _ in range(300):
        labels = random.choice(ids, random.integers(0, 12)).tolist()
        words, part = spelling.words(labels)
        assert [*words, part] if part else list(words) == tokenizer.decode(labels).split()
        grown = ((), "")
        for label in labels:
            grown = spelling.extend(*grown, label)
        assert grown == (words, part)


def test_texts_come_back(tokenizer):
    spelling = Spelling.of(tokenizer)
    for text in TEXTS[:4]:
        words, part = spelling.words(tokenizer.encode(text))
        assert " ".join([*words, part] if part else words) == text


def test_spans_are_as_many_as_words(tokenizer):
    spelling, random = Spelling.of(tokenizer), np.random.default_rng(1)
    for _ in range(300):
        path = random.integers(0, tokenizer.vocab_size, random.integers(0, 15))
        words, part = spelling.words(spelling.collapse(path))
        spans = spelling.spans(path, -np.arange(1.0, len(path) + 1))
        assert len(spans) == len(words) + bool(part)
        assert all(0 <= start < end <= len(path) and -end <= logp <= -start - 1 for start, end, logp in spans)
        assert all(end <= start for (_, end, _), (start, _, _) in itertools.pairwise(spans))


def test_labels_of_several_words_are_an_error():
    with pytest.raises(UserError, match=r"\['a b'\] contain word boundaries"):
        Spelling(texts=("", "a b"), opens=(False, True), blank_id=0)

"""Words of a text with their labels, and energies of frames."""

import numpy as np

from asr_jax.core.frame_times import FrameTimes
from asr_jax.inference.segmenting import frame_energies, text_words, word_starts
from asr_jax.text.characters import CharacterTokenizer, WordTokenizer
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.spelling import Spelling


def test_words_keep_their_form_and_labels_their_borders():
    characters = CharacterTokenizer(symbols=(*" ab", None), normaliser="lower.v1")
    words, labels = text_words("Ab b é ba", characters, Spelling.of(characters))
    assert [word.text for word in words] == ["Ab", "b", "é", "ba"]
    assert labels == [1, 2, 0, 2, 0, 2, 1]
    assert [labels[word.first : word.end] for word in words] == [[1, 2], [2], [], [2, 1]]
    assert "'é'" in words[2].problem
    spoken = WordTokenizer(symbols=("one", "two", None), normaliser="lower.v1")
    words, labels = text_words("two One", spoken, Spelling.of(spoken))
    assert labels == [1, 0]
    letters = CharacterTokenizer(symbols=(*" ab", None), normaliser="english_letters.v1")
    words, labels = text_words("Ab, -- b!", letters, Spelling.of(letters))
    assert [word.text for word in words] == ["Ab, --", "b!"]
    assert labels == [1, 2, 0, 2]
    words, labels = text_words("ab 2 b", letters, Spelling.of(letters))
    assert [word.text for word in words] == ["ab", "2", "b"]
    assert labels == [1, 2, 0, 2]
    assert "'2' has no labels (english_letters.v1 leaves it out)" in words[1].problem


def test_energies_of_frames():
    samples = np.repeat(np.array([0, 100, 300, 0], np.int16), 640)
    for blocks in ([samples], np.split(samples, [1, 700, 1280])):
        energies, num = frame_energies(blocks, FrameTimes(640, 0.0, 16000), 5)
        assert (energies.tolist(), num) == ([0, 1e4, 9e4, 0, 0], len(samples))
        shifted, _ = frame_energies(blocks, FrameTimes(640, -320.0, 16000), 4)
        assert shifted.tolist() == [0, 5e3, 5e4, 4.5e4]


def test_words_without_spaces_have_labels_of_their_own():
    characters = CharacterTokenizer(symbols=(*" 今天气a", None), normaliser="lower.v1")
    spelling = Spelling.of(characters)
    words, labels = text_words("今天X天气Aa 天", characters, spelling)
    assert [(word.text, word.space) for word in words] == [
        ("今", True), ("天", False), ("X", False), ("天", False), ("气", False), ("Aa", False), ("天", True)
    ]  # fmt: skip
    assert labels == [1, 2, 2, 3, 4, 4, 0, 2]
    assert [labels[word.first : word.end] for word in words] == [[1], [2], [], [2], [3], [4, 4], [2]]
    assert "'x'" in words[2].problem
    assert word_starts(words, labels, spelling).tolist() == [True, True, True, True, True, False, True, False]


def test_words_that_share_a_label_are_one():
    texts = ["今天天气很好", "天气很好今天", "很好今天天气"] * 20
    pieces = SentencePieceTokenizer.train(texts, vocab_size=12, pieces="unigram", normaliser="none")
    words, labels = text_words("今天天气，很好 天气", pieces, Spelling.of(pieces))
    assert "".join(" " * word.space + word.text for word in words) == " 今天天气，很好 天气"
    assert [word.text for word in words if word.problem] == ["气，"]
    assert [pieces.decode(labels[word.first : word.end]) for word in words if not word.problem] == [
        word.text for word in words if not word.problem
    ]

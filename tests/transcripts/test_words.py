"""Words of token sequences, for vocabularies of characters, pieces and words."""

import math

import numpy as np
import pytest

from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.spelling import Spelling
from asr_jax.transcripts.transcript import Token, Transcript, joined, to_json
from asr_jax.transcripts.words import Writer
from tests.support import approx

CHARACTERS = Spelling.of_surfaces([" ", "a", "b", ""], blank_id=3)
PIECES = Spelling.of_surfaces([" the", "re", " ", "a", ""], blank_id=4)
WORDS = Spelling.of_surfaces([" one", " two", ""], blank_id=2)
TIMES = FrameTimes(shift=640, first=0.0, rate_hz=16000)


@pytest.mark.parametrize(
    ("spelling", "labels", "expected"),
    [
        (CHARACTERS, [1, 2, 0, 2, 0, 0, 1], [("ab", 0, 2), ("b", 3, 4), ("a", 6, 7)]),
        (CHARACTERS, [0, 1, 0], [("a", 1, 2)]),
        (PIECES, [0, 1, 2, 3, 1, 0], [("there", 0, 2), ("are", 3, 5), ("the", 5, 6)]),
        (PIECES, [1, 0], [("re", 0, 1), ("the", 1, 2)]),
        (WORDS, [0, 1, 1], [("one", 0, 1), ("two", 1, 2), ("two", 2, 3)]),
        (WORDS, [], []),
    ],
)
def test_which_labels_make_a_word(spelling, labels, expected):
    finished, part = spelling.words(labels)
    texts = [*finished, part] if part else finished
    found = [(text, *each) for text, each in zip(texts, spelling.word_ranges(labels), strict=True)]
    assert found == expected


def test_words_and_tokens():
    writer = Writer(CharacterTokenizer(symbols=(" ", "a", "b", None), normaliser="none"), times=TIMES)
    sequence = TokenSequence((1, 2, 0, 2), (1, 4, 6, 8), (2, 5, 7, 10), (*np.log([0.5, 0.125, 0.9, 1.0]),), -3.0)
    found = writer.transcript([sequence])
    assert found.score == -3.0
    assert [(word.text, word.start_s, word.end_s) for word in found.words] == [("ab", 0.04, 0.2), ("b", 0.32, 0.4)]
    assert [word.emitted_s for word in found.words] == [0.2, 0.36]  # of the first frame of the last label
    assert [word.confidence for word in found.words] == approx([0.25, 1.0])
    later = writer.transcript([sequence], first_frame=100).words
    assert [word.start_s for word in later] == approx([4.04, 4.32])
    tokens = writer.tokens(sequence)
    assert [token.text for token in tokens] == ["a", "b", "|", "b"]
    assert tokens[2] == Token("|", 0.24, 0.28, math.log(0.9))


def of_characters(text):
    """A writer of the characters of a text, and the sequence of its labels: label n in frames 10 n to 10 n + 2."""
    tokenizer = CharacterTokenizer.train([text], alphabet="", normaliser="none")
    labels = tuple(tokenizer.encode(text))
    starts = [10 * n for n in range(len(labels))]
    logps = tuple(-0.1 * n for n in range(len(labels)))
    sequence = TokenSequence(labels, tuple(starts), tuple(start + 2 for start in starts), logps, -1.0)
    return Writer(tokenizer, times=FrameTimes(shift=160, first=0.0, rate_hz=16000)), sequence


def test_characters_of_scripts_without_spaces_are_words():
    writer, sequence = of_characters("我用app，好 ok")
    found = writer.transcript([sequence], lists_n_best=True)
    assert found.text == found.n_best[0].text == "我用app，好 ok"
    assert [(word.text, word.space) for word in found.words] == [
        ("我", True), ("用", False), ("app，", False), ("好", False), ("ok", True)
    ]  # fmt: skip
    assert [word.start_s for word in found.words] == approx([0.0, 0.1, 0.2, 0.6, 0.8])
    assert [word.end_s for word in found.words] == approx([0.02, 0.12, 0.52, 0.62, 0.92])
    assert [word.confidence for word in found.words] == approx(np.exp([0.0, -0.1, -0.35, -0.6, -0.85]))
    fields = to_json(found)["words"]
    assert [word.get("space", True) for word in fields] == [True, False, False, False, True]


def test_words_of_a_dictionary():
    writer, sequence = of_characters("สวัสดีครับ ผม")
    found = writer.transcript([sequence])
    assert [word.text for word in found.words] == ["สวัสดี", "ครับ", "ผม"]
    assert [word.start_s for word in found.words] == approx([0.0, 0.6, 1.1])
    assert found.text == "สวัสดีครับ ผม"


def test_a_label_of_several_words_is_divided(monkeypatch):
    writer, _ = of_characters("a")
    monkeypatch.setattr(writer, "spelling", Spelling.of_surfaces([" 今", "天天", "气", " x", ""], blank_id=4))
    found = writer.transcript(
        [TokenSequence((0, 1, 2, 3), (0, 10, 20, 30), (2, 14, 22, 32), (-0.1, -0.2, -0.3, 0), 0.0)]
    )
    assert [(word.text, word.start_s, word.end_s) for word in found.words] == [
        ("今", 0.0, 0.02), ("天", 0.1, 0.12), ("天", 0.12, 0.14), ("气", 0.2, 0.22), ("x", 0.3, 0.32)
    ]  # fmt: skip
    assert [word.confidence for word in found.words] == approx(np.exp([-0.1, -0.2, -0.2, -0.3, 0.0]))
    assert found.text == "今天天气 x"


def test_parts_of_a_recording_are_joined_without_a_space_beside_such_scripts():
    parts = [("今天", "今天"), ("天气 is", "天气 is"), ("好", "好"), ("", ""), ("ok", "ok"), ("go", "go")]
    whole = joined([of(text) for text, _ in parts])
    assert whole.text == "今天天气 is好ok go"


def of(text):
    writer, sequence = of_characters(text or "a")
    return writer.transcript([sequence]) if text else Transcript((), 0.0)

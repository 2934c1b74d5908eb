"""Invisible characters: removed where they carry no meaning, and kept where they do."""

import sys
import unicodedata

import pytest

from asr_jax.text.invisible import invisible_characters, visible
from asr_jax.text.normalise import NORMALISERS, normalise
from asr_jax.text.tokenizers import TokenizerSettings, train_tokenizer

REMOVED = {
    "zero width space": "he\u200bllo",
    "soft hyphen": "hel\u00adlo",
    "marks of direction": "\u200ehello\u200f",
    "isolates": "\u2067hel\u2069lo",
    "embeddings": "\u202ahello\u202c",
    "word joiner": "hel\u2060lo",
    "byte order mark": "\ufeffhello",
    "control characters": "\x00he\x07llo\x7f\x9b",
    "a joiner of Latin letters": "hel\u200clo",
    "a joiner at the end": "hello\u200d",
    "joiners in a row": "h\u200c\u200d\u200c\u200dello",
    "a tag without a flag": "hello\U000e0067",
    "annotations": "\ufff9hello\ufffb",
    "a Mongolian separator": "hel\u180elo",
}


@pytest.mark.parametrize("text", REMOVED.values(), ids=REMOVED)
def test_characters_without_meaning_are_removed(text):
    assert visible(text) == "hello"
    assert sum(invisible_characters(text).values()) == len(text) - 5
    assert {normalise(text, name) for name in NORMALISERS} == {"hello", "HELLO"}


KEPT = {
    "Persian": "می\u200cخواهم",
    "Latin letters with a Persian ending": "CPU\u200cها",
    "Arabic letter in its initial form": "ه\u200d",
    "Devanagari": "क\u094d\u200cष क\u094d\u200dष",
    "Malayalam": "ന\u0d4d\u200d",
    "Bengali": "র\u200d\u09cdয",
    "emoji of several parts": "👩\u200d🚀 ❤\ufe0f\u200d🔥 👩🏽\u200d🤝\u200d👨🏿 🙂\u200d↔\ufe0f",
    "a flag": "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "Mongolian": "ᠮᠣᠩᠭᠣᠯ\u180eᠠ",
    "Arabic number sign": "\u0600١٢",
    "white space": "a\tb\nc\u00a0d\u2028e\x85f",
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_characters_with_meaning_are_kept(text):
    assert visible(text) == text
    assert not invisible_characters(text)


def test_a_joiner_is_kept_once_and_only_within_a_word():
    assert visible("می\u200c\u200c\u200bخواهم") == "می\u200cخواهم"
    assert visible("می\u200c خواهم\u200c") == "می خواهم"


def test_all_format_and_control_characters_are_known():
    """A character of a new version of Unicode shows here: is it invisible?"""
    codes = map(chr, range(sys.maxunicode + 1))
    kept = {each for each in codes if unicodedata.category(each) in ("Cc", "Cf") and each in visible(f"a{each}b")}
    signs = {*map(chr, range(0x600, 0x606)), *"\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"}
    assert kept == {*filter(str.isspace, kept), *signs, *map(chr, range(0x13430, 0x13440))}


@pytest.mark.parametrize("kind", ["characters", "words", "mixed", "sentencepiece"])
@pytest.mark.parametrize("normaliser", ["none", "lower.v1"])
def test_they_become_no_labels(kind, normaliser):
    texts = ["\ufeffab\u200bba cd\u00addc", "abba\u200e cddc"] * 20
    tokenizer = train_tokenizer(TokenizerSettings(kind=kind, normaliser=normaliser, vocab_size=10), texts)
    assert not [label for label in tokenizer.symbols if label and not label.isprintable()]
    assert tokenizer.encode(texts[0]) == tokenizer.encode("abba cddc")
    assert tokenizer.decode(tokenizer.encode(texts[1])) == "abba cddc"

"""Removed characters: counted by character, in any script, in the context of their text."""

import pytest

from asr_jax.text.removed import is_spoken, removed_characters, replaced_characters, replacement_of

LETTERS = "english_letters.v1"


@pytest.mark.parametrize(
    ("normaliser", "text", "removed"),
    [
        (LETTERS, "Der Zug nach Köln fährt um 5 Uhr.", {"ö": 1, "ä": 1, "5": 1, ".": 1}),
        (LETTERS, "Ko\u0308ln", {"ö": 1}),  # decomposed, as in names of files of macOS
        (LETTERS, "good 😀 morning 👩‍🚀", {"😀": 1, "👩": 1, "🚀": 1}),
        (LETTERS, "שלום wórld", {"ש": 1, "ל": 1, "ו": 1, "ם": 1, "ó": 1}),
        (LETTERS, "你好你", {"你": 2, "好": 1}),
        (LETTERS, "हिन्दी", {"ह": 1, "ि": 1, "न": 1, "्": 1, "द": 1, "ी": 1}),
        (LETTERS, "don’t, it's", {",": 1}),
        ("lower.v1", "Köln 5 😀 שלום 你好 हिन्दी, %", {}),
        ("upper.v1", "Straße", {}),
        ("none", " a\tb ", {}),
        ("english.v1", "it costs $5 and 3 %", {}),
        ("english.v1", "Köln", {}),
        ("ascii.v1", "Привет, 你好", {}),
    ],
)
def test_characters_that_a_normaliser_removes(normaliser, text, removed):
    assert removed_characters(text, normaliser) == removed


@pytest.mark.parametrize(
    ("normaliser", "text", "replaced"),
    [
        ("ascii.v1", "Größe o\u0308 5", {"ö": 2, "ß": 1}),
        ("ascii.v1", "Привет ﬁn", dict.fromkeys("Привет", 1)),
        ("english.v1", "café costs €5", {"é": 1}),
        ("whisper_english.v1", "größe", {"ö": 1, "ß": 1}),
        ("whisper_basic.v1", "größe É Ａ", {}),
        ("lower.v1", "ÄÖÜẞ İ Ǆ", {}),
        ("upper.v1", "straße ŉ ǆ", {}),
        (LETTERS, "köln", {}),
    ],
)
def test_letters_that_a_normaliser_replaces(normaliser, text, replaced):
    assert replaced_characters(text, normaliser) == replaced


def test_the_replacement_of_a_letter():
    assert [replacement_of(each, "ascii.v1") for each in "öß你o5’"] == ["o", "ss", "Ni", "", "", ""]


@pytest.mark.parametrize(("characters", "expected"), [("ö5你्😀€%&+", True), (".,!?-'\"„“…、。؟", False)])
def test_punctuation_is_not_spoken(characters, expected):
    assert [is_spoken(each) for each in characters] == [expected] * len(characters)

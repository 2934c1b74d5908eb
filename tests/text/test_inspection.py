"""Inspection of texts: scripts, case, scripts that are mixed in words, and other texts that look wrong."""

import pytest

from asr_jax.text.inspection import inspect_texts

ENGLISH, UKRAINIAN, MANDARIN = ["good morning to you"] * 60, ["доброго ранку вам усім"] * 60, ["早上好我们去北京"] * 60


def found(texts):
    return {each.kind: each for each in inspect_texts(texts, [f"u{k}" for k in range(len(texts))]).findings}


@pytest.mark.parametrize(
    ("text", "kind", "others"),
    [
        ("", "no_text", ENGLISH),
        ("… !", "no_letters", ENGLISH),
        ("мій вiд", "mixed_scripts", UKRAINIAN),  # a Latin i
        ("hello", "other_script", UKRAINIAN),
        ("привет", "other_script", ENGLISH),
        ("[noise] hello", "markup", ENGLISH),
        ("hello <unk>", "markup", ENGLISH),
        ("GOOD MORNING", "capitals", ENGLISH),
        ("我有ＡＢ", "full_width", MANDARIN),
        ("at 5 in the morning", "digits", ENGLISH),
        ("good\u200b morning", "invisible", ENGLISH),
    ],
)
def test_a_text_that_looks_wrong_is_named(text, kind, others):
    assert kind not in found(others)
    named = found([*others, text])[kind]
    assert named.number == 1
    assert "u60" in named.examples[0]
    assert "u60" in named.line


@pytest.mark.parametrize(
    "texts",
    [ENGLISH, UKRAINIAN, MANDARIN, ["schöne Grüße, Straße"] * 60, ["сім'я, п'ять і їжак"] * 60, ["GOOD MORNING"] * 60],
)
def test_usual_texts_have_no_findings(texts):
    assert found(texts) == {}


def test_latin_words_in_mandarin_are_neither_mistakes_nor_texts_in_capitals():
    named = found([*MANDARIN, "我们周末唱卡拉OK，用手机看NBA比赛"])
    assert set(named) == {"other_script"}
    assert not named["other_script"].is_wrong


def test_the_letters_of_another_script_are_shown():
    (example,) = found([*UKRAINIAN, "їжа для кiшки"])["mixed_scripts"].examples
    assert example == "u60 'кiшки' (Latin i)"


def test_what_texts_have_in_common():
    german = inspect_texts(["Guten Tag, Herr Groß! –", "„Ja“"] * 9, ["u"] * 18)
    assert sorted(german.words) == ["groß", "guten", "herr", "ja", "tag"]
    assert german.scripts == ("LATIN",)
    assert german.has_capitals
    assert german.has_punctuation
    assert not german.without_spaces
    assert german.words["ja"] == 9
    mandarin = inspect_texts(MANDARIN, ["u"] * 60)
    assert mandarin.scripts == ("HAN",)
    assert mandarin.without_spaces
    assert not mandarin.has_punctuation
    capitals = inspect_texts(["IT'S FINE"], ["u"])
    assert not capitals.has_capitals
    assert not capitals.has_punctuation


def test_mandarin_with_spaces_between_words_is_a_script_without_spaces():
    assert inspect_texts(["我们 昨天 去 北京 开会"] * 60, ["u"] * 60).without_spaces
    assert inspect_texts(["我们用手机看NBA比赛"] * 60, ["u"] * 60).without_spaces
    assert not inspect_texts(["안녕하세요 여러분"] * 60, ["u"] * 60).without_spaces


@pytest.mark.parametrize(
    ("text", "is_english"),
    [("where did the café go", True), ("selamat pagi semua", False), ("die Katze sah den Hund", False)],
)
def test_english_is_known_by_its_words(text, is_english):
    assert inspect_texts([text], ["u"]).is_english == is_english


def test_apostrophes_of_several_kinds_and_characters_that_occur_once():
    several = found(["п’ять", "сім'я"])["apostrophes"]
    assert (several.number, several.is_wrong) == (2, False)
    assert found([*ENGLISH, "jazz"])["rare_characters"].examples == (
        "a (LATIN SMALL LETTER A)",
        "j (LATIN SMALL LETTER J)",
    )


def test_texts_without_letters_are_left_out():
    assert inspect_texts(["a", "", "...", "5"], ["u"] * 4).without_letters == (1, 2)

"""Normalisers: the results of each name, idempotence in every script, and errors for missing libraries."""

import random
import re
import sys
import unicodedata
from functools import cache

import pytest

from asr_jax.core.errors import UserError
from asr_jax.text import english, libraries, whisper
from asr_jax.text.normalise import NORMALISERS, normalise
from tests.forked import ROOT
from tests.search.unchecked import unchecked

# Results of each normaliser, which never change: if a line has to change, the name needs a new version.
MEANING = {
    "none": {"  Hello,\tWorld!\n": "  Hello,\tWorld!\n", "cafe\u0301": "cafe\u0301"},
    "lower.v1": {
        "  Hello,\tWorld!\n": "hello, world!",
        "It’s 5 o'clock — I’m late": "it’s 5 o'clock — i’m late",
        "Schöne Grüße ẞ": "schöne grüße ß",
        "İstanbul ﬁn Ǆ": "i̇stanbul ﬁn ǆ",
        "cafe\u0301  CAFÉ": "café café",
        "ПРИВЕТ, Мир": "привет, мир",
        "ΟΔΥΣΣΕΥΣ": "οδυσσευς",
        "你好　世界": "你好 世界",
        "مرحبا ١٢٣": "مرحبا ١٢٣",
    },
    "upper.v1": {
        "  Hello,\tWorld!\n": "HELLO, WORLD!",
        "Schöne Grüße ẞ": "SCHÖNE GRÜSSE ẞ",
        "İstanbul ﬁn ǆ": "İSTANBUL FIN Ǆ",
        "cafe\u0301": "CAFÉ",
        "привет, Мир": "ПРИВЕТ, МИР",
        "οδυσσεύς": "ΟΔΥΣΣΕΎΣ",
        "हिन्दी 한국어": "हिन्दी 한국어",
    },
    "words.v1": {
        "  Hello,\tWorld!\n": "hello world",
        "It’s 5 o'clock — I’m ‘late’…": "it's 5 o'clock i'm late",
        "Schöne Grüße ẞ, E-Mail": "schöne grüße ß e mail",
        "П’ять сім'ї – об\u02bcїзд": "п'ять сім'ї об'їзд",
        "ＡＢＣ　１２": "abc 12",
        "你好，世界 。 用 iPhone 拍": "你好世界用 iphone 拍",
        "हिन्दी, 한국어 말": "हिन्दी 한국어 말",
        "$2,500.50 + 5% & ½": "$2 500 50 + 5% & 1⁄2",
    },
    "no_tags.v1": {
        "testing <unk> <inaudible> one <foreign_word> three": "testing one three",
        "<a<b>c>  It’s <5> < b > <ü>": "It’s <5> < b > <ü>",
        "cafe\u0301<silence>": "café",
    },
    "ascii.v1": {
        "It’s 5 o'clock — “late”…": "It's 5 o'clock - \"late\"...",
        "Schöne Grüße ẞ": "Schone Grusse Ss",
        "Łódź Ørsted Þór": "Lodz Orsted Thor",
        "cafe\u0301  CAFÉ": "cafe CAFE",
        "Привет, Мир": "Privet, Mir",
        "你好，世界": "NiHao,ShiJie",
        "مرحبا ١٢٣": "mrhb 123",
        "हिन्दी 한국어": "hindi HanGugEo",
        "½ № €5 😀": "1/2 No EUR5 :grinning:",
    },
    "english_letters.v1": {
        "I’m here — it's 5 O'Clock, naïve": "i'm here it's o'clock na ve",
        "Mr. Brown & 5%": "mr brown",
        "你好 Привет": "",
    },
    "whisper_basic.v1": {
        "[noise] It's (uh) 5 o'clock!": "it s 5 o clock",
        "Schöne Grüße, CAFÉ": "schöne grüße café",
        "İstanbul ﬁn": "i stanbul fin",
        "ПРИВЕТ, Мир": "привет мир",
        "你好，世界": "你好 世界",
        "مرحبا، بالعالم ١٢٣": "مرحبا بالعالم ١٢٣",
        "हिन्दी": "ह न द",
        "<laughs> $2,500.50 + 5%": "2 500 50 5",
    },
    "whisper_english.v1": {
        "[noise] um, I won't go to the colour centre": "i will not go to the color center",
        "Ten thousand dollars": "$10000",
        "Mr. Park visited Assoc. Prof. Kim Jr.": "mister park visited associate professor kim junior",
        "twenty-first, the 1960s and three point one four": "21st the 1960s and 3.14",
        "It's $2,500.50 or five percent": "it is $2500.50 or 5%",
        "one, two": "12",
        "We've he'd been, they're gonna": "we have he had been they are going to",
        "We’ve": "we ve",
        "Schöne Grüße": "schone grusse",
        "The cause of it, kinda; I dunno": "the cause of it kinda i dunno",
        "minus five plus one": "51",
    },
}  # fmt: skip

SCRIPTS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789.,$€£¢%+-:&", "\t\n\u00a0\u200b\u3000 ",
    "'’‘`´“”—…()[]<>{}", "àéîõüßøæœđðþłÀÉÎÕÜẞİıſŉǄﬁ", "a\u0301e\u0308i\u0307u\u0323\u0301K\u0327",
    "приветёъыПРИВЕТЁҐїЇ",
    "οδυσσεύςΑΆΐΰ", "你好世界我能吞下玻璃，。", "مرحبابالعالمٱآ١٢٣َُِ", "שלוםעולםְִ", "हिन्दीक़१२३", "ไทยสวัสดี",
    "한국어\u1112\u1161\u11ab", "ひらがなカタカナ\u304b\u3099", "½²№①㎏℃™Ω\u212b\u2126", "😀🎉🇩🇪👩‍🚀",
]  # fmt: skip
WORDS = re.split(
    r"\s+",
    """one two three five eleven twenty thirty hundred thousand million first second third fifth twentieth sixties oh o
    zero point and a half double triple minus plus dollar dollars cents euro pounds percent per cent mr mr. mrs. dr. st.
    jr. can't won't it's i'm we've he'd been gonna cause colour centre uh um hmm the 1 2 10 007 3.14 1999 1960s 21st $5
    $3.50 £2 €7 ¢7 5% 2,000 -5 +3 .5 1.5.6 12:30 x1 1x (so) [noise] s th ' . $ % -""",
)


def sentence(draw):
    """Draws English words that normalisers change, or letters of one script or of all scripts."""
    if draw.random() < 0.5:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 7)))
    letters = draw.choice(SCRIPTS) if draw.random() < 0.5 else "".join(SCRIPTS)
    return "".join(draw.choice(letters + " ") for _ in range(draw.randint(1, 24)))


@pytest.mark.parametrize("name", NORMALISERS)
@unchecked()
def test_is_idempotent(name):
    draw = random.Random(7)
    for text in [sentence(draw) for _ in range(500)] + [text for table in MEANING.values() for text in table]:
        once = normalise(text, name)
        assert normalise(once, name) == once, text
        if name != "none":
            assert once == " ".join(once.split()), text


@cache
def blocks_of_characters():
    """Returns all assigned characters of the first two planes, except for 15 of 16 ideographs and Hangul syllables."""
    letters = [chr(number) for number in range(0x20000) if unicodedata.category(chr(number)) not in ("Cn", "Co", "Cs")]
    many = ("CJK UNIFIED", "CJK COMPAT", "HANGUL SYLLABLE", "TANGUT")
    letters = [c for c in letters if ord(c) % 16 == 0 or not unicodedata.name(c, "").startswith(many)]
    return [" ".join(letters[start : start + 256]) for start in range(0, len(letters), 256)]


@pytest.mark.parametrize("name", NORMALISERS)
@unchecked()
def test_is_idempotent_on_every_character(name):
    for text in blocks_of_characters():
        once = normalise(text, name)
        assert normalise(once, name) == once, text


@pytest.mark.parametrize("name", sorted(set(NORMALISERS) - {"none"}))
def test_texts_that_look_the_same_are_the_same(name):
    draw = random.Random(8)
    for text in (sentence(draw) for _ in range(300)):
        composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
        assert normalise(composed, name) == normalise(decomposed, name), text


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, table in MEANING.items() for text in table])
def test_a_name_keeps_its_meaning(name, text):
    assert normalise(text, name) == MEANING[name][text]


def test_every_name_has_a_table_of_its_meaning():
    assert set(MEANING) | {"english.v1"} == set(NORMALISERS)  # the table of english.v1 is in test_english.py


def test_the_table_in_the_documentation():
    table = (ROOT / "docs" / "quickstart.md").read_text().partition("| normaliser |")[2].partition("\n\n")[0]
    head, _, *rows = [line.split("|") for line in table.splitlines()]
    text = head[0].split("`")[1]
    found = {row[1].strip(" `"): row[2].strip(" `") for row in rows}
    assert found == {name: normalise(text, name) for name in NORMALISERS}


def test_texts_are_replaced_in_the_order_of_the_names():
    name = "replace:;=,+replace:-= +replace:%2B= plus +replace:e\u0301=%3D+no_tags.v1+upper.v1"
    assert normalise("a;b twenty-one <x> 1+1 cafe\u0301 café", name) == "A,B TWENTY ONE 1 PLUS 1 CAF= CAF="
    assert normalise("<-x>", "replace:-=+no_tags.v1") == ""
    for wrong in ("replace:", "replace:a", "replace:=b", "replace:a=ba", "replac:a=b"):
        with pytest.raises(UserError, match=rf"unknown normaliser '{wrong}'; .*replace:OLD=NEW without OLD in NEW"):
            normalise("a", f"lower.v1+{wrong}")


def test_an_unknown_name_is_named_with_the_nearest():
    with pytest.raises(UserError, match=r"'lower.v2'.*expected one of none, lower.v1.*did you mean 'lower.v1'"):
        normalise("a", "lower.v2")


@pytest.mark.parametrize(
    ("name", "module", "text"),
    [
        ("ascii.v1", "anyascii", "é"),
        ("english.v1", "anyascii", "é"),
        ("english.v1", "inflect", "5"),
        ("whisper_basic.v1", "whisper_normalizer.basic", "a"),
        ("whisper_english.v1", "whisper_normalizer.english", "a"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(name, module, text, monkeypatch):
    forget_libraries()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        UserError, match=re.escape(f"{name} requires {module.partition('.')[0]}") + r".*ASR_JAX_EXTRAS=text"
    ):
        normalise(text, name)
    forget_libraries()


def forget_libraries():
    """Clears the caches of imported libraries and of their objects."""
    for module in (libraries, whisper, english):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def test_settled_goes_to_the_fixed_point_or_to_one_place_of_a_circle():
    assert whisper.settled(lambda text: text[:3], "abcdef") == "abc"
    circle = {"start": "b", "b": "c", "c": "a", "a": "b"}
    assert {whisper.settled(circle.__getitem__, text) for text in circle} == {"a"}

"""Words of texts in scripts with and without spaces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_jax.text.segmentation import has_unspaced, joined, mostly_without_spaces, on_one_line, split, words_of

SCRIPTS = {
    "Latin": "well-known (it's) x — 3.5",
    "Hangul": "한국어 텍스트",
    "Devanagari": "हिन्दी में",
    "Chinese": "今 天 天 气， 很 好。",
    "Chinese and English": "我 用 iPhone15 拍 100% 的， OK 吗？ “是” （笑）。",
    "Japanese": "こ ん に ち は、 キ ャ ッ ト、 ラ ー メ ン を 食 べ た。",
    "halfwidth kana": "ｶ ﾞ ﾗ".replace(" ﾞ", "ﾞ"),
    "combining kana": "か\u3099 き",
    "beyond the first plane": "𠀀 𠮷",
    "Thai": "สวัสดี ครับ ผม ชื่อ สมชาย",
    "Lao": "ທຸກຄົນ ຂ້ອຍ ຮັກ ລາວ",
    "Khmer": "ខ្ញុំ ស្រលាញ់ ភាសាខ្មែរ។",
    "Burmese": "မင်္ဂလာ ပါ၊ ကျွန်တော်",
    "Thai and digits": "แมว 1 ตัว ๑๐ บาท",
    "Tibetan": "བཀྲ་ ཤིས་ བདེ་ ལེགས།",
    "Tai Le": "ᥖ ᥭ ᥰ",
    "Hanja": "大 韓 民 國 은",
}
WITH_SPACES = {"Latin", "Hangul", "Devanagari"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_words_of_scripts(script):
    words = SCRIPTS[script].split(" ")
    text = (" " if script in WITH_SPACES else "").join(words)
    assert words_of(text) == words
    assert joined(split(text)) == text
    assert mostly_without_spaces([text]) == (script not in WITH_SPACES)


def test_spaces_are_kept():
    text = "你好 hello 世界  สวัสดีครับ\u3000ผม\n"
    assert joined(split(text)) == "你好 hello 世界 สวัสดีครับ ผม"
    assert [word.text for word in split(text) if word.space] == ["你", "hello", "世", "สวัสดี", "ผม"]
    assert split("") == split(" ") == []
    assert joined([]) == ""


def test_lines_are_joined_with_spaces_only_in_scripts_with_spaces():
    assert on_one_line("今天\r\n天气。\n\n 很 好 \nok then\nwell") == "今天天气。很 好ok then well"
    assert on_one_line("one\n two\n") == "one two"
    assert on_one_line("") == on_one_line("\n") == ""


def test_a_few_words_without_spaces_do_not_make_a_set_of_them():
    assert not mostly_without_spaces(["the word 你好 is a greeting", "one", ""])
    assert mostly_without_spaces(["今天 天气 很好", "ok"])
    assert not mostly_without_spaces([])


LETTERS = "".join(SCRIPTS.values()) + " \t\u3000\u200b\u200d\u00a0\ufeff\u0301\ufe0f。،?!「」()[]'\"-\u2028\x1c"


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
@given(
    st.one_of(st.text(), st.text(st.sampled_from(LETTERS), max_size=60), st.text(st.characters(categories=["L", "M"])))
)
def test_every_text_comes_back(text):
    words = split(text)
    assert joined(words) == " ".join(text.split())
    assert all(word.text and not any(map(str.isspace, word.text)) for word in words)
    if not has_unspaced(text):
        assert words_of(text) == text.split()
    assert [word.text for word in words] == [each for part in text.split() for each in words_of(part)]

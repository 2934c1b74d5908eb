"""Scores that words add, and error messages for wrong settings."""

import pytest

from asr_jax.core.errors import UserError
from asr_jax.search.ctc_beam import CTCBeamSearch
from asr_jax.search.hypotheses import Search
from asr_jax.search.language_model import load_kenlm, words_of_model
from asr_jax.search.word_scores import Fusion
from asr_jax.text.spelling import Spelling
from tests.support import approx

UNIGRAMS = "\\1-grams:\n-3\t<unk>\n-99\t<s>\n-1\t</s>\n-2\tcat\n-1\tthe\t0\n"
ARPA = f"\n\\data\\\nngram 1=5\nngram 2=1\n\n{UNIGRAMS}\n\\2-grams:\n-1\tthe the\n\n\\end\\\n"

CHINESE = Spelling.of_surfaces(["", *"北京大学人"], blank_id=0)


@pytest.fixture
def model(tmp_path):
    pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
    (tmp_path / "lm.arpa").write_text(ARPA)
    return str(tmp_path / "lm.arpa")


def test_nothing_is_built_of_nothing():
    assert Fusion().build() is None


def test_hot_words_add_by_the_share_of_their_letters():
    scores = Fusion(hot_words=("cat", "catch the"), hot_word_weight=6.0).build()
    assert [scores.open(part) for part in ("", "c", "ca", "cat", "catc", "th", "x")] == approx(
        [0, 2, 4, 6, 6 * 4 / 5, 4, 0]
    )
    assert [scores.by_lists(word) for word in ("cat", "catc", "the")] == [6, 0, 6]


def test_hot_words_with_weights_of_their_own():
    scores = Fusion(hot_words=("cat:9", "catch", "a:b", "the end:-2"), hot_word_weight=5.0).build()
    assert [scores.by_lists(word) for word in ("cat", "catch", "a:b", "the", "end", "a")] == [9, 5, 5, -2, -2, 0]
    assert [scores.open(part) for part in ("c", "cat", "catc", "th")] == approx([3, 9, 4, -4 / 3])
    with pytest.raises(ValueError, match=r"hot_words is \('cat:inf',\): expected a finite weight of 'cat:inf'"):
        Fusion(hot_words=("cat:inf",))
    with pytest.raises(ValueError, match="expected one weight of cat, the end"):
        Fusion(hot_words=("cat:9", "the end", "new york:2", "cat:8", "the end:2", "new delhi:3"))
    Fusion(hot_words=("cat:9", "dog", "cat:9", "dog", "new york:2", "new delhi:3"))


def test_a_lexicon_allows_no_other_words(tmp_path):
    (tmp_path / "lexicon").write_text("cat  c a t\n\nthe  t h e\n")
    scores = Fusion(lexicon=str(tmp_path / "lexicon")).build()
    assert [scores.by_lists(word) for word in ("cat", "the", "ca", "c")] == [0, 0, -float("inf"), -float("inf")]
    assert [scores.open(part) for part in ("cat", "ca", "x")] == [0, 0, -float("inf")]


def test_known_words_are_those_of_the_list_that_the_model_has(model, tmp_path):
    (tmp_path / "known").write_text("cat\ndog\n")
    scores = Fusion(kenlm=model, known_words=str(tmp_path / "known")).build()
    assert [scores.is_unknown(word) for word in ("cat", "the", "dog")] == [False, True, True]
    assert [Fusion(kenlm=model).build().is_unknown(word) for word in ("cat", "the", "dog")] == [False, False, True]
    (tmp_path / "known").write_text("dog\n")
    with pytest.raises(UserError, match="has no word of"):
        Fusion(kenlm=model, known_words=str(tmp_path / "known")).build()


def test_open_words_of_a_binary_model_are_unknown(model, monkeypatch):
    monkeypatch.setattr("asr_jax.search.word_scores.model_words", lambda path: None)  # of a binary model without words
    scores = Fusion(kenlm=model, unknown_score=-9.0).build()
    # pyctcdecode 0.5.0, LanguageModel.score_partial_token: without unigrams, every open word is unknown.
    assert [scores.open(part) for part in ("", "th", "thethe", "the" * 4)] == [0, -9, -9, -18]
    assert [scores.is_unknown(word) for word in ("the", "thethe")] == [False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookahead": True}, "lookahead is True: expected a lexicon"),
        ({"unit": "labels", "hot_words": ("cat",)}, "unit is 'labels': expected neither"),
        ({"lm_weight": float("inf")}, "lm_weight"),
    ],
)
def test_wrong_settings_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Fusion(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"beam_width": 0}, "beam_width"), ({"max_tokens": -1}, "max_tokens"), ({"beam_prune_logp": 1.0}, "at most 0")],
)
def test_wrong_searches_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Search(**options)


def test_the_device_takes_models_of_words_only(model):
    scores = Fusion(kenlm=model, unit="labels").build()
    with pytest.raises(ValueError, match="expected a language model of words"):
        CTCBeamSearch(Spelling.of_surfaces(["", " ", "a"], blank_id=0), search=Search(), scores=scores)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot read words from"), ("\n", "has no words"), ("# a\n", "has no words")]
)
def test_a_list_without_words_is_an_error(content, message, tmp_path):
    if content:
        (tmp_path / "words").write_text(content)
    with pytest.raises(UserError, match=message):
        Fusion(lexicon=str(tmp_path / "words")).build()


def test_missing_and_broken_models_are_errors(model, tmp_path):
    with pytest.raises(UserError, match="there is no language model"):
        load_kenlm(tmp_path / "none.arpa")
    (tmp_path / "broken.bin").write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(64))
    with pytest.raises(UserError, match="KenLM cannot read"):
        load_kenlm(tmp_path / "broken.bin")
    (tmp_path / "broken.arpa").write_text(ARPA[:40])
    with pytest.raises(UserError, match=r'broken.arpa \(Could not parse "-" into a float in the 1-gram at byte 39'):
        load_kenlm(tmp_path / "broken.arpa")
    (tmp_path / "broken.arpa").write_text("hello\n")
    with pytest.raises(UserError, match=r'broken.arpa \(first non-empty line was "hello" not \\data\\. Byte: 6\)'):
        load_kenlm(tmp_path / "broken.arpa")


def test_words_without_spaces_are_the_longest_listed_ones(tmp_path):
    (tmp_path / "lexicon").write_text("北京\n北京大学\n人\niPhone\n")
    hot = Fusion(hot_words=("北京大学:8", "京都", "iPhone手机"), hot_word_weight=4.0).build()
    assert hot.units(["我在北京大学看iPhone手机"], CHINESE, ()) == ["我", "在", "北京大学", "看", "iPhone手机"]
    assert hot.units(["去京都ok", "the"], CHINESE, ()) == ["去", "京都", "ok", "the"]
    assert hot.text(["我", "北京大学", "京都"]) == 12
    assert hot.grown("北京", "人京") == (["北", "京", "人"], "京")
    assert [hot.ends_before(*pair) for pair in (("北", "京"), ("北", "人"), ("a", "b"), ("", "北"), ("a", "北"))] == [
        False, True, False, False, True
    ]  # fmt: skip
    only = Fusion(lexicon=str(tmp_path / "lexicon")).build()
    assert only.units(["北京人北京大学"], CHINESE, ()) == ["北京", "人", "北京大学"]
    assert [only.may_end(text) for text in ("北京人", "北京大", "大", "iPhone", "iPh", "")] == [
        True, False, False, True, False, True
    ]  # fmt: skip


def test_a_language_model_sees_words_of_texts_without_spaces():
    listed = {"北京", "京", "大学"}.__contains__
    assert words_of_model("北京大学生ok", listed) == ["北京", "大学", "生", "ok"]
    assert words_of_model("the", {"t", "he"}.__contains__) == ["the"]
    assert words_of_model("ไทย", {"ไ"}.__contains__) == ["ไ", "ทย"]

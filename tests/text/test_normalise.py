"""Normalisers: what each keeps, that each is idempotent, and the message for a name that there is not."""

import pytest

from asr_jax.core.errors import UserError
from asr_jax.text.normalise import NORMALISERS, normalise

TEXTS = [
    "  Hello,\tWorld!\n", "I’m here — it's 5 o'clock", "Schöne Grüße", "I\u0307stanbul İstanbul", "cafe\u0301 CAFÉ",
    "你好　世界", "مرحبا بالعالم", "ПРИВЕТ Мир", "ΟΔΥΣΣΕΥΣ", "", " ", "ﬁne Ǆ ẞ", "a\u00a0b\u200bc", "e\u0327\u0301",
]  # fmt: skip


@pytest.mark.parametrize("name", NORMALISERS)
@pytest.mark.parametrize("text", TEXTS)
def test_is_idempotent(name, text):
    once = normalise(text, name)
    assert normalise(once, name) == once


def test_lower_v1_composes_lowers_and_leaves_single_spaces():
    assert normalise("  Hello,\tWorld!\n", "lower.v1") == "hello, world!"
    assert normalise("cafe\u0301  CAFÉ", "lower.v1") == "café café"
    assert normalise("你好　世界 ПРИВЕТ", "lower.v1") == "你好 世界 привет"


def test_english_letters_v1_keeps_letters_and_apostrophes():
    assert normalise("I’m here — it's 5 O'Clock, naïve", "english_letters.v1") == "i'm here it's o'clock na ve"


def test_none_changes_nothing():
    assert [normalise(text, "none") for text in TEXTS] == TEXTS


def test_an_unknown_name_is_named_with_the_nearest():
    with pytest.raises(UserError, match=r"'lower.v2'.*expected one of none, lower.v1.*did you mean 'lower.v1'"):
        normalise("a", "lower.v2")

"""Whisper's normalisers (Radford et al. 2022, appendix C) from the package whisper-normalizer.

Both remove text in brackets, replace symbols and punctuation by spaces, and convert letters to lower case. The English
one also expands contractions, writes numbers as digits and British spellings as American ones, and removes `hmm`, `uh`
and similar words. Differs from: Whisper's own, which can leave a space at either end, and is applied once. Here the
English normaliser is applied until the text no longer changes, because applying it once is not idempotent (`minus five
plus one` becomes `-5 +one`, then `51`; this affects 1 of the 2,719 texts of LibriSpeech, ARCTIC and LJSpeech that were
tried).
"""

import functools
from collections.abc import Callable
from typing import Any

from asr_jax.text.libraries import library

ADDED = (r"\bkinda\b", r"\bsorta\b", r"\bdunno\b", r"\bcause\b")
"""Patterns of the package that Whisper does not have. The last one changes `the cause of it` to `the because of it`."""


def whisper_basic_v1(text: str) -> str:
    """Normalises text of any language. As in Whisper, marks become spaces too, which splits words of Indic scripts."""
    return _tidy(_basic()(text))


def whisper_english_v1(text: str) -> str:
    """Normalises English text. The normaliser is applied until the text no longer changes."""
    once = _english()
    return settled(lambda text: _tidy(once(text)), text)


def settled(once: Callable[[str], str], text: str) -> str:
    """Applies `once` until the text no longer changes. If texts form a cycle, returns the first in sort order."""
    seen: list[str] = []
    while text not in seen:
        seen.append(text)
        text = once(text)
    return min(seen[seen.index(text) :])


@functools.cache
def _basic() -> Any:
    return library("whisper_normalizer.basic", normaliser="whisper_basic.v1").BasicTextNormalizer()


@functools.cache
def _english() -> Any:
    english = library("whisper_normalizer.english", normaliser="whisper_english.v1").EnglishTextNormalizer()
    for pattern in ADDED:
        english.replacers.pop(pattern, None)
    return english


def _tidy(text: str) -> str:
    return " ".join(text.split())

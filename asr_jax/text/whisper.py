"""Whisper's normalisers (Radford et al. 2022, appendix C), by the package whisper-normalizer.

Both leave out what stands in brackets, take symbols and punctuation for spaces and make letters lower-case. The English
one also writes contractions out, numbers as digits and British spellings as American ones, and leaves out `hmm`, `uh`
and the like. Differs from Whisper's own: no space is left at either end, and the English one is applied until it
changes nothing more, since once is not always enough (`minus five plus one` is `-5 +one`, then `51`; 1 of the 2,719
texts of LibriSpeech, ARCTIC and LJSpeech that were tried).
"""

import functools
from collections.abc import Callable
from typing import Any

from asr_jax.text.libraries import library

ADDED = (r"\bkinda\b", r"\bsorta\b", r"\bdunno\b", r"\bcause\b")
"""Patterns that the package has beyond Whisper's: the last makes `the because of it` of `the cause of it`."""


def whisper_basic_v1(text: str) -> str:
    """Of any language. Marks become spaces too, which tears words of Indic scripts apart: as Whisper has it."""
    return _tidy(_basic()(text))


def whisper_english_v1(text: str) -> str:
    """Of English; applied until nothing changes."""
    once = _english()
    return settled(lambda text: _tidy(once(text)), text)


def settled(once: Callable[[str], str], text: str) -> str:
    """What `once`, applied again and again, comes to; of texts that it makes into each other, the first in order."""
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

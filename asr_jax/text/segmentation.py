"""Words of a text. In scripts without spaces, a word is a character, a syllable, or a word of a dictionary.

- Between white space: texts in scripts with spaces, with their punctuation.
- Characters: Han, kana and other letters that Unicode treats as ideographs, and scripts without spaces that have no
  dictionary. A character is a grapheme cluster.
- Words of ICU's dictionaries: Thai, Lao, Khmer and Burmese.
- Syllables up to the mark that separates them: Tibetan.

Punctuation belongs to the word before it, and opening brackets to the word after them. Letters and digits between
letters of these scripts are a word, as in `用iPhone15拍`.

Sources: Unicode's line breaking classes (UAX 14) for the scripts, grapheme clusters and words of UAX 29.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import regex

IDEOGRAPHS = r"[[\p{LB=ID}\p{LB=CJ}\p{LB=NS}]&&[\p{L}\p{Nl}]]"
AKSARAS = r"[\p{LB=AK}\p{LB=AP}\p{LB=AS}]"
WITH_DICTIONARY = r"[[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]&&[\p{LB=SA}]]"
WITHOUT_DICTIONARY = rf"[\p{{LB=SA}}--{WITH_DICTIONARY}]"
TIBETAN = r"[\p{Tibetan}&&[\p{L}\p{M}]]"
UNSPACED = rf"[{IDEOGRAPHS}{AKSARAS}\p{{LB=SA}}{TIBETAN}]"
OTHER = rf"[[\p{{L}}\p{{N}}\p{{M}}]--{UNSPACED}]"
_UNSPACED = regex.compile(UNSPACED, regex.V1)
_CORES = regex.compile(
    r"(?P<opening>[\p{Ps}\p{Pi}]*)"
    rf"(?:(?P<dictionary>{WITH_DICTIONARY}[{WITH_DICTIONARY}\p{{M}}]*)"
    rf"|{TIBETAN}+"
    rf"|(?=[{IDEOGRAPHS}{AKSARAS}{WITHOUT_DICTIONARY}])\X"
    rf"|{OTHER}(?:[\S--{UNSPACED}]*{OTHER})?)",
    regex.V1,
)
"""Beginnings of words within text that has no white space. Everything up to the next one belongs to a word."""


class Word(NamedTuple):
    """A word of a text."""

    text: str
    space: bool = True
    """Whether white space precedes the word. It does not matter for the first word."""


class AnyWord(Protocol):
    """Any type with the fields of a word."""

    @property
    def text(self) -> str: ...

    @property
    def space(self) -> bool: ...


def split(text: str) -> list[Word]:
    """Splits a text into words. `joined` returns the text again, with single spaces for its white space."""
    parts = text.split()
    if not has_unspaced(text):
        return [Word(part) for part in parts]
    return [Word(word, space=not place) for part in parts for place, word in enumerate(_within(part))]


def words_of(text: str) -> list[str]:
    """Returns the texts of the words of a text."""
    return [word.text for word in split(text)] if has_unspaced(text) else text.split()


def joined(words: Iterable[AnyWord]) -> str:
    """Returns the text of words: a space precedes each word with `space`, except for the first."""
    return "".join(" " * word.space + word.text for word in words).removeprefix(" ")


def has_unspaced(text: str) -> bool:
    """Returns whether a text has a letter of a script without spaces between words."""
    return not text.isascii() and _UNSPACED.search(text) is not None


@functools.cache
def is_unspaced(character: str) -> bool:
    """Returns whether a character is a letter of a script without spaces between words."""
    return has_unspaced(character)


def may_follow(before: str, after: str) -> bool:
    """Returns whether two texts may be parts of one text without a space between them, and yet of different words."""
    return bool(before) and bool(after) and (is_unspaced(before[-1]) or is_unspaced(after[0]))


def on_one_line(text: str) -> str:
    """Joins the lines of a text with spaces, but without one beside letters of scripts without spaces."""
    whole = ""
    for line in (" ".join(line.split()) for line in text.split("\n")):
        whole += line if not whole or not line or may_follow(whole, line) else f" {line}"
    return whole


def mostly_without_spaces(texts: Iterable[str]) -> bool:
    """Returns whether most words of texts follow the word before them without a space."""
    num_after_spaces = num_others = 0
    for text in texts:
        num_parts = len(text.split())
        num_after_spaces += max(num_parts - 1, 0)
        num_others += len(words_of(text)) - num_parts
    return num_others > num_after_spaces


def _within(part: str) -> Sequence[str]:
    """Returns the words of a text without white space."""
    if not has_unspaced(part):
        return (part,)
    starts = sorted({0, *_starts(part), len(part)})
    return [part[start:end] for start, end in pairwise(starts)]


def _starts(part: str) -> Iterator[int]:
    """Yields the places at which words begin, except for the first."""
    is_first = True
    for core in _CORES.finditer(part):
        if not is_first:
            yield core.start()
        is_first = False
        if run := core["dictionary"]:
            from icu4py.breakers import WordBreaker  # 44 MB of libraries that few languages need

            yield from (core.start("dictionary") + start for start, _ in list(WordBreaker(run, "root").segments())[1:])

"""The tokenizer of FunASR's vocabularies: words, pieces of words that end in @@, and Chinese characters.

Source: the texts of `sentence_postprocess` in FunASR's funasr/utils/postprocess_utils.py at commit 3c58cb56. Differs
from: FunASR, which writes consecutive words of one letter as an abbreviation in capitals (`a b` as `AB`), and which
drops pieces that no label continues, or writes them before a later word.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from asr_jax.text.characters import ListedTokenizer

CONTINUES = "@@"
"""End of pieces that the next label continues."""
UNWRITTEN = ("<s>", "</s>", "<unk>", "<OOV>")
"""Labels without text."""


@dataclass(frozen=True)
class MixedTokenizer(ListedTokenizer):
    """A tokenizer of text with and without spaces: `hello world` has a space, `你好hello` has none.

    Decoding restores an encoded text except for spaces: it removes those beside Chinese characters and digits, and adds
    some beside punctuation (`well-known` becomes `well -known`), which normalisers without punctuation avoid.

    A word of letters that is no label has the longest pieces that spell it. Each other character has a label.
    """

    kind: ClassVar[str] = "mixed"

    @functools.cached_property
    def texts(self) -> tuple[str, ...]:
        """Text of each label; empty for the blank."""
        return tuple(_text(symbol or "") for symbol in self.symbols)

    @functools.cached_property
    def opens(self) -> tuple[bool, ...]:
        """Whether a space precedes the text of each label, if the text before it ends a word."""
        return tuple(bool(text) and not all(map(_is_unspaced, text)) for text in self.texts)

    @functools.cached_property
    def ends(self) -> tuple[bool, ...]:
        """Whether each label is a word of letters, or the last piece of one."""
        return tuple(_is_word(symbol or "") for symbol in self.symbols)

    def _num_letters(self, symbol: str) -> int:
        return len(_text(symbol)) + _is_word(symbol)

    def parts(self, text: str) -> Sequence[str]:
        parts: list[str] = []
        for is_word, characters in itertools.groupby(text, _is_word):
            run = "".join(characters)
            parts += self._pieces(run) if is_word else "".join(run.split())
        return parts

    def _pieces(self, word: str) -> list[str]:
        """Returns the labels of a word; the word itself if no labels spell it."""
        of_rest: dict[int, list[str]] = {}
        for start in reversed(range(len(word))):
            if word[start:] in self._ids:
                of_rest[start] = [word[start:]]
                continue
            ends = (end for end in reversed(range(start + 1, len(word))) if end in of_rest)
            if end := next((end for end in ends if word[start:end] + CONTINUES in self._ids), 0):
                of_rest[start] = [word[start:end] + CONTINUES, *of_rest[end]]
        return of_rest.get(0, [word])

    def _decode(self, ids: Sequence[int]) -> str:
        text, ends = "", False
        for i in ids:
            if self.texts[i]:
                text += " " * (ends and self.opens[i]) + self.texts[i]
                ends = self.ends[i]
        return text


def _text(symbol: str) -> str:
    return "" if symbol in UNWRITTEN else symbol.removesuffix(CONTINUES)


def _is_word(text: str) -> bool:
    """Whether a text consists of letters and apostrophes, none of them Chinese."""
    return bool(text) and all((each.isalpha() or each == "'") and not _is_unspaced(each) for each in text)


def _is_unspaced(character: str) -> bool:
    """Whether a character is Chinese, or a digit, which FunASR writes as Chinese characters."""
    return "\u4e00" <= character <= "\u9fff" or "0" <= character <= "9"

"""Characters, whole words, given ids or nothing as symbols. What is not among them is an error, never an `<unk>`."""

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from asr_jax.core.errors import UserError
from asr_jax.text.base import OutOfVocabulary, Tokenizer
from asr_jax.text.normalise import normalise


@dataclass(frozen=True)
class ListedTokenizer(Tokenizer):
    """One id for each part of a text, which must be listed."""

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any]) -> Tokenizer:
        """From what `save` wrote.

        Raises: ValueError, LookupError or TypeError for what it cannot have written.
        """
        return cls(symbols=tuple(description["symbols"]), normaliser=description["normaliser"])

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols) if symbol is not None}

    def _looked_up(self, parts: Sequence[str]) -> list[int]:
        if missing := set(parts) - self._ids.keys():
            raise OutOfVocabulary(sorted(missing))
        return [self._ids[part] for part in parts]


@dataclass(frozen=True)
class CharacterTokenizer(ListedTokenizer):
    """One id per character (Unicode code point); the space is a symbol like any other. Symbols of several characters,
    such as the `<unk>` of a vocabulary that another system wrote, stand for no text.
    """

    kind: ClassVar[str] = "characters"

    @classmethod
    def train(cls, texts: Iterable[str], *, alphabet: str, normaliser: str) -> "CharacterTokenizer":
        """The symbols are the alphabet's characters or, where it is empty, those of the normalised texts in the order
        of their code points. The blank comes last.

        Raises: UserError where there is no character at all.
        """
        characters = itertools.chain.from_iterable(normalise(text, normaliser) for text in texts)
        found = alphabet or "".join(sorted(set(characters)))
        if not found:
            raise UserError("all training texts are empty: expected at least one character to make an alphabet of")
        return cls(symbols=(*found, None), normaliser=normaliser)

    def _encode(self, text: str) -> list[int]:
        return self._looked_up(list(text))

    def _decode(self, ids: Sequence[int]) -> str:
        return "".join(self.symbols[i] or "" for i in ids)


@dataclass(frozen=True)
class WordTokenizer(ListedTokenizer):
    """One id per word: for commands, digits and other small closed vocabularies."""

    kind: ClassVar[str] = "words"

    @classmethod
    def train(cls, texts: Iterable[str], *, normaliser: str) -> "WordTokenizer":
        """The symbols are the words of the normalised texts in alphabetical order; the blank comes last.

        Raises: UserError where there is no word at all.
        """
        found = sorted({word for text in texts for word in normalise(text, normaliser).split()})
        if not found:
            raise UserError("all training texts are empty: expected at least one word to make a vocabulary of")
        return cls(symbols=(*found, None), normaliser=normaliser)

    def _encode(self, text: str) -> list[int]:
        return self._looked_up(text.split())

    def _decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.symbols[i] or "" for i in ids)


@dataclass(frozen=True)
class IdTokenizer(ListedTokenizer):
    """The ids that a manifest brings, whatever they stand for: the text of `5 3 8` is itself, and a word is an id."""

    kind: ClassVar[str] = "ids"

    @classmethod
    def up_to(cls, largest_id: int, *, blank_id: int | None) -> "IdTokenizer":
        """All ids from 0 to the largest, and the blank: one more, or `blank_id`.

        Raises: UserError for a blank that leaves ids between it and the largest.
        """
        size = largest_id + 1 if blank_id is not None and blank_id <= largest_id else largest_id + 2
        blank = size - 1 if blank_id is None else blank_id
        if blank >= size:
            raise UserError(f"blank_id {blank}: the largest id is {largest_id}; expected at most {largest_id + 1}")
        return cls(symbols=tuple(None if i == blank else str(i) for i in range(size)), normaliser="none")

    def _encode(self, text: str) -> list[int]:
        return self._looked_up(text.split())

    def _decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.symbols[i] or "" for i in ids)


@dataclass(frozen=True)
class NoTokenizer(ListedTokenizer):
    """No label but the blank: every text encodes to none. For models that learn from audio alone."""

    symbols: tuple[str | None, ...] = (None,)
    normaliser: str = "none"
    kind: ClassVar[str] = "none"

    def _encode(self, text: str) -> list[int]:
        return []

    def _decode(self, ids: Sequence[int]) -> str:
        return ""

"""Characters, or whole words, as symbols. What is not among them is an error, never an `<unk>`."""

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
class CharacterTokenizer(Tokenizer):
    """One id per character (Unicode code point); the space is a symbol like any other."""

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

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any]) -> "CharacterTokenizer":
        """From what `save` wrote.

        Raises: ValueError, LookupError or TypeError for what it cannot have written.
        """
        return cls(symbols=tuple(description["symbols"]), normaliser=description["normaliser"])

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols) if symbol is not None}

    def _encode(self, text: str) -> list[int]:
        return _looked_up(list(text), self._ids)

    def _decode(self, ids: Sequence[int]) -> str:
        return "".join(self.symbols[i] or "" for i in ids)


@dataclass(frozen=True)
class WordTokenizer(Tokenizer):
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

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any]) -> "WordTokenizer":
        """As CharacterTokenizer's."""
        return cls(symbols=tuple(description["symbols"]), normaliser=description["normaliser"])

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols) if symbol is not None}

    def _encode(self, text: str) -> list[int]:
        return _looked_up(text.split(), self._ids)

    def _decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.symbols[i] or "" for i in ids)


def _looked_up(symbols: list[str], ids: dict[str, int]) -> list[int]:
    if missing := set(symbols) - ids.keys():
        raise OutOfVocabulary(sorted(missing))
    return [ids[symbol] for symbol in symbols]

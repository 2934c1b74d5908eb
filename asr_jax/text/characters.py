"""Tokenizers with a listed vocabulary: characters, words, given ids, or no labels.

Text outside of the vocabulary is an error; there is no `<unk>`.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from asr_jax.core.errors import UserError
from asr_jax.text.base import OutOfVocabulary, Tokenizer
from asr_jax.text.normalise import normalise


@dataclass(frozen=True)
class ListedTokenizer(Tokenizer):
    """A tokenizer with one id for each part of a text; every part must be in the vocabulary."""

    separator: ClassVar[str] = " "
    """Text between the texts of two labels in decoded texts."""

    @classmethod
    def train(cls, texts: Iterable[str], *, normaliser: str, alphabet: str = "") -> Self:
        """Creates a tokenizer with the parts of texts in the order of their code points; the blank is the last id.

        Args:
            alphabet: Characters in the order of their ids. Empty: the parts of the normalised texts.

        Raises:
            UserError: If there are no parts.
        """
        without = cls(symbols=(None,), normaliser=normaliser)
        found = alphabet or sorted({part for text in texts for part in without.parts(normalise(text, normaliser))})
        if not found:
            raise UserError(f"all training texts are empty: expected text for a vocabulary of {cls.kind}")
        return cls(symbols=(*found, None), normaliser=normaliser)

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any]) -> Tokenizer:
        """Returns the tokenizer that `save` wrote.

        Raises:
            ValueError, LookupError, TypeError: If the description is invalid.
        """
        return cls(symbols=tuple(description["symbols"]), normaliser=description["normaliser"])

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols) if symbol is not None}

    def scored_ids(self, text: str) -> list[int]:
        return [self._ids.get(part, -1) for part in self.parts(normalise(text, self.normaliser))]

    def _encode(self, text: str) -> list[int]:
        parts = self.parts(text)
        if missing := set(parts) - self._ids.keys():
            raise OutOfVocabulary(sorted(missing))
        return [self._ids[part] for part in parts]

    def _known(self, text: str) -> list[int]:
        return [self._ids[part] for part in self.parts(text) if part in self._ids]

    def parts(self, text: str) -> Sequence[str]:
        """Returns the parts of a text that have an id each."""
        return text.split()

    def written_alone(self, part: str) -> str:
        return part if part in self._ids else ""

    def _decode(self, ids: Sequence[int]) -> str:
        return self.separator.join(self.symbols[i] or "" for i in ids)


@dataclass(frozen=True)
class CharacterTokenizer(ListedTokenizer):
    """A tokenizer with one id per character (Unicode code point), including the space.

    Symbols of several characters, such as `<unk>` in vocabularies of other systems, are never part of an encoded text.
    """

    kind: ClassVar[str] = "characters"
    restores: ClassVar[bool] = True
    separator: ClassVar[str] = ""

    def parts(self, text: str) -> Sequence[str]:
        return text


@dataclass(frozen=True)
class WordTokenizer(ListedTokenizer):
    """A tokenizer with one id per word, for commands, digits and other small closed vocabularies."""

    kind: ClassVar[str] = "words"

    def _num_letters(self, symbol: str) -> int:
        return len(symbol) + 1


@dataclass(frozen=True)
class IdTokenizer(ListedTokenizer):
    """A tokenizer for the token ids of manifests: a text such as `5 3 8` is a sequence of ids."""

    kind: ClassVar[str] = "ids"

    @classmethod
    def up_to(cls, largest_id: int, *, blank_id: int | None) -> "IdTokenizer":
        """Creates a tokenizer of all ids from 0 to `largest_id` and the blank.

        Args:
            blank_id: Id of the blank. None: `largest_id` + 1.

        Raises:
            UserError: If `blank_id` is greater than `largest_id` + 1.
        """
        size = largest_id + 1 if blank_id is not None and blank_id <= largest_id else largest_id + 2
        blank = size - 1 if blank_id is None else blank_id
        if blank >= size:
            raise UserError(f"blank_id {blank}: the largest id is {largest_id}; expected at most {largest_id + 1}")
        return cls(symbols=tuple(None if i == blank else str(i) for i in range(size)), normaliser="none")

    def _num_letters(self, symbol: str) -> int:
        return 0  # unknown


@dataclass(frozen=True)
class NoTokenizer(ListedTokenizer):
    """A tokenizer without labels other than the blank, for models that are trained on audio alone.

    The ids of every text are empty.
    """

    symbols: tuple[str | None, ...] = (None,)
    normaliser: str = "none"
    kind: ClassVar[str] = "none"

    def parts(self, text: str) -> Sequence[str]:
        return ()

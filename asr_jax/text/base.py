"""Base class of tokenizers, which convert text to label ids and back; one id is the blank."""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int64

from asr_jax.core.files import write_whole
from asr_jax.core.text_files import json_text
from asr_jax.text.normalise import normalise
from asr_jax.text.removed import removed_characters

DESCRIPTION = "tokenizer.json"


class OutOfVocabulary(ValueError):
    """A text with characters or words that are not in the vocabulary; `missing` contains them, sorted."""

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__(f"outside of the vocabulary: {', '.join(map(repr, missing))}")
        self.missing = missing


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary and the normaliser that is applied to texts before they are encoded."""

    symbols: tuple[str | None, ...]
    """Text of each id's label; None is the blank."""
    normaliser: str
    """Name of the normaliser that is applied to each text before it is encoded, as for `normalise`."""

    kind: ClassVar[str]
    """Kind of the tokenizer in `TokenizerSettings.kind` and in tokenizer.json."""
    restores: ClassVar[bool] = False
    """Whether decoding restores every text that can be encoded."""

    def __post_init__(self) -> None:
        if self.symbols.count(None) != 1 or len(set(self.symbols)) != len(self.symbols):
            raise ValueError(f"symbols {self.symbols}: expected distinct symbols and exactly one None, the blank")

    @property
    def vocab_size(self) -> int:
        """Number of labels, including the blank."""
        return len(self.symbols)

    @property
    def has_labels(self) -> bool:
        """Whether there are labels other than the blank; False for training on audio without texts."""
        return self.vocab_size > 1

    @functools.cached_property
    def blank_id(self) -> int:
        """Id of the blank, which is never part of an encoded text."""
        return self.symbols.index(None)

    @property
    def unknown_id(self) -> int | None:
        """Id of the unknown label; None if text outside of the vocabulary is an error."""
        return None

    @functools.cached_property
    def num_letters(self) -> Int64[np.ndarray, " V"]:
        """Number of letters of each label, with the word boundaries that it contains: 4 for the piece `▁the`."""
        return np.array([self._num_letters(symbol) if symbol else 0 for symbol in self.symbols], np.int64)

    def _num_letters(self, symbol: str) -> int:
        return len(symbol)

    def digest(self) -> str:
        """Returns a hash that is equal for tokenizers that encode texts to the same ids."""
        made_of = repr((self.kind, self.normaliser, self.symbols, self._made_of()))
        return hashlib.sha256(made_of.encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """Returns the ids of the normalised text, without blanks.

        Raises:
            OutOfVocabulary: If a part of the text is not in the vocabulary and the tokenizer has no unknown label.
        """
        return self._encode(normalise(text, self.normaliser))

    def scored_ids(self, text: str) -> list[int]:
        """Returns the ids of the normalised text for scoring; -1 for each part that is not in the vocabulary."""
        try:
            return self.encode(text)
        except OutOfVocabulary as error:
            return [-1] * len(error.missing)

    def parts(self, text: str) -> Sequence[str]:
        """Returns the parts of a normalised text that may lack a label: its characters or words."""
        return text

    def without_label(self, text: str) -> set[str]:
        """Returns the characters or words of the normalised text that have no label, or only the unknown label."""
        try:
            self.encode(text)
        except OutOfVocabulary as error:
            return set(error.missing)
        return set()

    def written(self, text: str) -> str:
        """Returns what the labels of a normalised text write: the decoded labels. Parts without a label are left out.

        It equals the text if the vocabulary can write it. It differs if a part has no label, or if the tokenizer
        changes texts, such as a SentencePiece model that writes capitals as small letters.
        """
        return self._decode(self._known(text))

    def written_alone(self, part: str) -> str:
        """Returns what the labels of one of the `parts` write."""
        return self.written(part)

    def removed_from(self, text: str) -> str:
        """Returns the letters and digits that the normaliser removes from a text, each once."""
        return "".join(filter(str.isalnum, removed_characters(text, self.normaliser)))

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids.

        Raises:
            ValueError: If the ids contain the blank.
        """
        if self.blank_id in ids:
            raise ValueError(f"cannot decode {list(ids)}: {self.blank_id} is the blank; remove blanks before decoding")
        return self._decode(ids)

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json` (kind, normaliser, blank_id, symbols) into a folder, which is created if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        description = {
            "kind": self.kind,
            "normaliser": self.normaliser,
            "blank_id": self.blank_id,
            "symbols": self.symbols,
        }
        write_whole(folder / DESCRIPTION, json_text(description, indent=1) + "\n")

    def _made_of(self) -> bytes:
        """Returns further content that ids depend on, for `digest`."""
        return b""

    def _encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def _known(self, text: str) -> list[int]:
        """Returns the ids of the parts of a normalised text that have a label, without the unknown label."""
        raise NotImplementedError

    def _decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError

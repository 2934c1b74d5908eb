"""What a tokenizer is: text to label ids and back, with one id that is the blank."""

import functools
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from asr_jax.core.files import write_whole
from asr_jax.text.normalise import normalise

DESCRIPTION = "tokenizer.json"


class OutOfVocabulary(ValueError):
    """A text has characters or words that no symbol stands for; `missing` are these, sorted."""

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__(f"outside of the vocabulary: {', '.join(map(repr, missing))}")
        self.missing = missing


@dataclass(frozen=True)
class Tokenizer:
    """Symbols and how a text is normalised before it becomes their ids."""

    symbols: tuple[str | None, ...]
    """The symbol of each id; None is the blank."""
    normaliser: str
    """A name of NORMALISERS; applied to each text before it is encoded."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        if self.symbols.count(None) != 1 or len(set(self.symbols)) != len(self.symbols):
            raise ValueError(f"symbols {self.symbols}: expected different ones, and exactly one None for the blank")

    @property
    def vocab_size(self) -> int:
        """How many ids there are, the blank among them."""
        return len(self.symbols)

    @property
    def has_labels(self) -> bool:
        """Whether there is any id beside the blank: not for audio alone."""
        return self.vocab_size > 1

    @functools.cached_property
    def blank_id(self) -> int:
        """The id of the blank, which no text encodes to."""
        return self.symbols.index(None)

    @property
    def unknown_id(self) -> int | None:
        """The id of what there is no symbol for; None where that is an error."""
        return None

    def digest(self) -> str:
        """Equal where texts get the same ids."""
        made_of = repr((self.kind, self.normaliser, self.symbols, self._made_of()))
        return hashlib.sha256(made_of.encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """Ids of the normalised text, never the blank.

        Raises: OutOfVocabulary where a kind has no symbol for a part of it.
        """
        return self._encode(normalise(text, self.normaliser))

    def left_out(self, text: str) -> str:
        """The letters and digits of a text that its normaliser takes away, each once, in order: digits, where it keeps
        letters alone.
        """
        seen = dict.fromkeys(character for character in unicodedata.normalize("NFC", text) if character.isalnum())
        return "".join(character for character in seen if not normalise(character, self.normaliser).strip())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids from which blanks were removed.

        Raises: ValueError where the blank is among them.
        """
        if self.blank_id in ids:
            raise ValueError(f"cannot decode {list(ids)}: {self.blank_id} is the blank; expected ids of symbols")
        return self._decode(ids)

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json` (kind, normaliser, blank_id, symbols) into a folder, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        description = {
            "kind": self.kind,
            "normaliser": self.normaliser,
            "blank_id": self.blank_id,
            "symbols": self.symbols,
        }
        write_whole(folder / DESCRIPTION, json.dumps(description, ensure_ascii=False, indent=1) + "\n")

    def _made_of(self) -> bytes:
        """What else ids depend on."""
        return b""

    def _encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def _decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError

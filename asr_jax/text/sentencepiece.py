"""The tokenizer with pieces of a SentencePiece model."""

import functools
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from sentencepiece import SentencePieceProcessor

from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import write_whole
from asr_jax.text.base import DESCRIPTION, OutOfVocabulary, Tokenizer
from asr_jax.text.normalise import normalise
from asr_jax.text.pieces import train_model

MODEL = "tokenizer.model"
SPACE = "▁"
"""Character that SentencePiece writes for a space."""
Pieces = Literal["unigram", "bpe"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SentencePieceTokenizer(Tokenizer):
    """A tokenizer with the pieces of a SentencePiece model. Characters without a piece become the piece `<unk>`."""

    model: bytes = field(repr=False)
    """The serialised model."""

    kind: ClassVar[str] = "sentencepiece"

    @classmethod
    def of_model(cls, model: bytes, *, normaliser: str, blank_id: int | None = None) -> "SentencePieceTokenizer":
        """Creates a tokenizer from a SentencePiece model.

        Args:
            blank_id: Id of the piece that is used as the blank, such as icefall's `<blk>`. None: the blank is one more
                id after all pieces.

        Raises:
            RuntimeError: If the bytes are not a model.
            IndexError: If the model has no piece `blank_id`.
        """
        processor = SentencePieceProcessor(model_proto=model)
        pieces: list[str | None] = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
        if blank_id is None or blank_id == len(pieces):
            pieces.append(None)
        else:
            pieces[blank_id] = None
        return cls(symbols=tuple(pieces), normaliser=normaliser, model=model)

    @classmethod
    def train(
        cls, texts: Iterable[str], *, vocab_size: int, pieces: Pieces, character_coverage: float = 1.0, normaliser: str
    ) -> "SentencePieceTokenizer":
        """Trains a SentencePiece model and creates its tokenizer. The blank is the last id.

        If the texts are too few for `vocab_size`, the vocabulary is smaller and a warning is logged. The same texts in
        the same order result in the same model.

        Args:
            vocab_size: Maximum number of labels, including `<unk>` and the blank.
            pieces: Training algorithm.
            character_coverage: Fraction of the texts' characters that get pieces.

        Raises:
            UserError: If all texts are empty or `vocab_size` is too small for their characters.
        """
        sentences = [text for text in (normalise(text, normaliser) for text in texts) if text]
        if not sentences:
            raise UserError("all training texts are empty: expected text to train SentencePiece on")
        model = train_model(
            sentences,
            vocab_size=vocab_size,
            with_blank=True,
            model_type=pieces,
            hard_vocab_limit=False,
            character_coverage=character_coverage,
            normalization_rule_name="identity",  # scoring uses texts in the same normalisation as training
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            byte_fallback=False,
            max_sentence_length=1 << 20,  # bytes; SentencePiece ignores longer texts without a message
        )
        tokenizer = cls.of_model(model, normaliser=normaliser)
        if tokenizer.vocab_size < vocab_size:
            logger.warning(
                "%d texts are too few for a vocabulary of %d: it has %d labels",
                len(sentences),
                vocab_size,
                tokenizer.vocab_size,
            )
        return tokenizer

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any]) -> "SentencePieceTokenizer":
        """Returns the tokenizer that `save` wrote.

        Args:
            description: Content of its tokenizer.json.

        Raises:
            ValueError, LookupError, TypeError, RuntimeError, OSError: If the description or the model is invalid.
        """
        model = (folder / MODEL).read_bytes()
        tokenizer = cls.of_model(model, normaliser=description["normaliser"], blank_id=description["blank_id"])
        if list(tokenizer.symbols) != description["symbols"]:
            raise ValueError(f"the pieces of {MODEL} are not the symbols of {DESCRIPTION}")
        return tokenizer

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json` and `tokenizer.model` into a folder, which is created if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / MODEL, self.model)
        super().save(folder)

    def without_label(self, text: str) -> set[str]:
        """Returns the characters of the normalised text that have no piece.

        If the set is empty, decoding the text's ids returns the text as the model normalises it.

        Raises:
            RunError: If all characters have pieces but decoding does not return the text, which means that the model
                is damaged.
        """
        text = normalise(text, self.normaliser)
        try:
            ids = self.encode(text)
        except OutOfVocabulary as error:
            return set(error.missing)
        spelt = zip(self._processor.encode(text, out_type=str), ids, strict=True)
        if unknown := {piece for piece, i in spelt if i == self._processor.unk_id()}:
            return set("".join(unknown)) - {SPACE}
        back, expected = self.decode(ids), self._processor.normalize(text).replace(SPACE, " ").strip()
        if back != expected:
            raise RunError(
                f"the ids of {text!r} decode to {back!r}, expected {expected!r}: the model is damaged; train it again"
            )
        return set()

    @functools.cached_property
    def is_unigram(self) -> bool:
        """Whether the model is a unigram model, whose scores are log-probabilities."""
        return any(math.isfinite(score) and score % 1 for _, _, score in self.scored_pieces())

    def scored_pieces(self) -> list[tuple[str, int, float]]:
        """Returns piece, label and score of all pieces that spell characters; without `<unk>`, bytes and the blank."""
        model = self._processor
        return [
            (model.id_to_piece(i), i, model.get_score(i))
            for i in range(model.get_piece_size())
            if i != self.blank_id
            and not (model.is_unknown(i) or model.is_control(i) or model.is_unused(i) or model.is_byte(i))
        ]

    def spaced(self, text: str) -> str:
        """Returns a text as its pieces spell it, with SPACE for spaces and, by the model, before the first word."""
        return self._processor.normalize(text)

    def _num_letters(self, symbol: str) -> int:
        piece = self._processor.piece_to_id(symbol)
        if self._processor.is_byte(piece):  # <0xE4>; the first byte of a character stands for the character
            return int(not 0x80 <= int(symbol[3:5], 16) < 0xC0)
        return 1 if piece == self._processor.unk_id() else len(symbol)

    @property
    def unknown_id(self) -> int:
        return self._processor.unk_id()

    def _made_of(self) -> bytes:
        return self.model

    @functools.cached_property
    def _processor(self) -> SentencePieceProcessor:
        return SentencePieceProcessor(model_proto=self.model)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._processor.encode(text)
        if self.blank_id in ids:  # the text contains the blank's piece, or the blank is the unknown piece
            spelt = self._processor.encode(text, out_type=str)
            raise OutOfVocabulary(sorted({piece for piece, i in zip(spelt, ids, strict=True) if i == self.blank_id}))
        return ids

    def _known(self, text: str) -> list[int]:
        return [i for i in self._processor.encode(text) if i not in (self.blank_id, self._processor.unk_id())]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode(list(ids))

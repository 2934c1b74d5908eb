"""Subword units by SentencePiece, trained and kept in memory."""

import functools
import logging
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
Pieces = Literal["unigram", "bpe"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SentencePieceTokenizer(Tokenizer):
    """Pieces of a SentencePiece model. Characters that it has no piece for become its unknown piece, `<unk>`."""

    model: bytes = field(repr=False)
    """The serialised model."""

    kind: ClassVar[str] = "sentencepiece"

    @classmethod
    def of_model(cls, model: bytes, *, normaliser: str, blank_id: int | None = None) -> "SentencePieceTokenizer":
        """Of any model. `blank_id` is the piece that serves as the blank, where a model has one (icefall's `<blk>`);
        by default the blank is one more id, after all pieces.

        Raises: RuntimeError for bytes that are no model; IndexError for a piece that there is not.
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
        cls, texts: Iterable[str], *, vocab_size: int, pieces: Pieces, character_coverage: float, normaliser: str
    ) -> "SentencePieceTokenizer":
        """At most `vocab_size` symbols: `<unk>`, pieces of the normalised texts, and the blank, which comes last.

        Texts that are too few for that many pieces give fewer, which is logged. The same texts in the same order give
        the same bytes.

        Raises: UserError for no text, or more characters than `vocab_size` has room for.
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
            normalization_rule_name="identity",  # texts are normalised; scoring must see what was trained on
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            byte_fallback=False,
            max_sentence_length=1 << 20,  # bytes; longer ones would be left out in silence
        )
        tokenizer = cls.of_model(model, normaliser=normaliser)
        if tokenizer.vocab_size < vocab_size:
            logger.warning(
                "%d texts are too few for a vocabulary of %d: it has %d symbols",
                len(sentences), vocab_size, tokenizer.vocab_size,
            )  # fmt: skip
        return tokenizer

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any]) -> "SentencePieceTokenizer":
        """From what `save` wrote.

        Raises: ValueError, LookupError, TypeError, RuntimeError or OSError for what it cannot have written.
        """
        model = (folder / MODEL).read_bytes()
        tokenizer = cls.of_model(model, normaliser=description["normaliser"], blank_id=description["blank_id"])
        if list(tokenizer.symbols) != description["symbols"]:
            raise ValueError(f"{MODEL} has other symbols than {DESCRIPTION}")
        return tokenizer

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json` and `tokenizer.model` into a folder, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / MODEL, self.model)
        super().save(folder)

    def without_piece(self, text: str) -> set[str]:
        """What of a text has no piece; empty for a text that comes back from its ids.

        Raises: RunError for a text that has pieces and does not come back: the model is broken.
        """
        text = normalise(text, self.normaliser)
        try:
            ids = self.encode(text)
        except OutOfVocabulary as error:
            return set(error.missing)
        spelt = zip(self._processor.encode(text, out_type=str), ids, strict=True)
        if unknown := {piece for piece, i in spelt if i == self._processor.unk_id()}:
            return unknown
        back, expected = self.decode(ids), self._processor.normalize(text).replace("▁", " ").strip()
        if back != expected:
            raise RunError(f"{text!r} comes back as {back!r}, expected {expected!r}: the model is broken; train anew")
        return set()

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
        if self.blank_id in ids:  # a text that spells the blank's piece, or a blank that is the unknown piece
            spelt = self._processor.encode(text, out_type=str)
            raise OutOfVocabulary(sorted({piece for piece, i in zip(spelt, ids, strict=True) if i == self.blank_id}))
        return ids

    def _decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode(list(ids))

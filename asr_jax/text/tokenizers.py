"""Which tokenizer, how it is made from training texts, and how it comes back from a folder."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from asr_jax.core.errors import UserError, nearest
from asr_jax.text.base import DESCRIPTION, OutOfVocabulary, Tokenizer
from asr_jax.text.characters import CharacterTokenizer, IdTokenizer, NoTokenizer, WordTokenizer
from asr_jax.text.normalise import NORMALISERS, unknown_normaliser
from asr_jax.text.sentencepiece import Pieces, SentencePieceTokenizer
from asr_jax.text.vocabularies import read_vocabulary

__all__ = ["OutOfVocabulary", "Tokenizer", "TokenizerSettings", "given_tokenizer", "load_tokenizer", "train_tokenizer"]

HF_CONFIG = "config.json"
"""What a folder of a model of Hugging Face's has, and that of a tokenizer of ours has not."""
KINDS = {
    kind.kind: kind for kind in (CharacterTokenizer, WordTokenizer, SentencePieceTokenizer, IdTokenizer, NoTokenizer)
}


@dataclass(frozen=True)
class TokenizerSettings:
    """How text becomes labels. The tokenizer is made from the training texts and stored with the run."""

    kind: Literal["characters", "words", "sentencepiece", "ids", "none"] = "characters"
    """characters: a label for each character; words: one for each word of the training texts, and no other word can be
    recognised; sentencepiece: subword units found in the training texts; ids: the token ids that manifests bring; none:
    no labels, for pre-training on audio, whose manifests need no texts."""
    path: str = ""
    """A tokenizer that is there, instead of one made from the training texts: the folder of one, a SentencePiece
    .model, Hugging Face's vocab.json or tokenizer.json, fairseq's dict.ltr.txt, or a model whose tokenizer is kept: a
    .nemo file, a folder of Hugging Face's. With it, a manifest's token ids count before its texts."""
    blank_id: int = -1
    """Of ids and vocabularies: which id is the blank; -1: the vocabulary's own, or one more after all others."""
    normaliser: str = "lower.v1"
    """What is done to every text, in training and in scoring: none; lower.v1, upper.v1 (Unicode NFC, one case, single
    spaces); english_letters.v1 (a to z, the apostrophe, single spaces); and with the extra `text` ascii.v1 (any script
    in ASCII), english.v1 (english_letters.v1 with numbers and abbreviations written out), whisper_basic.v1 and
    whisper_english.v1 (as Whisper is scored)."""
    alphabet: str = ""
    """Characters kind: the characters in the order of their ids; empty: those of the training texts."""
    vocab_size: int = 500
    """SentencePiece: labels, the blank among them; fewer where the training texts do not have as many pieces."""
    pieces: Pieces = "unigram"
    """SentencePiece: how pieces are found."""
    character_coverage: float = 1.0
    """SentencePiece: share of the training texts' characters that get pieces, from 0.98 to 1; the rarest others become
    unknown."""

    def __post_init__(self) -> None:
        if self.normaliser not in NORMALISERS:
            raise ValueError(f"normaliser: {unknown_normaliser(self.normaliser)}")
        if len(set(self.alphabet)) != len(self.alphabet):
            raise ValueError(f"alphabet {self.alphabet!r}: expected each character once")
        if self.vocab_size < 4:
            raise ValueError(f"vocab_size {self.vocab_size}: expected at least 4 (blank, unknown and two pieces)")
        if not 0.98 <= self.character_coverage <= 1:  # what SentencePiece takes
            raise ValueError(f"character_coverage {self.character_coverage}: expected 0.98 to 1")
        if self.kind == "none" and self.path:
            raise ValueError(f"kind is none, no labels, and path is {self.path}: expected one of the two")
        if self.blank_id >= 0 and not self.takes_ids:
            raise ValueError(f"blank_id {self.blank_id}: expected -1 where the tokenizer is made from texts")

    @property
    def blank(self) -> int | None:
        """The id that is the blank; None for the vocabulary's own."""
        return None if self.blank_id < 0 else self.blank_id

    @property
    def takes_ids(self) -> bool:
        """Whether token ids of a manifest can be this tokenizer's."""
        return self.kind == "ids" or bool(self.path)


def given_tokenizer(settings: TokenizerSettings) -> Tokenizer:
    """The tokenizer of `settings.path`: the folder of one, or a vocabulary of another system.

    Raises: UserError where there is none.
    """
    path = Path(settings.path)
    if path.is_dir() and not (path / HF_CONFIG).is_file():
        return load_tokenizer(path)
    return read_vocabulary(path, normaliser=settings.normaliser, blank_id=settings.blank)


def train_tokenizer(settings: TokenizerSettings, texts: Iterable[str], *, largest_id: int = 0) -> Tokenizer:
    """A tokenizer made from the training texts; nothing is written. `largest_id`: of the token ids that manifests
    bring, which the kind `ids` is made from.

    Raises: UserError where texts and settings do not go together.
    """
    if settings.kind == "none":
        return NoTokenizer()
    if settings.kind == "ids":
        return IdTokenizer.up_to(largest_id, blank_id=settings.blank)
    if settings.kind == "characters":
        return CharacterTokenizer.train(texts, alphabet=settings.alphabet, normaliser=settings.normaliser)
    if settings.kind == "words":
        return WordTokenizer.train(texts, normaliser=settings.normaliser)
    return SentencePieceTokenizer.train(
        texts,
        vocab_size=settings.vocab_size,
        pieces=settings.pieces,
        character_coverage=settings.character_coverage,
        normaliser=settings.normaliser,
    )


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that `Tokenizer.save` wrote into a folder.

    Raises: UserError for a folder that is not there, is not a tokenizer's, or is damaged.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise UserError(f"{folder} has no {DESCRIPTION}: expected a folder that a tokenizer was saved in")
    try:
        description: Any = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); take the folder from a backup or make it anew") from error
    kind = description.get("kind") if isinstance(description, dict) else None
    if kind not in KINDS:
        hint = nearest(kind, KINDS) if isinstance(kind, str) else ""
        raise UserError(f"{path} has the kind {kind!r}: expected one of {', '.join(KINDS)}{hint}")
    if description.get("normaliser") not in NORMALISERS:
        raise UserError(f"{path}: {unknown_normaliser(str(description.get('normaliser')))}")
    try:
        tokenizer = KINDS[kind].load(folder, description)
    except (ValueError, LookupError, TypeError, RuntimeError, OSError) as error:
        raise UserError(f"{folder} is damaged ({error}); take it from a backup or make it anew") from error
    if tokenizer.blank_id != description.get("blank_id"):
        raise UserError(f"{path} has blank_id {description.get('blank_id')!r} and the blank at {tokenizer.blank_id}")
    return tokenizer

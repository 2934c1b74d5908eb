"""Settings of tokenizers, and functions that train and load them."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from asr_jax.core.errors import UserError, nearest
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import Share, between, settings
from asr_jax.core.text_files import read_text
from asr_jax.text.base import DESCRIPTION, OutOfVocabulary, Tokenizer
from asr_jax.text.characters import CharacterTokenizer, IdTokenizer, NoTokenizer, WordTokenizer
from asr_jax.text.mixed import MixedTokenizer
from asr_jax.text.normalise import unknown_normaliser
from asr_jax.text.sentencepiece import Pieces, SentencePieceTokenizer
from asr_jax.text.vocabularies import read_vocabulary

__all__ = ["OutOfVocabulary", "Tokenizer", "TokenizerSettings", "given_tokenizer", "load_tokenizer", "train_tokenizer"]

HF_CONFIG = "config.json"
"""File of Hugging Face's model folders, which the folders of this package's tokenizers do not have."""
KINDS = {
    kind.kind: kind
    for kind in (CharacterTokenizer, WordTokenizer, MixedTokenizer, SentencePieceTokenizer, IdTokenizer, NoTokenizer)
}


@settings
class TokenizerSettings:
    """Settings of the tokenizer, which is trained on the training texts and stored with the run."""

    kind: Literal["characters", "words", "mixed", "sentencepiece", "ids", "none"] = "characters"
    """Kind of labels. characters: one label per character; words: one label per word of the training texts, other words
    cannot be recognised; mixed: one label per word of letters and per other character, as in FunASR's vocabularies of
    Chinese and English; sentencepiece: pieces trained on the training texts; ids: the token ids in manifests; none: no
    labels, for pre-training on audio, whose manifests need no texts."""
    path: UserPath = ""
    """Path of an existing tokenizer, which is used instead of training one: the folder of a tokenizer, a SentencePiece
    .model, Hugging Face's vocab.json or tokenizer.json, fairseq's dict.ltr.txt, or a model with a tokenizer (a .nemo
    file or a Hugging Face folder). With it, token ids in a manifest take precedence over texts. Empty: the tokenizer is
    trained."""
    blank_id: Annotated[int, between(-1)] = -1
    """Id of the blank in vocabularies of `path` and of the kind ids. -1: the vocabulary's own blank, otherwise one more
    id after all others."""
    normaliser: str = "lower.v1"
    """Normaliser of all texts, in training and in scoring: none; lower.v1, upper.v1 (Unicode NFC, one case, single
    spaces); words.v1 (NFKC, lower case, no punctuation but apostrophes in words, no spaces between Han characters);
    english_letters.v1 (a to z, the apostrophe, single spaces); with the extra `text` also ascii.v1 (all
    scripts transliterated to ASCII), english.v1 (english_letters.v1 with numbers and abbreviations spelled out),
    whisper_basic.v1 and whisper_english.v1 (Whisper's normalisers for scoring). no_tags.v1 removes
    tags such as <silence>, and replace:OLD=NEW replaces a text (%2B is + and %3D is =). Names joined by + are applied
    in this order, such as no_tags.v1+replace:&=and+english.v1. Invisible characters are always removed."""
    alphabet: str = ""
    """Characters of the kind characters, in the order of their ids. Empty: the characters of the training texts."""
    vocab_size: Annotated[int, between(4)] = 500
    """Number of labels of the kind sentencepiece, including the blank, unlike --vocab-size of asr_jax.tokenizer: at
    least the blank, the unknown piece and two others. It is smaller if the training texts do not have as many
    pieces."""
    pieces: Pieces = "unigram"
    """SentencePiece's training algorithm."""
    sampling: Share = 0.0
    """Probability that a word of a training text is segmented into unigram pieces at random, in each epoch differently,
    from 0 to 1. CAIMAN-ASR uses 0.05."""

    def problems(self) -> Iterator[str]:
        if unknown := unknown_normaliser(self.normaliser):
            yield f"normaliser: {unknown}"
        if len(set(self.alphabet)) != len(self.alphabet):
            yield f"alphabet is {self.alphabet!r}: expected each character once"
        if self.kind == "none" and self.path:
            yield f"kind is none (no labels), but path is {self.path}: expected only one of the two"
        if self.blank_id >= 0 and not self.takes_ids:
            yield f"blank_id is {self.blank_id}: expected -1 if the tokenizer is trained on texts"

    @property
    def blank(self) -> int | None:
        """Id of the blank; None for the vocabulary's own blank."""
        return None if self.blank_id < 0 else self.blank_id

    @property
    def takes_ids(self) -> bool:
        """Whether token ids in a manifest can be ids of this tokenizer."""
        return self.kind == "ids" or bool(self.path)


def given_tokenizer(settings: TokenizerSettings) -> Tokenizer:
    """Loads the tokenizer of `settings.path`: the folder of a tokenizer, or a vocabulary of another system.

    Raises:
        UserError: If the path has no valid tokenizer.
    """
    path = Path(settings.path)
    if path.is_dir() and not (path / HF_CONFIG).is_file():
        return load_tokenizer(path)
    return read_vocabulary(path, normaliser=settings.normaliser, blank_id=settings.blank)


def train_tokenizer(settings: TokenizerSettings, texts: Iterable[str], *, largest_id: int = 0) -> Tokenizer:
    """Trains a tokenizer without writing it.

    Args:
        largest_id: Largest token id in the manifests, for the kind ids.

    Raises:
        UserError: If the texts and the settings are incompatible.
    """
    if settings.kind == "none":
        return NoTokenizer()
    if settings.kind == "ids":
        return IdTokenizer.up_to(largest_id, blank_id=settings.blank)
    if settings.kind != "sentencepiece":
        listed = {"characters": CharacterTokenizer, "mixed": MixedTokenizer, "words": WordTokenizer}[settings.kind]
        alphabet = settings.alphabet if settings.kind == "characters" else ""
        return listed.train(texts, alphabet=alphabet, normaliser=settings.normaliser)
    return SentencePieceTokenizer.train(
        texts,
        vocab_size=settings.vocab_size,
        pieces=settings.pieces,
        normaliser=settings.normaliser,
    )


def load_tokenizer(folder: Path) -> Tokenizer:
    """Loads the tokenizer that `Tokenizer.save` wrote into a folder.

    Raises:
        UserError: If the folder is missing, is not that of a tokenizer, or is damaged.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise UserError(f"{folder} has no {DESCRIPTION}: expected the folder of a saved tokenizer")
    try:
        description: Any = json.loads(read_text(path))
    except ValueError as error:
        raise UserError(
            f"{path} is not JSON ({error}); restore the folder from a backup, or save the tokenizer again"
        ) from error
    kind = description.get("kind") if isinstance(description, dict) else None
    if kind not in KINDS:
        hint = nearest(kind, KINDS) if isinstance(kind, str) else ""
        raise UserError(f"{path} has the kind {kind!r}: expected one of {', '.join(KINDS)}{hint}")
    if unknown := unknown_normaliser(str(description.get("normaliser"))):
        raise UserError(f"{path}: {unknown}")
    try:
        tokenizer = KINDS[kind].load(folder, description)
    except (ValueError, LookupError, TypeError, RuntimeError, OSError) as error:
        raise UserError(
            f"{folder} is damaged ({error}); restore it from a backup, or save the tokenizer again"
        ) from error
    if tokenizer.blank_id != description.get("blank_id"):
        raise UserError(
            f"{path} has blank_id {description.get('blank_id')!r}, but the blank in its symbols has the id "
            f"{tokenizer.blank_id}; restore the folder from a backup, or save the tokenizer again"
        )
    return tokenizer

"""Vocabularies that other systems wrote: fairseq's dict.ltr.txt, Hugging Face's vocab.json, SentencePiece's .model.

fairseq numbers `<s> <pad> </s> <unk>` 0 to 3 and the file's symbols from 4 on; its CTC takes `<s>` for the blank.
wav2vec 2.0 of Hugging Face takes `<pad>` (or `[PAD]`). Both write `|` for the space. Specials are symbols of several
characters, which no text encodes to: an unknown character is an error, not an `<unk>`. fairseq ends its letters with
one more `|`, which texts here do not.
"""

import json
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

from asr_jax.core.errors import UserError
from asr_jax.text.base import Tokenizer
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.normalise import normalise
from asr_jax.text.sentencepiece import SentencePieceTokenizer

BOUNDARY = "|"
FAIRSEQ_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
HUGGINGFACE_BLANKS = ("<pad>", "[PAD]", "<blank>", "<blk>")
BLANK_PIECES = ("<blk>", "<blank>")
"""What icefall and others reserve for the blank inside a SentencePiece model."""


def read_vocabulary(path: Path, *, normaliser: str, blank_id: int | None) -> Tokenizer:
    """A tokenizer of a vocabulary file. `blank_id`: None for the file's own: fairseq's `<s>`, Hugging Face's `<pad>` or
    `[PAD]`, a SentencePiece model's `<blk>`; one more id after all others where there is none.

    Raises: UserError for a file that is missing or not a vocabulary, a blank that there is not, and a normaliser that
    leaves none of its letters.
    """
    try:
        symbols, blank = _read(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected a .model, a vocab.json or a dict.ltr.txt") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} is not a vocabulary: {error}") from None
    blank = blank if blank_id is None else blank_id
    if blank > len(symbols):
        raise UserError(f"blank_id {blank}: {path} has {len(symbols)} symbols; expected at most {len(symbols)}")
    if path.suffix == ".model":
        return SentencePieceTokenizer.of_model(path.read_bytes(), normaliser=normaliser, blank_id=blank)
    _check_letters(path, symbols, normaliser)
    listed: list[str | None] = [*symbols[:blank], None, *symbols[blank + 1 :]]
    if len(set(listed)) != len(listed):
        twice = sorted({str(symbol) for symbol in listed if listed.count(symbol) > 1})
        raise UserError(f"{path} has a symbol twice: {', '.join(map(repr, twice))} ({BOUNDARY} is the space)")
    return CharacterTokenizer(symbols=tuple(listed), normaliser=normaliser)


def _read(path: Path) -> tuple[list[str], int]:
    """The symbols of a file, and which is the blank."""
    if path.suffix == ".vocab":
        raise ValueError(f"pieces without their model; give {path.with_suffix('.model').name} instead")
    if path.suffix == ".model":
        return _sentencepiece(path)
    return _huggingface(path) if path.suffix == ".json" else _fairseq(path)


def _sentencepiece(path: Path) -> tuple[list[str], int]:
    model = path.read_bytes()
    if not model:  # which SentencePiece takes without a word
        raise ValueError("it is empty")
    processor = SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    return pieces, next((pieces.index(name) for name in BLANK_PIECES if name in pieces), len(pieces))


def _fairseq(path: Path) -> tuple[list[str], int]:
    """`symbol count` per line; ids 0 to 3 are specials that the file does not name."""
    symbols = list(FAIRSEQ_SPECIALS)
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        symbol, _, count = line.strip().rpartition(" ")
        if not symbol or not count.lstrip("-").isdecimal():
            raise ValueError(f"line {number} is {line!r}, expected a symbol and how often it comes")
        symbols.append(_character(symbol))
    return symbols, 0


def _huggingface(path: Path) -> tuple[list[str], int]:
    """An object from symbol to id."""
    ids: Any = json.loads(path.read_text(encoding="utf-8-sig"))
    if not isinstance(ids, dict) or set(map(repr, ids.values())) != set(map(repr, range(len(ids)))):
        raise ValueError("expected an object from each symbol to its id, from 0 on, each once")
    symbols = sorted(ids, key=ids.__getitem__)
    blank = next((ids[name] for name in HUGGINGFACE_BLANKS if name in ids), len(symbols))
    return [_character(symbol) for symbol in symbols], blank


def _character(symbol: str) -> str:
    return " " if symbol == BOUNDARY else symbol


def _check_letters(path: Path, symbols: list[str], normaliser: str) -> None:
    """Raises: UserError where no text that was normalised has a letter of the vocabulary: the case is another."""
    letters = [symbol for symbol in symbols if len(symbol) == 1 and symbol.isalpha()]
    if letters and not any(normalise(letter, normaliser) == letter for letter in letters):
        raise UserError(
            f"normaliser {normaliser} leaves no letter of {path} ({' '.join(letters[:5])} …); expected one whose texts "
            "it can spell, such as upper.v1 for capitals"
        )

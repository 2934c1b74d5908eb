"""Vocabularies that other systems wrote: fairseq's dict.ltr.txt, Hugging Face's vocab.json and tokenizer.json,
SentencePiece's .model, and those within a .nemo file or a folder of Hugging Face's.

fairseq numbers `<s> <pad> </s> <unk>` 0 to 3 and the file's symbols from 4 on; its CTC takes `<s>` for the blank.
wav2vec 2.0 of Hugging Face takes `<pad>` (or `[PAD]`). Both write `|` for the space. Specials are symbols of several
characters, which no text encodes to: an unknown character is an error, not an `<unk>`. fairseq ends its letters with
one more `|`, which texts here do not. NeMo's blank comes after all its symbols.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import yaml
from sentencepiece import SentencePieceProcessor

from asr_jax.core.errors import UserError
from asr_jax.text.base import Tokenizer
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.huggingface import BLANKS as HUGGINGFACE_BLANKS
from asr_jax.text.huggingface import sentencepiece_model
from asr_jax.text.normalise import normalise
from asr_jax.text.sentencepiece import SentencePieceTokenizer

BOUNDARY = "|"
FAIRSEQ_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
BLANK_PIECES = ("<blk>", "<blank>")
"""What icefall and others reserve for the blank inside a SentencePiece model."""
IN_FOLDER = ("tokenizer.model", "vocab.json", "tokenizer.json")
"""What of a folder of Hugging Face's is read, the first that it has."""
NEMO = ".nemo"
NEMO_CONFIG = "model_config.yaml"


def read_vocabulary(path: Path, *, normaliser: str, blank_id: int | None) -> Tokenizer:
    """A tokenizer of a vocabulary file. `blank_id`: None for the file's own: fairseq's `<s>`, Hugging Face's `<pad>` or
    `[PAD]`, a SentencePiece model's `<blk>`; one more id after all others where there is none.

    Raises: UserError for a file that is missing or not a vocabulary, a blank that there is not, and a normaliser that
    leaves none of its letters.
    """
    path = next((path / name for name in IN_FOLDER if (path / name).is_file()), path)
    try:
        model, symbols, blank = _read(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected a .model, a vocab.json or a dict.ltr.txt") from None
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, tarfile.TarError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not a vocabulary: {error}") from None
    blank = blank if blank_id is None else blank_id
    if blank > len(symbols):
        raise UserError(f"blank_id {blank}: {path} has {len(symbols)} symbols; expected at most {len(symbols)}")
    if model:
        return SentencePieceTokenizer.of_model(model, normaliser=normaliser, blank_id=blank)
    _check_letters(path, symbols, normaliser)
    listed: list[str | None] = [*symbols[:blank], None, *symbols[blank + 1 :]]
    if len(set(listed)) != len(listed):
        twice = sorted({str(symbol) for symbol in listed if listed.count(symbol) > 1})
        raise UserError(f"{path} has a symbol twice: {', '.join(map(repr, twice))} ({BOUNDARY} is the space)")
    return CharacterTokenizer(symbols=tuple(listed), normaliser=normaliser)


def _read(path: Path) -> tuple[bytes, list[str], int]:
    """The SentencePiece model of a file, empty where it has none, the symbols, and which is the blank."""
    if path.suffix == ".vocab":
        raise ValueError(f"pieces without their model; give {path.with_suffix('.model').name} instead")
    if path.suffix == ".model":
        return _sentencepiece(path.read_bytes())
    if path.suffix == NEMO:
        return _nemo(path)
    return _huggingface(path) if path.suffix == ".json" else _fairseq(path)


def _sentencepiece(model: bytes, blank: int | None = None) -> tuple[bytes, list[str], int]:
    if not model:  # which SentencePiece takes without a word
        raise ValueError("it is empty")
    processor = SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    if blank is None:
        blank = next((pieces.index(name) for name in BLANK_PIECES if name in pieces), len(pieces))
    return model, pieces, blank


def _nemo(path: Path) -> tuple[bytes, list[str], int]:
    """The tokenizer.model in it, or the characters that its settings list."""
    with tarfile.open(path) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames() if name.endswith((".model", ".yaml"))}
        contents = {Path(name).name: file.read() for name, file in files.items() if file}
    models = [content for name, content in contents.items() if name.endswith(".model")]
    if len(models) > 1:
        raise ValueError(f"it has {len(models)} SentencePiece models, expected one")
    if models:
        return _sentencepiece(models[0])
    listed = yaml.safe_load(contents[NEMO_CONFIG])["decoder"]["vocabulary"]
    if any(not isinstance(symbol, str) or len(symbol) != 1 for symbol in listed):
        raise ValueError("it has no SentencePiece model, and what its decoder.vocabulary lists are not characters")
    return b"", listed, len(listed)


def _fairseq(path: Path) -> tuple[bytes, list[str], int]:
    """`symbol count` per line; ids 0 to 3 are specials that the file does not name."""
    symbols = list(FAIRSEQ_SPECIALS)
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        symbol, _, count = line.strip().rpartition(" ")
        if not symbol or not count.lstrip("-").isdecimal():
            raise ValueError(f"line {number} is {line!r}, expected a symbol and how often it comes")
        symbols.append(_character(symbol))
    return b"", symbols, 0


def _huggingface(path: Path) -> tuple[bytes, list[str], int]:
    """An object from symbol to id, or a tokenizer.json."""
    ids: Any = json.loads(path.read_text(encoding="utf-8-sig"))
    if isinstance(ids, dict) and isinstance(ids.get("model"), dict):
        return _sentencepiece(*sentencepiece_model(ids))
    if not isinstance(ids, dict) or set(map(repr, ids.values())) != set(map(repr, range(len(ids)))):
        raise ValueError("expected an object from each symbol to its id, from 0 on, each once")
    symbols = sorted(ids, key=ids.__getitem__)
    blank = next((ids[name] for name in HUGGINGFACE_BLANKS if name in ids), len(symbols))
    return b"", [_character(symbol) for symbol in symbols], blank


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

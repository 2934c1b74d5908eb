"""Reads vocabularies of other systems.

They are fairseq's dict.ltr.txt, icefall's tokens.txt of characters, Hugging Face's vocab.json and tokenizer.json,
SentencePiece's .model, and the vocabularies in .nemo files and in Hugging Face folders.

fairseq numbers `<s> <pad> </s> <unk>` 0 to 3 and the file's symbols from 4 on; its CTC uses `<s>` as the blank.
Hugging Face's wav2vec 2.0 uses `<pad>` (or `[PAD]`). Both use `|` as the space. Special symbols have several characters
and are never part of an encoded text: an unknown character is an error, not an `<unk>`. fairseq's label sequences end
with an additional `|`, which those of this package do not. NeMo's blank is the id after all symbols.
"""

import json
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from sentencepiece import SentencePieceProcessor

from asr_jax.core.errors import UserError
from asr_jax.core.text_files import read_text, split_lines
from asr_jax.text.base import Tokenizer
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.huggingface import labels_beside, sentencepiece_model
from asr_jax.text.normalise import normalise
from asr_jax.text.sentencepiece import SentencePieceTokenizer

BOUNDARY = "|"
OVERWRITE = "#fairseq:overwrite"
"""End of lines of a fairseq dictionary that repeat a symbol. A model then has two labels with the same text."""
BLANKS = " \t"
"""Characters between the fields of a line. Other white space, such as U+3000, may be a symbol."""
FAIRSEQ_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
BLANK_PIECES = ("<blk>", "<blank>")
"""Pieces that icefall and others reserve for the blank in a SentencePiece model."""
IN_FOLDER = ("tokenizer.model", "vocab.json", "tokenizer.json")
"""Files of a Hugging Face folder that contain a vocabulary; the first one that exists is read."""
SPECIAL_LABEL = r"<.+>|\[[A-Za-z]+\]|#\d+"
"""Labels that are no text: `<unk>`, `[UNK]`, and the disambiguation symbols of Kaldi's tables."""
NEMO = ".nemo"
NEMO_CONFIG = "model_config.yaml"


def read_vocabulary(path: Path, *, normaliser: str, blank_id: int | None) -> Tokenizer:
    """Creates a tokenizer from a vocabulary file.

    Args:
        path: Path of the file or of a Hugging Face folder.
        blank_id: Id of the blank. None: the file's own blank (fairseq's `<s>`, Hugging Face's `<pad>` or `[PAD]`, a
            SentencePiece model's `<blk>` or `<blank>`), otherwise one more id after all others.

    Raises:
        UserError: If the file is missing or is not a vocabulary, `blank_id` exceeds its ids, or normalised texts cannot
            contain any of its letters.
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
    return _listed(path, symbols, blank, normaliser)


def fairseq_vocabulary(path: Path, text: str) -> Tokenizer:
    """Creates a tokenizer without a normaliser from the text of a dict.ltr.txt.

    Raises:
        UserError: If the text has other lines.
    """
    try:
        _, symbols, blank = _fairseq(text)
    except ValueError as error:
        raise UserError(f"{path} contains no dictionary of fairseq: {error}") from None
    return _listed(path, symbols, blank, "none")


def _listed(path: Path, symbols: list[str], blank: int, normaliser: str) -> Tokenizer:
    listed: list[str | None] = [*symbols[:blank], None, *symbols[blank + 1 :]]
    if len(set(listed)) != len(listed):
        twice = sorted({str(symbol) for symbol in listed if listed.count(symbol) > 1})
        raise UserError(
            f"{path} has a symbol twice: {', '.join(map(repr, twice))} ({BOUNDARY} is the space); expected each once"
        )
    return CharacterTokenizer(symbols=tuple(listed), normaliser=normaliser)


def normaliser_of(symbols: Iterable[str | None]) -> str:
    """Returns the normaliser that fits the case of a vocabulary's letters.

    This is lower.v1 for letters of lower case (or without case), upper.v1 for letters of upper case, and none for both,
    because a model with both writes texts with capital letters.

    Args:
        symbols: Labels; special ones, such as `<unk>` and `[UNK]`, do not count.
    """
    letters = "".join(symbol for symbol in symbols if symbol and not re.fullmatch(SPECIAL_LABEL, symbol))
    has_lower, has_upper = any(map(str.islower, letters)), any(map(str.isupper, letters))
    return "none" if has_lower and has_upper else "upper.v1" if has_upper else "lower.v1"


def _read(path: Path) -> tuple[bytes, list[str], int]:
    """Returns the SentencePiece model of a file (empty if it has none), its symbols, and the id of its blank."""
    if path.suffix == ".vocab":
        raise ValueError(f"it lists pieces without their model; use {path.with_suffix('.model').name} instead")
    if path.suffix == ".model":
        return _sentencepiece(path.read_bytes())
    if path.suffix == NEMO:
        return _nemo(path)
    return _huggingface(path) if path.suffix == ".json" else _lines(read_text(path))


def _sentencepiece(model: bytes, blank: int | None = None) -> tuple[bytes, list[str], int]:
    if not model:  # SentencePiece accepts an empty model without an error
        raise ValueError("it is empty")
    processor = SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    if blank is None:
        blank = next((pieces.index(name) for name in BLANK_PIECES if name in pieces), len(pieces))
    return model, pieces, blank


def _nemo(path: Path) -> tuple[bytes, list[str], int]:
    """Reads the SentencePiece model of a .nemo file, or the characters that its settings list."""
    with tarfile.open(path) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames() if name.endswith((".model", ".yaml"))}
        contents = {Path(name).name: file.read() for name, file in files.items() if file}
    models = [content for name, content in contents.items() if name.endswith(".model")]
    if len(models) > 1:
        raise ValueError(f"it has {len(models)} SentencePiece models, expected one")
    if models:
        return _sentencepiece(models[0])
    config = yaml.safe_load(contents[NEMO_CONFIG])
    # Hybrid models have the settings of their CTC decoder in `aux_ctc`.
    listed = config.get("aux_ctc", config)["decoder"]["vocabulary"]
    if any(not isinstance(symbol, str) or len(symbol) != 1 for symbol in listed):
        raise ValueError("it has no SentencePiece model, and its decoder.vocabulary does not list characters only")
    return b"", listed, len(listed)


def _lines(text: str) -> tuple[bytes, list[str], int]:
    """Reads lines of a symbol and a number: icefall's table of ids from 0 on, or fairseq's dictionary of counts."""
    parts = [line.strip(BLANKS).rpartition(" ") for line in split_lines(text)]
    symbols, numbers = [symbol.strip(BLANKS) for symbol, _, _ in parts], [number for _, _, number in parts]
    is_table = numbers == [str(number) for number in range(len(parts))] and symbols[:1] != []
    if not is_table or symbols[0] not in (*BLANK_PIECES, "<eps>"):
        return _fairseq(text)
    while re.fullmatch(r"#\d+", symbols[-1]):  # symbols of a graph, not of the model
        symbols.pop()
    if pieces := [symbol for symbol in symbols if len(symbol) > 1 and not re.fullmatch(SPECIAL_LABEL, symbol)]:
        raise ValueError(
            f"it lists pieces such as {pieces[0]} without their model; use the bpe.model beside it instead"
        )
    return b"", [" " if symbol == "▁" else symbol for symbol in symbols], 0


def _fairseq(text: str) -> tuple[bytes, list[str], int]:
    """Reads lines of `symbol count`; ids 0 to 3 are special symbols, which are not in the file."""
    places = dict.fromkeys(FAIRSEQ_SPECIALS, "among the special symbols")
    for number, line in enumerate(split_lines(text), 1):
        symbol, _, count = line.strip(BLANKS).removesuffix(OVERWRITE).rstrip(BLANKS).rpartition(" ")
        if not symbol or not count.lstrip("-").isdecimal():
            raise ValueError(f"line {number} is {line!r}, expected a symbol and its count")
        if symbol in places:  # as in fairseq, unless the line says that it overwrites the symbol
            raise ValueError(
                f"line {number} has the symbol {symbol!r}, which is {places[symbol]} already: expected each symbol "
                "once; the lines number the labels, so use the dictionary that the model was trained with"
            )
        places[symbol] = f"in line {number}"
    return b"", [" " if symbol == BOUNDARY else symbol for symbol in places], 0


def _huggingface(path: Path) -> tuple[bytes, list[str], int]:
    """Reads a vocab.json, which is an object from symbol to id, or a tokenizer.json."""
    ids: Any = json.loads(read_text(path))
    if isinstance(ids, dict) and isinstance(ids.get("model"), dict):
        return _sentencepiece(*sentencepiece_model(ids))
    if not isinstance(ids, dict):
        raise ValueError("expected an object from symbols to ids that has each id from 0 on exactly once")
    return b"", *labels_beside(path, ids)


def _check_letters(path: Path, symbols: list[str], normaliser: str) -> None:
    """Checks that normalised texts can contain letters of the vocabulary, which they cannot if the case differs."""
    letters = [symbol for symbol in symbols if len(symbol) == 1 and symbol.isalpha()]
    if letters and not any(normalise(letter, normaliser) == letter for letter in letters):
        raise UserError(
            f"normaliser {normaliser} returns no letter of {path} ({' '.join(letters[:5])} …); expected one that "
            "returns letters of the vocabulary, such as upper.v1 for capitals"
        )

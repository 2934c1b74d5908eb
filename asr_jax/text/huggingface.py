"""Reads Hugging Face's tokenizers: tokenizer.json of BPE and Unigram, vocab.json and the settings beside it.

BPE and Unigram are converted to SentencePiece models.

Hugging Face's BPE merges the pair of pieces whose merge is listed first; SentencePiece's BPE merges the pair whose
piece has the best score. Both are equal if all merges that result in a piece are listed, as in tokenizers that were
converted from SentencePiece.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from asr_jax.core.text_files import read_text

sentencepiece: Any = sentencepiece_model_pb2  # Any, because its classes are created at import
PIECE = sentencepiece.ModelProto.SentencePiece
BLANKS = ("<pad>", "[PAD]", "<blank>", "<blk>")
BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
"""Pieces of the bytes of characters that have no piece."""
SETTINGS, ADDED, SPECIAL = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"
"""Files beside vocab.json, which may be missing."""


def sentencepiece_model(tokenizer: Mapping[str, Any]) -> tuple[bytes, int]:
    """Converts the content of a tokenizer.json to a SentencePiece model.

    Returns:
        The serialised model, and the id of the blank: the padding token, or one more id after all pieces.

    Raises:
        ValueError: If SentencePiece cannot represent the tokenizer, or the content is invalid.
    """
    model = tokenizer.get("model")
    if not isinstance(model, Mapping) or model.get("type") not in ("BPE", "Unigram"):
        raise ValueError(f"its model has the type {model and model.get('type')}, expected BPE or Unigram")
    scores = _bpe(model) if model["type"] == "BPE" else [(piece, score) for piece, score in model["vocab"]]
    unknown = model.get("unk_token") if model["type"] == "BPE" else scores[model["unk_id"]][0]
    if unknown not in (piece for piece, _ in scores):
        raise ValueError(f"its unknown token is {unknown!r}, expected a token of its vocabulary")
    special = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
    pieces = {piece for piece, _ in scores}
    # transformers' converter of NeMo's files sets the flag for vocabularies without byte pieces too.
    has_bytes = bool(model.get("byte_fallback")) and pieces >= BYTES
    proto = sentencepiece.ModelProto()
    for number, (piece, score) in enumerate(scores):
        kind = PIECE.NORMAL
        if piece == unknown:
            kind, proto.trainer_spec.unk_id = PIECE.UNKNOWN, number
        elif piece in special:
            kind = PIECE.CONTROL
        elif has_bytes and piece in BYTES:
            kind = PIECE.BYTE
        proto.pieces.add(piece=piece, score=score, type=kind)
    of_type = proto.trainer_spec.BPE if model["type"] == "BPE" else proto.trainer_spec.UNIGRAM
    proto.trainer_spec.model_type, proto.trainer_spec.unk_piece = of_type, unknown
    proto.trainer_spec.byte_fallback = has_bytes
    proto.trainer_spec.unk_surface = unknown  # as Hugging Face decodes it
    proto.trainer_spec.bos_id = proto.trainer_spec.eos_id = proto.trainer_spec.pad_id = -1
    proto.normalizer_spec.name = "identity"  # texts are normalised before they are encoded
    proto.normalizer_spec.add_dummy_prefix = "'prepend_scheme': 'never'" not in str(tokenizer.get("pre_tokenizer"))
    blank = next((special[name] for name in BLANKS if name in special), len(scores))
    if blank > len(scores):
        raise ValueError(f"its blank has the id {blank}, expected at most the number of pieces, {len(scores)}")
    return proto.SerializeToString(), blank


def _bpe(model: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Returns pieces in the order of their ids, with scores that decrease in the order of their first merges."""
    vocabulary: Mapping[str, int] = model["vocab"]
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[piece] for piece in pieces] != [*range(len(pieces))]:
        raise ValueError("its vocabulary has gaps, expected consecutive ids from 0")
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    first: dict[str, int] = {}
    for rank, (left, right) in enumerate(pairs):
        first.setdefault(left + right, rank)
    return [(piece, -float(first.get(piece, len(first) + len(pieces)))) for piece in pieces]


def labels_beside(vocabulary: Path, ids: Mapping[str, Any]) -> tuple[list[str], int]:
    """Returns the labels of a `Wav2Vec2CTCTokenizer` as texts, and the id of its blank.

    The files beside vocab.json add tokens behind the vocabulary's own, name the padding token and the word delimiter,
    and state whether texts are in lower case.

    Returns:
        The text of each label: a space for the word delimiter, and lower-case labels if the tokenizer returns texts in
        lower case. The blank is the padding token, or one more id after all labels.

    Raises:
        ValueError: If the ids are not those from 0 on, each exactly once.
    """
    settings, special = _beside(vocabulary, SETTINGS), _beside(vocabulary, SPECIAL)
    listed = {entry["content"]: int(number) for number, entry in settings.get("added_tokens_decoder", {}).items()}
    ids = {
        **ids,
        **{name: number for name, number in {**_beside(vocabulary, ADDED), **listed}.items() if name not in ids},
    }
    if set(map(repr, ids.values())) != set(map(repr, range(len(ids)))):
        raise ValueError("expected an object from symbols to ids that has each id from 0 on exactly once")
    labels = sorted(ids, key=ids.__getitem__)
    named = [_content(settings.get("pad_token")), _content(special.get("pad_token")), *BLANKS]
    blank = next((ids[name] for name in named if name in ids), len(labels))
    delimiter = settings.get("word_delimiter_token", "|")
    texts = [" " if label == delimiter else label for label in labels]
    return [text.lower() for text in texts] if settings.get("do_lower_case") else texts, blank


def _beside(vocabulary: Path, name: str) -> dict[str, Any]:
    path = vocabulary.with_name(name)
    found = json.loads(read_text(path)) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _content(token: Any) -> str:
    """Returns the text of a token, which files contain as a string or as an object."""
    return str(token.get("content", "") if isinstance(token, Mapping) else token or "")

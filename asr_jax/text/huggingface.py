"""Converts Hugging Face's tokenizer.json of BPE and Unigram tokenizers to SentencePiece models.

Hugging Face's BPE merges the pair of pieces whose merge is listed first; SentencePiece's BPE merges the pair whose
piece has the best score. Both are equal if all merges that result in a piece are listed, as in tokenizers that were
converted from SentencePiece.
"""

from collections.abc import Mapping
from typing import Any

from sentencepiece import sentencepiece_model_pb2

sentencepiece: Any = sentencepiece_model_pb2  # Any, because its classes are created at import
PIECE = sentencepiece.ModelProto.SentencePiece
BLANKS = ("<pad>", "[PAD]", "<blank>", "<blk>")


def sentencepiece_model(tokenizer: Mapping[str, Any]) -> tuple[bytes, int]:
    """Converts the content of a tokenizer.json to a SentencePiece model.

    Args:
        tokenizer: Content of the file.

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
    proto = sentencepiece.ModelProto()
    for number, (piece, score) in enumerate(scores):
        kind = PIECE.NORMAL
        if piece == unknown:
            kind, proto.trainer_spec.unk_id = PIECE.UNKNOWN, number
        elif piece in special:
            kind = PIECE.CONTROL
        elif model.get("byte_fallback") and len(piece) == 6 and piece.startswith("<0x"):
            kind = PIECE.BYTE
        proto.pieces.add(piece=piece, score=score, type=kind)
    of_type = proto.trainer_spec.BPE if model["type"] == "BPE" else proto.trainer_spec.UNIGRAM
    proto.trainer_spec.model_type, proto.trainer_spec.unk_piece = of_type, unknown
    proto.trainer_spec.byte_fallback = bool(model.get("byte_fallback"))
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

"""Hugging Face's tokenizer.json as a SentencePiece model. tests/goldens/test_hf_parakeet.py has ids of a real one."""

import json
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import sentencepiece_model_pb2

from asr_jax.core.errors import UserError
from asr_jax.text.sentencepiece import Pieces, SentencePieceTokenizer
from asr_jax.text.tokenizers import TokenizerSettings, given_tokenizer

TEXTS = ["the cat sat on the mat", "a hat on that cat", "he ate the oats", "no one eats that"]


def trained(pieces: Pieces) -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(
        TEXTS, vocab_size=24, pieces=pieces, character_coverage=1.0, normaliser="lower.v1"
    )


def scores_of(tokenizer: SentencePieceTokenizer) -> list[list[Any]]:
    proto: Any = sentencepiece_model_pb2
    return [[piece.piece, piece.score] for piece in proto.ModelProto.FromString(tokenizer.model).pieces]


def unigram(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    return {"model": {"type": "Unigram", "unk_id": 0, "vocab": scores_of(tokenizer)}, "added_tokens": []}


def bpe(tokenizer: SentencePieceTokenizer, **changes: Any) -> dict[str, Any]:
    pieces = [piece for piece, _ in scores_of(tokenizer)]
    ranked = [piece for piece, _ in sorted(scores_of(tokenizer), key=lambda scored: -scored[1])]
    splits = [(piece, [(piece[:i], piece[i:]) for i in range(1, len(piece))]) for piece in ranked]
    merges = [f"{left} {right}" for _, pairs in splits for left, right in pairs if {left, right} <= {*pieces}]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return {"model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocabulary, "merges": merges, **changes}}


def read(folder: Path, tokenizer: dict[str, Any]) -> SentencePieceTokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    found = given_tokenizer(TokenizerSettings(path=str(folder / "tokenizer.json")))
    assert isinstance(found, SentencePieceTokenizer)
    return found


@pytest.mark.parametrize("pieces", ["unigram", "bpe"])
def test_texts_get_the_ids_of_the_model_that_it_was_made_from(tmp_path: Path, pieces: Pieces) -> None:
    original = trained(pieces)
    found = read(tmp_path, unigram(original) if pieces == "unigram" else bpe(original))
    assert found.symbols == original.symbols
    assert found.unknown_id == 0
    for text in [*TEXTS, "the tenth oat", "x"]:
        assert found.encode(text) == original.encode(text)
        assert found.decode(original.encode(text)) == original.decode(original.encode(text))


def test_it_is_kept_with_a_run(tmp_path: Path) -> None:
    found = read(tmp_path, bpe(trained("bpe")))
    found.save(tmp_path / "run")
    assert given_tokenizer(TokenizerSettings(path=str(tmp_path / "run"))) == found


def test_bytes_stand_for_what_has_no_piece(tmp_path: Path) -> None:
    tokenizer = bpe(trained("bpe"), byte_fallback=True)
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    found = read(tmp_path, tokenizer)
    ids = found.encode("the é")
    assert [found.symbols[i] for i in ids[-2:]] == ["<0xC3>", "<0xA9>"]
    assert found.decode(ids) == "the é"
    assert found.num_letters[ids].sum() == len("▁the▁é")


def test_a_blank_among_the_pieces(tmp_path: Path) -> None:
    tokenizer = bpe(trained("bpe"))
    size = len(tokenizer["model"]["vocab"])
    tokenizer["model"]["vocab"] |= {"<pad>": size, "▁last": size + 1}
    found = read(tmp_path, {**tokenizer, "added_tokens": [{"content": "<pad>", "id": size}]})
    assert found.blank_id == size
    assert found.symbols[-1] == "▁last"


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ({"model": {"type": "WordPiece"}}, "its model has the type WordPiece, expected BPE or Unigram"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}, "its unknown token is None"),
        ({"model": {"type": "BPE", "vocab": {"a": 1}, "merges": []}}, "its vocabulary has gaps"),
        ({"model": {"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]}}, "is not a vocabulary"),
        (
            {
                "model": {"type": "BPE", "unk_token": "a", "vocab": {"a": 0}, "merges": []},
                "added_tokens": [{"content": "<pad>", "id": 9}],
            },
            "its blank has the id 9, expected at most",
        ),
    ],
)
def test_what_cannot_be_taken(tmp_path: Path, tokenizer: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, tokenizer)

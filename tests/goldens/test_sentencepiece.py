"""Models of the sentencepiece library: pieces, encoding and decoding."""

import json

import pytest

from asr_jax.text.sentencepiece import SentencePieceTokenizer
from tests.support import golden_cases

pytestmark = pytest.mark.golden


@pytest.mark.parametrize("case", golden_cases("sentencepiece", "cases*"))
def test_equals_sentencepiece(case, tmp_path):
    for name, expected in case.info["models"].items():
        model = case.path.with_name(f"{name}.model").read_bytes()
        tokenizer = SentencePieceTokenizer.of_model(model, normaliser="none")
        assert tokenizer.symbols == (*expected["pieces"], None)
        assert tokenizer.blank_id == expected["vocab_size"] == tokenizer.vocab_size - 1
        tokenizer.save(tmp_path)
        again = SentencePieceTokenizer.load(tmp_path, json.loads((tmp_path / "tokenizer.json").read_text("utf-8")))
        for text in expected["cases"]:
            assert again.encode(text["text"]) == text["ids"], text
            assert again.decode(text["ids"]) == text["decoded"], text

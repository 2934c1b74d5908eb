"""Vocabularies of other systems: their ids, blanks and spaces, and errors for invalid files."""

import json

import pytest

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.readers.fairseq import write_fairseq
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.base import OutOfVocabulary
from asr_jax.text.pieces import train_model
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.tokenizers import TokenizerSettings, given_tokenizer, load_tokenizer

# The order of fairseq's dict.ltr.txt for LibriSpeech, and of wav2vec 2.0's vocab.json at Hugging Face.
LETTERS = "|ETAONIHSRDLUMWCFGYPBVK'XJQZ"
SCRIPTS = {
    "latin": "Zwölf Boxkämpfer jagen",
    "cyrillic": "Съешь же ещё этих",
    "chinese": "我能吞下玻璃 而不伤身体",
    "arabic": "أنا قادر على أكل",
}


def fairseq(folder, letters=LETTERS):
    path = folder / "dict.ltr.txt"
    path.write_text("".join(f"{letter} {1000 - i}\n" for i, letter in enumerate(letters)), "utf-8")
    return path


def huggingface(folder, symbols):
    path = folder / "vocab.json"
    path.write_text(json.dumps({symbol: i for i, symbol in enumerate(symbols)}), "utf-8")
    return path


def given(path, **changes):
    return given_tokenizer(TokenizerSettings(**({"path": str(path), "normaliser": "upper.v1"} | changes)))


def test_fairseq_letters_begin_at_4_and_the_blank_is_0(tmp_path):
    tokenizer = given(fairseq(tmp_path))
    assert tokenizer.symbols[:7] == (None, "<pad>", "</s>", "<unk>", " ", "E", "T")
    assert (tokenizer.blank_id, tokenizer.vocab_size) == (0, 32)
    assert tokenizer.encode("It's me") == [10, 6, 27, 12, 4, 17, 5]
    assert tokenizer.decode([10, 6, 27, 12, 4, 17, 5]) == "IT'S ME"
    assert given(fairseq(tmp_path), blank_id=32).symbols[0] == "<s>"


def test_huggingface_takes_pad_for_the_blank(tmp_path):
    tokenizer = given(huggingface(tmp_path, ["<pad>", "<s>", "</s>", "<unk>", *LETTERS]))
    assert tokenizer.symbols[:6] == (None, "<s>", "</s>", "<unk>", " ", "E")
    assert tokenizer.encode("It's me") == given(fairseq(tmp_path)).encode("It's me")
    behind = given(huggingface(tmp_path, ["|", "a", "b", "[UNK]", "[PAD]"]), normaliser="lower.v1")
    assert (behind.blank_id, behind.vocab_size, behind.encode("B A")) == (4, 5, [2, 0, 1])
    without = given(huggingface(tmp_path, ["|", "a", "b"]), normaliser="lower.v1")
    assert (without.blank_id, without.vocab_size) == (3, 4)
    chosen = given(huggingface(tmp_path, ["|", "a", "_", "b"]), normaliser="lower.v1", blank_id=2)
    assert (chosen.blank_id, chosen.vocab_size) == (2, 4)


@pytest.mark.parametrize("write", [fairseq, lambda folder, letters: huggingface(folder, ["<pad>", "<unk>", *letters])])
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_comes_back_and_survives_a_folder(write, script, tmp_path):
    text = SCRIPTS[script]
    tokenizer = given(write(tmp_path, letters="|" + "".join(sorted(set(text) - {" "}))), normaliser="none")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.blank_id not in tokenizer.encode(text)
    tokenizer.save(tmp_path / "kept")
    assert load_tokenizer(tmp_path / "kept") == given(tmp_path / "kept") == tokenizer


def test_what_convert_writes_for_fairseq_is_read(tmp_path):
    write_fairseq(str(tmp_path / "train.tsv"), [Utterance("a", "a.wav", "abba oh", 1.0)])
    tokenizer = given(tmp_path / "dict.ltr.txt", normaliser="lower.v1")
    assert tokenizer.decode(tokenizer.encode("Oh ABBA")) == "oh abba"


def test_lines_keep_the_numbers_of_their_labels(tmp_path):
    (tmp_path / "dict.ltr.txt").write_text("a 9\n| 8 #fairseq:overwrite\nb 7\n")
    tokenizer = given(tmp_path / "dict.ltr.txt", normaliser="none")
    assert tokenizer.symbols == (None, "<pad>", "</s>", "<unk>", "a", " ", "b")
    (tmp_path / "tokens.txt").write_text("<blk> 0\n▁ 1\na 2\n# 3\nb 4\n#0 5\n#1 6\n")
    assert given(tmp_path / "tokens.txt", normaliser="none").symbols == (None, " ", "a", "#", "b")


def test_texts_that_spell_specials_or_the_boundary_are_out_of_the_vocabulary(tmp_path):
    tokenizer = given(fairseq(tmp_path), normaliser="none")
    for text, missing in (("A<unk>", "'<', '>', 'k'"), ("A|B", r"'\|'"), ("<s>", "'<', '>', 's'")):
        with pytest.raises(OutOfVocabulary, match=missing):
            tokenizer.encode(text)


@pytest.mark.parametrize("symbols", [["<blk>", "<sos/eos>"], ["<blank>"], []])
def test_a_piece_that_is_the_blank_is_found_in_a_model(symbols, tmp_path):
    texts = ["zwölf boxkämpfer jagen viktor", "it's a test", "the test jagen"]
    ids = {"unk_id": len(symbols), "bos_id": -1, "eos_id": -1}
    path = tmp_path / "bpe.model"
    path.write_bytes(
        train_model(texts, vocab_size=40, with_blank=False, user_defined_symbols=symbols, model_type="bpe", **ids)
    )
    tokenizer = given(path, normaliser="lower.v1")
    assert (tokenizer.blank_id, tokenizer.vocab_size) == ((0, 40) if symbols else (40, 41))
    assert tokenizer.decode(tokenizer.encode("It's Viktor")) == "it's viktor"
    chosen = given(path, normaliser="lower.v1", blank_id=1)
    assert (chosen.blank_id, chosen.vocab_size) == (1, 40)
    assert given(path, normaliser="lower.v1", blank_id=40) == SentencePieceTokenizer.of_model(
        path.read_bytes(), normaliser="lower.v1"
    )
    with pytest.raises(UserError, match=r"blank_id 41: .*has 40 symbols; expected at most 40"):
        given(path, blank_id=41)


BAD = {
    "dict.ltr.txt": {
        "E\n": "line 1 is 'E', expected a symbol and its count",
        "E 5\n\nT 4\n": "line 2 is ''",
        "E five\n": "'E five'",
        "E 5\nE 4\n": "line 2 has the symbol 'E', which is in line 1 already",
        "| 5\n<pad> 4\n": "line 2 has the symbol '<pad>', which is among the special symbols already",
        "| 5\n<s> 4\n": "line 2 has the symbol '<s>', which is among the special symbols already",
        "E 5\n| 4\n| 3 #fairseq:overwrite\n": "line 3 has the symbol '|', which is in line 2 already",
        "e 5\na 4\n": r"upper.v1 returns no letter of .*dict.ltr.txt \(e a …\)",
        b"\xff\xfeE": "UTF-8",
    },
    "vocab.json": {
        "[]": "expected an object",
        '{"A": 1}': "each id from 0 on exactly once",
        '{"A": 0, "B": 0}': "each id from 0 on exactly once",
        '{"A": 0.0}': "each id from 0 on exactly once",
        '{"A": false}': "each id from 0 on exactly once",
        '{"eng": {"A": 0}}': "each id from 0 on exactly once",
        '{"A": 0, "|": 1, " ": 2}': r"a symbol twice: ' ' \(\| is the space\)",
        '{"A": 0': "is not a vocabulary",
    },
    "a.model": {"": "is not a vocabulary: it is empty", "xyz": "is not a vocabulary"},
    "a.vocab": {"<unk>\t0\n": "pieces without their model; use a.model instead"},
}


@pytest.mark.parametrize(("name", "content"), [(name, content) for name, cases in BAD.items() for content in cases])
def test_what_is_no_vocabulary_is_named_with_the_reason(name, content, tmp_path):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=BAD[name][content]) as error:
        given(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)


def test_a_path_with_nothing_there_and_a_blank_too_far_are_named(tmp_path):
    for name in ("none.model", "none.json", "none.txt"):
        with pytest.raises(UserError, match=f"{name}: no such file; expected a .model, a vocab.json or a dict.ltr.txt"):
            given(tmp_path / name)
    with pytest.raises(UserError, match=r"blank_id 33: .*has 32 symbols; expected at most 32"):
        given(fairseq(tmp_path), blank_id=33)

"""The tokenizer command: its options, files and output, and the use of the model in a run."""

import json
import re

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from asr_jax.cli.command_line import run_command
from asr_jax.cli.tokenizer import main
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.tokenizers import TokenizerSettings, given_tokenizer, load_tokenizer

TEXTS = {
    "latin": ["zwölf boxkämpfer jagen viktor", "it's a test", "the other one", "the test jagen"],
    "cyrillic": ["съешь же ещё этих мягких булок", "да выпей чаю", "ещё чаю", "этих булок"],
    "chinese": ["我能吞下玻璃而不伤身体", "你好 世界", "我不能", "世界身体"],
    "arabic": ["أنا قادر على أكل الزجاج", "مَرْحَبًا بالعالم", "أنا على", "الزجاج بالعالم"],
}
TYPES = ["unigram", "bpe", "char", "word"]
SIZE = {"unigram": "28", "bpe": "32", "char": "60", "word": "8"}


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS["latin"]), "utf-8")
    return path


def train(corpus, *options, size="32", prefix="tokenizer"):
    """Trains a model in a folder beside the corpus and returns its path."""
    folder = corpus.parent / "made"
    where = ["--output-dir", folder, "--model-prefix", prefix]
    main([*map(str, ["--input", corpus, "--vocab-size", size, *where, *options])])
    return folder / f"{prefix}.model"


def pieces_of(path):
    processor = SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("script", TEXTS)
def test_every_type_and_script_is_written_loaded_and_comes_back(model_type, script, tmp_path, capsys):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS[script]), "utf-8")
    rest = ["--character-coverage", "1", "--normalization-rule-name", "identity"]
    size = str(len(set("".join(TEXTS[script]))) + 4) if model_type in ("unigram", "bpe") else SIZE[model_type]
    path = train(corpus, "--model-type", model_type, *rest, size=size)
    tokenizer = given_tokenizer(TokenizerSettings(path=str(path)))
    known = [text for text in TEXTS[script] if not tokenizer.without_label(text)]
    assert len(known) == 4 or model_type == "word"
    assert known
    for text in known:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(path.with_suffix(".vocab").read_text("utf-8").splitlines()) == tokenizer.vocab_size - 1
    output = capsys.readouterr().out
    assert f"a vocabulary of {tokenizer.vocab_size} labels, including the blank ({tokenizer.vocab_size - 1})" in output
    assert f"{len(known)} of 4 checked texts are restored from their token ids" in output
    assert f"to train with it: --data.tokenizer.path {path} --data.tokenizer.normaliser lower.v1" in output


@pytest.mark.parametrize("model_type", TYPES)
def test_the_list_of_pieces_is_as_sentencepiece_writes_it(model_type, corpus, tmp_path):
    path = train(corpus, "--model-type", model_type, size=SIZE[model_type])
    SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS["latin"]), model_prefix=str(tmp_path / "theirs"), vocab_size=int(SIZE[model_type]),
        model_type=model_type, character_coverage=0.9995, num_threads=4, minloglevel=2,
    )  # fmt: skip
    assert path.with_suffix(".vocab").read_text("utf-8") == (tmp_path / "theirs.vocab").read_text("utf-8")


def test_inputs_are_of_any_format_and_normalised(corpus, tmp_path):
    manifest = tmp_path / "train.jsonl"
    lines = [{"id": "a", "audio_path": "not-there.wav", "text": "Zwölf  TESTS"}, {"id": "b", "audio_path": "b.wav"}]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    path = train(corpus, "--input", manifest, "--input", tmp_path / "c*.txt", "--keep-corpus", prefix="p")
    texts = [*TEXTS["latin"], "zwölf tests", *TEXTS["latin"]]
    assert path.with_name("p.corpus.txt").read_text("utf-8").splitlines() == texts
    capitals = tmp_path / "folder" / "kept.txt"
    train(corpus, "--corpus-output", capitals, "--normaliser", "upper.v1")
    assert capitals.read_text("utf-8").splitlines() == [text.upper() for text in TEXTS["latin"]]
    assert not path.with_name("tokenizer.corpus.txt").exists()


def test_symbols_and_ids_are_where_they_were_asked_for(corpus):
    options = ["--user-defined-symbols", "<x>,<y>", "--control-symbols", "<c>", "--unk-id", "3", "--bos-id", "-1"]
    options += ["--eos-id", "0", "--pad-id", "1", "--unk-piece", "[unk]", "--eos-piece", "[e]", "--pad-piece", "[p]"]
    path = train(corpus, *options)
    pieces = pieces_of(path)
    assert pieces[:6] == ["[e]", "[p]", "<c>", "[unk]", "<x>", "<y>"]
    assert "<s>" not in pieces
    tokenizer = given_tokenizer(TokenizerSettings(path=str(path)))
    assert tokenizer.encode("<x>test<y>")[-1] == 5
    assert 2 not in tokenizer.encode("<c>")
    assert given_tokenizer(TokenizerSettings(path=str(path), blank_id=1)).vocab_size == 32
    assert pieces_of(train(corpus, "--bos-piece", "[b]"))[:4][1:3] == ["[b]", "</s>"]


def test_a_blank_among_the_pieces_is_the_blank(corpus, capsys):
    path = train(corpus, "--user-defined-symbols", "<blk>", "--bos-id", "-1", "--eos-id", "-1", size="31")
    assert "a vocabulary of 31 labels, including the blank (1)\n" in capsys.readouterr().out
    assert given_tokenizer(TokenizerSettings(path=str(path))).blank_id == 1


def test_a_model_that_changes_texts_is_named(corpus, capsys):
    """The rule nmt_nfkc_cf writes ligatures as letters, which lower.v1 keeps."""
    corpus.write_text("der große zwölf boxkämpfer\nﬁnd viktor\njagen\nthe test jagen\n", "utf-8")
    train(corpus, "--normalization-rule-name", "nmt_nfkc_cf", "--character-coverage", "1", size="30")
    output = capsys.readouterr().out
    assert "3 of 4 checked texts are restored from their token ids" in output
    assert "'ﬁnd viktor' is restored as 'find viktor', and each difference counts as an error: choose" in output


def test_invisible_characters_get_no_pieces_and_are_named(corpus, capsys):
    corpus.write_text("\ufeff\ufeffzwölf box\u00adkämpfer\njagen \u200bviktor\nit's\na test\n", "utf-8")
    path = train(corpus, "--character-coverage", "1", "--normalization-rule-name", "identity", size="27")
    assert all(piece.isprintable() for piece in pieces_of(path))
    output = capsys.readouterr().out
    assert "invisible characters are removed from the texts: '\\ufeff' (ZERO WIDTH NO-BREAK SPACE) 1 ×, " in output
    assert "4 of 4 checked texts are restored" in output


def test_bytes_spell_characters_without_a_piece(corpus, capsys):
    path = train(corpus, "--byte-fallback", size="288")
    tokenizer = given_tokenizer(TokenizerSettings(path=str(path)))
    assert tokenizer.decode(tokenizer.encode("чаю 茶")) == "чаю 茶"
    assert "4 of 4 checked texts are restored" in capsys.readouterr().out


def test_parts_without_a_piece_are_shown(tmp_path, capsys):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("ab ж ab\n" + "abab baba ab\n" * 400, "utf-8")
    path = train(corpus, "--character-coverage", "0.98", size="6", prefix="few")
    tokenizer = given_tokenizer(TokenizerSettings(path=str(path)))
    assert isinstance(tokenizer, SentencePieceTokenizer)
    assert tokenizer.without_label("ab ж") == {"ж"}
    assert "such as 'ж'" in capsys.readouterr().out


def test_sampled_texts_are_the_same_every_time_and_depend_on_the_options(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"text {'abcdefghij'[i % 10] * (i % 7 + 1)} number{i}\n" for i in range(400)), "utf-8")
    some = ["--input-sentence-size", "150"]
    drawn = [train(corpus, *some, "--shuffle-input-sentence", size="60").read_bytes() for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != train(corpus, *some, size="60").read_bytes()
    assert drawn[0] != train(corpus, size="60").read_bytes()


def test_long_texts_are_left_out_and_counted(corpus, capsys):
    train(corpus, "--max-sentence-length", "20", size="19")
    assert "1 of 4 texts are rejected: they have more than --max-sentence-length 20 bytes" in capsys.readouterr().out


def test_the_rule_of_sentencepiece_comes_after_the_normaliser(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("ﬁne ½ Fine\n" * 3, "utf-8")
    kept = train(corpus, "--normaliser", "none", "--normalization-rule-name", "identity", size="12")
    folded = train(
        corpus, "--normaliser", "none", "--normalization-rule-name", "nmt_nfkc_cf", size="12", prefix="folded"
    )
    assert any("ﬁ" in piece for piece in pieces_of(kept))
    assert not any("ﬁ" in piece or "F" in piece for piece in pieces_of(folded))
    tokenizer = given_tokenizer(TokenizerSettings(path=str(folded), normaliser="none"))
    assert tokenizer.decode(tokenizer.encode("ﬁne Fine")) == "fine fine"


def test_the_flag_of_large_corpora_changes_nothing_small(corpus, capfd):
    plain = pieces_of(train(corpus))
    assert "deprecated" not in capfd.readouterr().err
    assert pieces_of(train(corpus, "--train-extremely-large-corpus")) == plain


def test_a_saved_tokenizer_of_the_model_is_the_same(corpus, tmp_path):
    tokenizer = given_tokenizer(TokenizerSettings(path=str(train(corpus))))
    tokenizer.save(tmp_path / "run")
    assert load_tokenizer(tmp_path / "run") == tokenizer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--vocab-size", "5000"],
            r"vocabulary of 5000 on 4 texts: the texts have too few pieces; expected at most 3\d",
        ),
        (["--vocab-size", "5000", "--model-type", "bpe"], "too few pieces; expected at most"),
        (["--vocab-size", "5000", "--model-type", "word"], "too few pieces; expected at most 1"),
        (["--vocab-size", "9"], "vocabulary of 9 .*the texts have more characters; expected at least 2"),
        (["--vocab-size", "0"], "vocab_size is 0: expected at least 1"),
        (["--character-coverage", "0.5"], "character_coverage is 0.5: expected at least 0.98 and at most 1"),
        (["--input-sentence-size", "5"], "input_sentence_size is 5: expected 0, or more than 100"),
        (["--max-sentence-length", "5"], "max_sentence_length is 5: expected at least 10"),
        (["--unk-id", "-1"], "unk_id is -1: expected at least 0"),
        (["--pad-id", "2"], r"ids \[0, 1, 2, 2\] of unk, bos, eos and pad: expected each once"),
        (["--pad-id", "99"], "all below vocab_size, 32"),
        (["--user-defined-symbols", "a,a"], "SentencePiece cannot train .*: .*a is already defined"),
        (["--normaliser", "lower"], "--normaliser: unknown normaliser 'lower'.*did you mean 'lower.v1'"),
        (["--input", "no-such.txt"], "no-such.txt: no such file"),
        (["--input", "no-such-folder"], "no-such-folder: no such file or folder"),
        (["--model-type", "bigram"], "--model-type bigram: expected unigram, bpe, char or word"),
    ],
)
def test_what_cannot_work_is_said_in_full(options, message, corpus, tmp_path, capsys):
    made = ["--input", str(corpus), "--vocab-size", "32", "--output-dir", str(tmp_path / "made")]
    with pytest.raises(SystemExit) as exit:
        run_command(main, [*made, *options])
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert not list((tmp_path / "made").glob("*"))


def test_no_text_at_all_is_an_error(tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n  \n", "utf-8")
    with pytest.raises(SystemExit):
        run_command(main, ["--input", str(tmp_path / "empty.txt"), "--output-dir", str(tmp_path / "made")])
    assert "empty.txt: no text; expected at least one that is not empty" in capsys.readouterr().err

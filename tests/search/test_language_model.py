"""Words of language models in every form that KenLM reads, and lists of words."""

import bz2
import gzip
import lzma
import struct

import pytest

from asr_jax.core.errors import UserError
from asr_jax.search import language_model
from asr_jax.search.language_model import listed_words, load_kenlm, model_words
from asr_jax.search.word_scores import Fusion, hot_word_weights

UNIGRAMS = "\\1-grams:\n-3\t<unk>\n-99\t<s>\n-1\t</s>\n-2\tcat\n-2\tb\u00e4r\n-1\tthe\t0\n"
ARPA = f"\\data\\\nngram 1=6\nngram 2=1\n\n{UNIGRAMS}\n\\2-grams:\n-1\tthe the\n\n\\end\\\n".encode()
WORDS = {"cat", "bär", "the"}
FORMS = {
    "lm.arpa": ARPA,
    "with_comments.arpa": b"# made by hand\n\n \n#\xfc\n" + ARPA,
    "of_windows.arpa": ARPA.replace(b"\n", b"\r\n"),
    "lm.arpa.gz": gzip.compress(ARPA),
    "lm.bz2": bz2.compress(b"\n# a\n" + ARPA),
    "named_as_text.arpa": lzma.compress(ARPA),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_words_of_every_text_that_kenlm_reads_are_known(name, tmp_path):
    (tmp_path / name).write_bytes(FORMS[name])
    assert model_words(tmp_path / name) == WORDS
    pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
    model = load_kenlm(tmp_path / name)
    assert all(word in model for word in WORDS)
    assert Fusion(kenlm=str(tmp_path / name)).build().known == WORDS


def test_words_end_where_kenlm_ends_them(tmp_path):
    (tmp_path / "lm.arpa").write_bytes(ARPA.replace("bär".encode(), "b\u00a0\x0br".encode()))
    assert model_words(tmp_path / "lm.arpa") == {"cat", "b\u00a0\x0br", "the"}


def binary(*words: str, number: int, has_words: bool = True) -> bytes:
    """A file in the layout of build_binary: a header, the number of unigrams, tables, and the words."""
    header = b"mmap lm http://kheafield.com/code format version 5\n\0".ljust(language_model.UNIGRAMS_AT, b"\1")
    tables = b"\0\1<unk>\0" * 3 + bytes(100)
    return header + struct.pack("<Q", number) + tables + b"".join(f"{word}\0".encode() for word in words) * has_words


def test_the_words_of_a_binary_file_are_known(tmp_path, capsys):
    words = ("<unk>", "<s>", "</s>", "cat", "x<unk>", "bär")
    for number in (6, 5):  # a model without <unk> does not count it
        (tmp_path / "lm.bin").write_bytes(binary(*words, number=number))
        assert model_words(tmp_path / "lm.bin") == {"cat", "x<unk>", "bär"}
    assert not capsys.readouterr().err
    for content in (binary(*words, number=9), binary(number=6, has_words=False), b"no model"):
        (tmp_path / "lm.bin").write_bytes(content)
        assert model_words(tmp_path / "lm.bin") is None
        assert "is a binary model without its words" in capsys.readouterr().err


def test_words_in_another_encoding_are_refused_with_the_fix(tmp_path):
    (tmp_path / "lm.arpa").write_bytes(ARPA.decode().encode("latin-1"))
    with pytest.raises(UserError, match=r"1 of 6 words of .*lm.arpa are not UTF-8, such as b'b.xe4r'.*iconv"):
        model_words(tmp_path / "lm.arpa")


@pytest.mark.parametrize(
    "content",
    [gzip.compress(ARPA)[:60], lzma.compress(ARPA)[:80], bz2.compress(ARPA)[:60]],
    ids=["gzip", "xz", "bzip2"],
)
def test_a_truncated_file_is_an_error(content, tmp_path):
    (tmp_path / "lm.arpa").write_bytes(content)
    with pytest.raises(UserError, match=r"the words of .*lm.arpa cannot be read .*: copy the file again"):
        model_words(tmp_path / "lm.arpa")


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf" + ARPA, ARPA.decode().encode("utf-16")])
def test_a_byte_order_mark_is_refused_with_the_fix(content, tmp_path):
    pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
    (tmp_path / "lm.arpa").write_bytes(content)
    with pytest.raises(UserError, match=r"KenLM cannot read .*; save it as UTF-8 without a byte order mark"):
        load_kenlm(tmp_path / "lm.arpa")


LISTS = {
    "plain": "cat\nthe\n",
    "byte order mark": "\ufeffcat\nthe\n",
    "lines of Windows": "\ufeffcat\r\n\r\nthe\r\n",
    "comments": "\ufeff# animals\ncat\n#\n\nthe",
    "a lexicon": "cat\tk a t\n  \nthe  dh @\nthe  dh i",
    "invisible characters": "c\u00adat\n\u200ethe\n",
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_words_are_read_alike(name, tmp_path):
    path = tmp_path / "words"
    path.write_bytes(LISTS[name].encode())
    assert listed_words(path) == {"cat", "the"}
    assert Fusion(lexicon=str(path)).build().lexicon == {"cat", "the"}


@pytest.mark.parametrize(
    ("content", "message"),
    [("bär\n".encode("latin-1"), "not UTF-8"), (b"cat\rthe\r", "carriage returns alone .* tr ")],
)
def test_a_list_in_another_encoding_is_refused_with_the_fix(tmp_path, content, message):
    (tmp_path / "words").write_bytes(content)
    with pytest.raises(UserError, match=f"cannot read words from .*{message}"):
        listed_words(tmp_path / "words")


def test_hot_words_of_a_file_with_a_byte_order_mark():
    """As in --hot-words $(cat words.txt), for which the shell leaves the mark and the line ends of Windows."""
    assert hot_word_weights(Fusion(hot_words=("\ufeffanna:8\r", "otto\r"), hot_word_weight=5.0)) == {
        "anna": 8,
        "otto": 5,
    }

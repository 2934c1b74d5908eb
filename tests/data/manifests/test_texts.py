"""Texts of any data: in order, of every format, without opening audio and without leaving files behind."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.texts import texts_of


def texts(*paths):
    return [text.strip() for text in texts_of([str(path) for path in paths])]


def files(folder):
    return sorted(path.name for path in folder.rglob("*"))


def jsonl(folder, *lines):
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def test_plain_text_has_a_text_on_each_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone Два\r\n\r\n三\n".encode())
    (tmp_path / "b.txt").write_text("four", "utf-8")
    assert texts(path) == ["one Два", "", "三"]
    assert texts(tmp_path / "*.txt", path) == ["one Два", "", "三", "four", "one Два", "", "三"]
    assert texts(tmp_path) == ["one Два", "", "三", "four"]
    odd = tmp_path / "a[1].txt"
    odd.write_text("five", "utf-8")
    assert texts(odd) == ["five"]


def test_manifests_need_no_audio(tmp_path):
    path = jsonl(tmp_path, {"audio_path": "gone.wav", "text": "a"}, {"audio_path": "gone.wav", "sentence": "b"})
    table = tmp_path / "t.tsv"
    table.write_text("f.bin\t5\t80\t1 2\tc\nf.bin\t5\t80\t1 2\n", "utf-8")
    assert texts(path, table) == ["a", "b", "c", ""]


def test_bytes_and_features_in_the_data_are_not_unpacked(tmp_path):
    rows = {"id": ["a", "b"], "text": ["x", "y"], "audio_bytes": [b"RIFF0000", b"RIFF1111"]}
    pyarrow.parquet.write_table(pa.table(rows), tmp_path / "p.parquet")
    features = jsonl(tmp_path, {"id": "f", "features": np.zeros((3, 4)).tolist(), "text": "z"})
    before = files(tmp_path)
    assert texts(tmp_path / "p.parquet", features) == ["x", "y", "z"]
    assert files(tmp_path) == before


def test_folders_of_audio_have_their_texts_beside_it(tmp_path):
    for name, text in (("a", "one"), ("b", "two")):
        (tmp_path / f"{name}.wav").write_bytes(b"not opened")
        (tmp_path / f"{name}.txt").write_text(f"{text}\n", "utf-8")
    assert texts(tmp_path) == ["one", "two"]


def test_entries_that_cannot_be_used_are_rejected_and_named(tmp_path, capsys):
    path = jsonl(tmp_path, {"audio_path": "a.wav", "text": "a"}, {"text": "without audio"})
    assert texts(path) == ["a"]
    assert "1 of 2 utterances are rejected; the first:" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"a\.jsonl:1"):
        texts(jsonl(tmp_path, {"text": "without audio"}))


def test_skipped_texts_and_fields_that_are_not_used_are_named(tmp_path, capsys):
    lines = [{"audio_path": "a.wav", "text": text, "_skipme": text == "b", "word_start": 1.0} for text in "abc"]
    assert texts(path := jsonl(tmp_path, *lines)) == ["a", "c"]
    out = capsys.readouterr().out
    assert f'{path}: 1 utterance skipped, because "_skipme" is set' in out
    assert f'{path}: 2 utterances with a field "word_start", which looks like a time' in out


@pytest.mark.parametrize("name", ["gone.txt", "gone-*.txt", "gone"])
def test_what_is_not_there_is_named(name, tmp_path):
    with pytest.raises(UserError, match="no such file"):
        texts(tmp_path / name)


def test_what_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9\n")
    with pytest.raises(UserError, match=r"a\.txt: .*UTF-8 \(byte 0xe9 at 3\)"):
        texts(path)

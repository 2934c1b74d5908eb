"""Columns: unchanged in memory and in files; different columns have different digests."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from recordings import jsonl, read

from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.buckets import Bucket, Buckets, Scale
from asr_jax.data.batching.index import build_index
from asr_jax.data.loading.source import BatchSource
from asr_jax.data.manifests.columns import AT_ONCE, Columns, NameColumn, Ragged, load_columns, save_columns
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.characters import CharacterTokenizer

LETTERS = CharacterTokenizer(symbols=(*"abc", None), normaliser="none")

RECORDS = [
    Utterance("a", "/x/a.flac", "größe", 1.5, "s", "lib", (1, 300, 70000)),
    Utterance("ü", "/x/ü#channel=1", "", 2.25),
    Utterance("c", "/x/c", "字", 0.1, "t", "lib", (), 5, 80),
]


def test_records_come_back(tmp_path: Path) -> None:
    columns = Columns.of(RECORDS, [0, 0, 1])
    save_columns(columns, tmp_path / "kept")
    kept = load_columns(Columns, tmp_path / "kept")
    for some in (columns, kept, pickle.loads(pickle.dumps(kept))):
        assert [some.utterance(row) for row in range(len(some))] == RECORDS
        assert some.input_of.tolist() == [0, 0, 1]
        assert some.num_chars.tolist() == [5, 0, 1]
        assert some.digest() == columns.digest()


def test_no_records(tmp_path: Path) -> None:
    save_columns(Columns.of([]), tmp_path)
    assert len(load_columns(Columns, tmp_path)) == 0


def test_other_processes_map_the_same_files(tmp_path: Path) -> None:
    save_columns(Columns.of(RECORDS * 1000), tmp_path)
    columns = load_columns(Columns, tmp_path)
    assert len(pickle.dumps(columns)) < 5000
    again = pickle.loads(pickle.dumps(columns))
    for array in (again.texts.values, again.duration_s, again.speakers.of_row):
        assert isinstance(array, np.memmap)
    few = NameColumn(columns.speakers.names, columns.speakers.of_row[1:4])  # differs from the file
    assert pickle.loads(pickle.dumps(few)).of_row.tolist() == [1, 2, 0]


def test_worker_processes_get_next_to_nothing(tmp_path: Path) -> None:
    """Checked when the manifest is read and when it is cached. 200 bytes per utterance are 200 MB for a million."""
    lines = [{"id": str(i), "audio_path": f"{i}.flac", "text": "ab" * 40, "duration": 9.0} for i in range(3000)]
    path = jsonl(tmp_path / "m.jsonl", *lines)
    for _ in range(2):
        index, _ = build_index(read(tmp_path, path), scale=Scale(16000, 160, 80), tokenizer=LETTERS)
        plan = BatchPlan(index.entries(), Buckets((Bucket(144160, 80, 8, 144000),)))
        source = BatchSource(index, plan)
        assert len(pickle.dumps(source)) < 20 * len(lines) + 10_000
        assert pickle.loads(pickle.dumps(index)).labels_of(2999).tolist() == [0, 1] * 40


def test_all_texts_in_order() -> None:
    texts = [f"ü{i}" * (i % 3) for i in range(2 * AT_ONCE + 5)]
    assert list(Ragged.of_texts(texts).all_texts()) == texts
    assert list(Ragged.of_texts([]).all_texts()) == []


def test_rows_of_many_sizes() -> None:
    rows = [[i] * (i % 3) for i in range(2 * AT_ONCE + 5)]
    ragged = Ragged.of_rows(iter(rows))
    assert [ragged[row].tolist() for row in range(len(ragged))] == rows
    assert (ragged.values.dtype, len(Ragged.of_rows([]))) == (np.uint16, 0)


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"id": "b"}, True),
        ({"text": "grösse"}, True),
        ({"duration_s": 1.6}, True),
        ({"labels": None}, True),
        ({"labels": (1, 300, 70001)}, True),
        ({"num_frames": 1}, True),
        ({"location": "/y/a.flac"}, False),
    ],
)
def test_the_digest(changes: dict, counts: bool) -> None:
    other = Columns.of([replace(RECORDS[0], **changes), *RECORDS[1:]])
    assert (other.digest() != Columns.of(RECORDS).digest()) == counts


@pytest.mark.parametrize(("largest", "dtype"), [(255, np.uint8), (256, np.uint16), (65536, np.uint32)])
def test_labels_take_as_little_room_as_they_can(largest: int, dtype: type) -> None:
    rows = Ragged.of_rows([(0, largest), (), (1,)])
    assert rows.values.dtype == dtype
    assert [rows[row].tolist() for row in range(3)] == [[0, largest], [], [1]]
    assert rows.lengths().tolist() == [2, 0, 1]


def test_joined_parts_and_their_utterances() -> None:
    parts = [Columns.of(RECORDS[:1], [0]), Columns.of([]), Columns.of(RECORDS[1:], [0, 1])]
    joined, whole = Columns.joined(parts), Columns.of(RECORDS, [0, 0, 1])
    assert joined.digest() == whole.digest()
    assert list(joined.utterances()) == list(whole.utterances()) == RECORDS
    assert (joined.speakers.names, len(Columns.joined([]))) == (whole.speakers.names, 0)

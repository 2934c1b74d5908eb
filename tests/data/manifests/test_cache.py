"""Cache: in any place and after it was moved, and what is removed from it."""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recordings import check_signals, jsonl, noise, read, write

from asr_jax.data.manifests import cache
from asr_jax.data.manifests.reading import read_utterances

AUDIO = [noise(i, 1000 + i) for i in range(12)]


def table(folder: Path) -> Path:
    """A table of rows with bytes, and one with a path."""
    cells = [{"bytes": write(folder / "a.flac", samples).read_bytes(), "path": None} for samples in AUDIO[:-1]]
    write(folder / "last.flac", AUDIO[-1])
    pq.write_table(
        pa.table({"audio": [*cells, {"bytes": None, "path": "last.flac"}], "text": ["a"] * 12}), folder / "t.parquet"
    )
    return folder / "t.parquet"


def test_a_relative_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    path = table(tmp_path / "data")
    monkeypatch.chdir(tmp_path / "here")
    for _ in range(2):
        utterances = read_utterances([path], cache="cache")
        check_signals(utterances, AUDIO)
        assert utterances.folder is not None
        assert utterances.folder.is_relative_to(tmp_path / "here" / "cache")
    monkeypatch.chdir(tmp_path)
    check_signals(utterances, AUDIO)


def test_a_cache_that_was_moved(tmp_path: Path) -> None:
    path = table(tmp_path)
    read_utterances([path], cache=str(tmp_path / "one"))
    (tmp_path / "one").rename(tmp_path / "two")
    utterances = read_utterances([path], cache=str(tmp_path / "two"))
    check_signals(utterances, AUDIO)
    assert utterances.folder == read_utterances([path], cache=str(tmp_path / "two")).folder
    shutil.rmtree(tmp_path / "two")
    check_signals(read_utterances([path], cache=str(tmp_path / "two")), AUDIO)


def test_a_cache_by_way_of_a_link_is_the_same(tmp_path: Path) -> None:
    path = table(tmp_path)
    first = read_utterances([path], cache=str(tmp_path / "one"))
    (tmp_path / "link").symlink_to(tmp_path / "one")
    second = read_utterances([path], cache=str(tmp_path / "link"))
    assert first.folder is not None
    assert second.folder is not None
    assert (second.folder.name, second.digest) == (first.folder.name, first.digest)


@contextmanager
def in_a_process_that_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leaves columns that are read in the block unlocked, as if the process had ended."""
    flock = fcntl.flock

    def without_shared(file: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH:
            raise OSError
        flock(file, operation)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", without_shared)
        yield


def test_unused_columns_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.flac", AUDIO[0])
    path = jsonl(tmp_path / "m.jsonl", {"audio_path": "a.flac", "text": "a"})
    with in_a_process_that_ends(monkeypatch):
        folders = [read(tmp_path, path).folder]
    for i in range(1, 3):
        write(tmp_path / "a.flac", noise(0, 2000 + i))
        folders.append(read(tmp_path, path).folder)
    assert all(folder.exists() for folder in folders)  # a run that has just begun may still start workers
    read(tmp_path, path)
    for folder in folders[:2]:
        os.utime(folder, ns=(1, 1))
    (folders[0].parent / "unpacked.bytes.1.partial").write_text("of a process that was killed")
    os.utime(folders[0].parent / "unpacked.bytes.1.partial", ns=(1, 1))
    write(tmp_path / "a.flac", noise(0, 4000))
    last = read(tmp_path, path).folder
    assert [folder.exists() for folder in (*folders, last)] == [False, True, True, True]  # the second is still used
    assert not list(last.parent.glob("*.partial"))


def test_what_was_read_of_other_data_is_removed_after_a_month_unless_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [
        jsonl(tmp_path / f"{name}.jsonl", {"audio_path": "a.flac", "text": name, "duration": 1}) for name in "abcd"
    ]
    with in_a_process_that_ends(monkeypatch):
        folders = [read(tmp_path, paths[0]).folder]
    folders += [read(tmp_path, path).folder for path in paths[1:3]]
    for folder in folders[:2]:
        os.utime(folder.parent, ns=(1, 1))
    (folders[0].parent.parent / "mine").mkdir()
    read(tmp_path, paths[3])
    assert [folder.exists() for folder in folders] == [False, True, True]
    assert (folders[0].parent.parent / "mine").exists()


def test_what_was_read_of_a_file_before_it_changed_is_removed_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"features": [[0, 1]], "text": "a"}
    places = []
    for lines in range(1, 4):
        with in_a_process_that_ends(monkeypatch):
            places.append(read(tmp_path, jsonl(tmp_path / "m.jsonl", *[line] * lines)).folder.parent)
        os.utime(places[-1], (time.time() - (lines == 1) * 90_000,) * 2)
    assert [place.exists() for place in places] == [False, True, True]


def test_the_same_files_as_a_folder_and_one_by_one_and_in_another_role(tmp_path: Path) -> None:
    for name in "ab":
        line = {"transcript": name, "original_duration": 1.0}
        files = [{"fname": f"{name}{speed}.wav", "speed": speed, "duration": 1 / speed} for speed in (1, 0.9)]
        jsonl(tmp_path / "set" / f"{name}.json", line | {"files": files})
    whole = read_utterances([tmp_path / "set"])
    one_by_one = read_utterances([tmp_path / "set" / "a.json", tmp_path / "set" / "b.json"])
    assert (whole.columns.input_of.tolist(), one_by_one.columns.input_of.tolist()) == ([0] * 4, [0, 0, 1, 1])
    assert len(read_utterances([tmp_path / "set"], role="validation")) == 2


def test_what_is_used_counts_as_new(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "m.jsonl", {"audio_path": "a.flac", "text": "a", "duration": 1})
    folder = read(tmp_path, path).folder
    os.utime(folder, ns=(1, 1))
    assert read(tmp_path, path).folder == folder
    assert folder.stat().st_mtime > 1


def test_changed_code_reads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code := tmp_path / "reader.py").write_text("before")
    write(tmp_path / "a.wav", noise(0))
    manifest = jsonl(tmp_path / "m.jsonl", {"audio_path": "a.wav", "text": "a"})
    places = []
    for source in ("before", "after", "before"):
        code.write_text(source)
        cache.digest_of_code.cache_clear()
        monkeypatch.setattr(cache, "SOURCES", (tmp_path,))
        read_utterances([str(manifest)], cache=str(tmp_path / "cache"))
        places.append(len([each for each in (tmp_path / "cache").iterdir() if cache.PLACE.fullmatch(each.name)]))
    assert places == [1, 2, 2]

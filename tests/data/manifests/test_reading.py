"""Reading: start of relative paths, repeated ids, durations of headers; and the cache, complete, old and damaged."""

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recordings import check_signals, jsonl, noise, read, signal, write
from support import ROOT

from asr_jax.core.errors import UserError
from asr_jax.data.manifests import locations, reading
from asr_jax.data.manifests.reading import Utterances, read_once
from asr_jax.data.manifests.utterances import Utterance

LINE = {"audio_path": "a.flac", "text": "hello", "duration": 1.5}


def test_absolute_paths_stay_and_the_default_id_is_the_path_as_written(tmp_path: Path) -> None:
    lines = [LINE | {"audio_path": path} for path in ("/else/where.wav", "b/../c.wav", "/x/./y//z.wav")]
    utterances = read(tmp_path, jsonl(tmp_path / "m.jsonl", *lines))
    assert [utterance.location for utterance in utterances] == [
        "/else/where.wav",
        str(tmp_path / "c.wav"),
        "/x/y/z.wav",
    ]
    assert [utterance.id for utterance in utterances] == ["/else/where.wav", "b/../c.wav", "/x/./y//z.wav"]


@pytest.mark.parametrize("place", ["manifests/a.flac", "a.flac", "here/a.flac"])
def test_all_relative_paths_start_where_one_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Paths start at the manifest, its parent folder or the current folder, also paths of earlier lines."""
    path = jsonl(tmp_path / "manifests" / "m.jsonl", LINE | {"audio_path": "gone.flac"}, LINE)
    write(tmp_path / place, noise(1))
    (tmp_path / "here").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "here")
    gone, there = read(tmp_path, path)
    assert there.location == str(tmp_path / place)
    assert gone.location == str((tmp_path / place).with_name("gone.flac"))


def test_missing_durations_come_from_the_headers(tmp_path: Path) -> None:
    lines = [{"audio_path": f"{i}.flac", "text": "a"} for i in range(20)]
    for i in range(19):
        write(tmp_path / f"{i}.flac", noise(i, 4000 + i), 8000)
    utterances = read(tmp_path, jsonl(tmp_path / "m.jsonl", *lines))
    assert [utterance.duration_s for utterance in utterances] == [(4000 + i) / 8000 for i in range(19)]
    (rejected,) = utterances.rejected
    assert (rejected.id, rejected.location) == ("19.flac", str(tmp_path / "19.flac"))
    assert rejected.reason == "no duration in the manifest, and the audio: no such file"


def test_much_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    good = [LINE | {"id": str(i)} for i in range(90)]
    assert len(read(tmp_path, jsonl(tmp_path / "m.jsonl", *good[:2], *["{"] * 10)).rejected) == 10
    assert len(read(tmp_path, jsonl(tmp_path / "m.jsonl", *good, *["{"] * 10)).rejected) == 10
    with pytest.raises(UserError, match=r"11 of 101 utterances .*\n.*:91: "):
        read(tmp_path, jsonl(tmp_path / "m.jsonl", *good, *["{"] * 11))
    lines = [{"audio_path": f"{i}.flac", "text": "a"} for i in range(20)]
    with pytest.raises(UserError, match=r"20 of 20 utterances .*\n.*0\.flac: .*no such file"):
        read(tmp_path, jsonl(tmp_path / "m.jsonl", *lines))


def test_inputs_follow_each_other_and_ids_become_unique(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = jsonl(tmp_path / "1.jsonl", LINE | {"id": "x"}, LINE | {"id": "x#2"}, LINE | {"id": "x"})
    second = jsonl(tmp_path / "2.jsonl", LINE | {"id": "x"}, LINE | {"id": "y"})
    with caplog.at_level(logging.WARNING):
        utterances = read(tmp_path, first, second)
    assert [utterance.id for utterance in utterances] == ["x", "x#2", "x#3", "x#4", "y"]
    assert utterances.columns.input_of.tolist() == [0, 0, 0, 1, 1]
    assert "2 utterances have ids of others, and their ids got #2, #3 … (first: x)" in caplog.text


def test_paths_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    good = [LINE | {"id": str(i)} for i in range(10)]
    utterances = read(tmp_path, jsonl(tmp_path / "m.jsonl", *good, LINE | {"audio_path": "a\0.flac"}))
    assert utterances.rejected[0].reason == "its name is not UTF-8, or has a zero byte; rename the file"


def test_rows_are_selected(tmp_path: Path) -> None:
    utterances = read(
        tmp_path, jsonl(tmp_path / "m.jsonl", *(LINE | {"id": str(i), "text": "a" * i} for i in range(6)))
    )
    some = utterances.select(np.array([4, 1])).select(slice(1))
    assert [utterance.id for utterance in some] == ["4"]
    assert list(some.texts()) == ["aaaa"]
    assert some.hours == 1.5 / 3600
    assert len(utterances.select(utterances.columns.num_chars > 3)) == 2


# Tests of the cache.


def folder_of_audio(folder: Path, num: int = 12) -> Path:
    for i in range(num):
        write(folder / f"{i:02}.flac", noise(i, 1000 + i)).with_suffix(".txt").write_text(f"text {i}")
    return folder


def table_of_audio(path: Path) -> Path:
    audio = [write(path.parent / "a.flac", noise(i, 1000 + i)).read_bytes() for i in range(12)]
    pq.write_table(pa.table({"audio": audio, "text": [f"text {i}" for i in range(12)], "tokens": [[1, 2]] * 12}), path)
    return path


def same(left: Utterances, right: Utterances) -> bool:
    return list(left) == list(right) and left.rejected == right.rejected and left.digest == right.digest


def test_a_second_read_opens_no_audio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of_audio(tmp_path / "set")
    first = read(tmp_path, folder)
    monkeypatch.delattr(locations, "probe")
    monkeypatch.delattr(locations, "read_audio")
    monkeypatch.delattr(reading, "gather")
    second = read(tmp_path, folder)
    assert same(first, second)
    assert second.folder == first.folder
    assert isinstance(second.columns.texts.values, np.memmap)


def test_changed_files_are_read_anew(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "m.jsonl", LINE)
    status = path.stat()
    assert [utterance.text for utterance in read(tmp_path, path)] == ["hello"]
    jsonl(path, LINE | {"text": "longer text"})
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [utterance.text for utterance in read(tmp_path, path)] == ["longer text"]
    jsonl(path, LINE | {"text": "other texts"})
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert [utterance.text for utterance in read(tmp_path, path)] == ["other texts"]
    folder = folder_of_audio(tmp_path / "set")
    read(tmp_path, folder)
    (folder / "03.txt").write_text("another")
    assert read(tmp_path, folder)[3].text == "another"
    assert read(tmp_path, folder, trim_db=10.0)[3].text == "another"


def test_audio_that_is_repaired_is_found_at_the_next_start(tmp_path: Path) -> None:
    lines = [{"audio_path": f"{i}.flac", "text": "a"} for i in range(20)]
    path = jsonl(tmp_path / "m.jsonl", *lines)
    for i in range(20):
        write(tmp_path / f"{i}.flac", noise(i, 1000 + i))
    whole = (tmp_path / "4.flac").read_bytes()
    (tmp_path / "4.flac").write_bytes(b"")
    (tmp_path / "0.flac").rename(tmp_path / "moved")
    utterances = read(tmp_path, path)
    assert [entry.id for entry in utterances.rejected] == ["0.flac", "4.flac"]
    assert same(utterances, read(tmp_path, path))
    (tmp_path / "4.flac").write_bytes(whole)
    assert [entry.id for entry in read(tmp_path, path).rejected] == ["0.flac"]
    (tmp_path / "moved").rename(tmp_path / "0.flac")
    repaired = read(tmp_path, path)
    assert not repaired.rejected
    check_signals(repaired, [noise(i, 1000 + i) for i in range(20)])
    assert list(utterances) == [utterance for utterance in repaired if utterance.id not in ("0.flac", "4.flac")]


def test_a_data_set_that_comes_later_is_found_where_it_is(tmp_path: Path) -> None:
    """The manifest is read before its audio exists, and the start of its paths is determined later."""
    path = jsonl(tmp_path / "manifests" / "m.jsonl", LINE)
    assert read(tmp_path, path)[0].location == str(tmp_path / "manifests" / "a.flac")
    write(tmp_path / "a.flac", noise(1))
    assert read(tmp_path, path)[0].location == str(tmp_path / "a.flac")


def test_paths_that_start_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = jsonl(tmp_path / "deep" / "manifests" / "m.jsonl", LINE)
    for seed, name in enumerate(("one", "two")):
        write(tmp_path / name / "a.flac", noise(seed))
        monkeypatch.chdir(tmp_path / name)
        np.testing.assert_array_equal(signal(read(tmp_path, path)[0]), noise(seed))


def damage(entry: Path, what: str) -> None:
    array = next(entry.glob("columns-*")) / "texts.values.npy"
    if what == "array gone":
        array.unlink()
    elif what == "array cut":
        array.write_bytes(array.read_bytes()[:-10])
    elif what == "array empty":
        array.write_bytes(b"")
    elif what == "names gone":
        (array.parent / "names.json").unlink()
    elif what == "columns gone":
        shutil.rmtree(array.parent)
    elif what == "bytes cut":
        (entry / "unpacked.bytes").write_bytes((entry / "unpacked.bytes").read_bytes()[:-1])
    elif what == "bytes gone":
        (entry / "unpacked.bytes").unlink()
    else:
        content = (entry / "meta.json").read_text()
        (entry / "meta.json").write_text({"meta cut": content[: len(content) // 2], "meta empty": ""}.get(what, "[]"))


@pytest.mark.parametrize(
    "what",
    ["array gone", "array cut", "array empty", "names gone", "columns gone", "bytes cut", "bytes gone", "meta cut",
     "meta empty", "meta of another kind"],
)  # fmt: skip
def test_a_damaged_entry_is_made_anew(tmp_path: Path, what: str) -> None:
    path = table_of_audio(tmp_path / "t.parquet")
    first = list(read(tmp_path, path))
    (entry,) = (tmp_path / ".cache").iterdir()
    damage(entry, what)
    again = read(tmp_path, path)
    assert list(again) == first
    check_signals(again, [noise(i, 1000 + i) for i in range(12)])
    assert again.folder == read(tmp_path, path).folder


SCRIPT = """
import sys, time
from pathlib import Path
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.reading import read_utterances
print("ready", flush=True)
sys.stdin.readline()
for _ in range(3):
    utterances = read_utterances(sys.argv[2:], cache=sys.argv[1])
    signals = (Location.parse(utterance.location).audio(rate_hz=16000) for utterance in utterances)
    print(utterances.digest, sum(int(samples.sum()) for samples in signals))
"""


def test_two_processes_read_at_once(tmp_path: Path) -> None:
    paths = [str(table_of_audio(tmp_path / "t.parquet")), str(folder_of_audio(tmp_path / "set"))]
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / ".cache"), *paths]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    runs = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(2)]
    assert [run.stdout.readline() for run in runs] == ["ready\n"] * 2
    outputs = []
    for run in runs:
        run.stdin.write("go\n")
        run.stdin.flush()
    for run in runs:
        output, errors = run.communicate(timeout=60)
        assert (run.returncode, errors) == (0, "")
        outputs += output.splitlines()
    utterances = read(tmp_path, *map(Path, paths))
    expected = sum(int(signal(utterance).sum()) for utterance in utterances)
    assert outputs == [f"{utterances.digest} {expected}"] * 6
    assert not list((tmp_path / ".cache").rglob("*.partial"))


def test_reading_once_keeps_only_bytes(tmp_path: Path) -> None:
    path = table_of_audio(tmp_path / "t.parquet")
    utterances = read_once([path], unpack_to=str(tmp_path / "out" / "b"))
    check_signals(utterances, [noise(i, 1000 + i) for i in range(12)])
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["b"]
    assert [replace(utterance, location="") for utterance in utterances] == [
        replace(utterance, location="") for utterance in read(tmp_path, path)
    ]


def test_records_in_memory() -> None:
    made = [Utterance("a", "/a.wav", "x", 1.0), Utterance("b", "/b.wav", "y", 2.0, labels=(1,))]
    utterances = Utterances.of(made)
    assert list(utterances) == made
    assert (utterances.folder, utterances.rejected, utterances.hours) == (None, (), 3 / 3600)


def test_a_path_through_a_link_is_the_file_that_the_system_opens(tmp_path: Path) -> None:
    for name in ("elsewhere/inner", "set"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "set/link").symlink_to(tmp_path / "elsewhere/inner")
    (tmp_path / "elsewhere/a.flac").touch()
    (tmp_path / "set/a.flac").touch()
    paths = ("link/../a.flac", "./a.flac", "../set/a.flac")
    manifest = jsonl(tmp_path / "set/m.jsonl", *({"audio_path": path, "text": "x", "duration": 1.0} for path in paths))
    found = [utterance.location for utterance in read(tmp_path, manifest)]
    assert os.path.samefile(found[0], tmp_path / "elsewhere/a.flac")
    assert found[1:] == [str(tmp_path / "set/a.flac")] * 2

"""Manifests: what is read, where audio is looked for, and what every broken line is told."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.core.errors import UserError
from asr_jax.data.manifest import Record, read_manifest, read_manifests, write_manifest

LINE = {"audio_path": "a.flac", "text": "hello", "duration": 1.5}


def manifest(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_all_fields_and_defaults(tmp_path: Path) -> None:
    full = LINE | {"id": "u1", "speaker": "s", "source": "set", "sample_rate": 16000}
    records = read_manifest(manifest(tmp_path / "m.jsonl", full, LINE | {"id": 7, "speaker": None, "duration": 2}))
    audio = str(tmp_path / "a.flac")
    assert records == [
        Record("u1", audio, "hello", 1.5, "s", "set"),
        Record("7", audio, "hello", 2.0, "", ""),
    ]


def test_absolute_paths_stay_and_the_default_id_is_the_path_as_written(tmp_path: Path) -> None:
    path = manifest(tmp_path / "m.jsonl", LINE | {"audio_path": "/else/where.wav"}, LINE | {"audio_path": "b/../c.wav"})
    first, second = read_manifest(path)
    assert (first.audio_path, first.id) == ("/else/where.wav", "/else/where.wav")
    assert (second.audio_path, second.id) == (str(tmp_path / "c.wav"), "b/../c.wav")


@pytest.mark.parametrize("place", ["manifests/a.flac", "a.flac"])
def test_audio_beside_the_manifest_or_one_folder_up(tmp_path: Path, place: str) -> None:
    path = manifest(tmp_path / "manifests" / "m.jsonl", LINE | {"audio_path": "gone.flac"}, LINE)
    write_flac(tmp_path / place, np.ones(8, np.int16), 16000)
    gone, there = read_manifest(path)
    assert there.audio_path == str(tmp_path / place)
    assert Path(gone.audio_path).parent == Path(there.audio_path).parent


def test_missing_duration_comes_from_the_header(tmp_path: Path) -> None:
    write_flac(tmp_path / "a.flac", np.ones(4000, np.int16), 8000)
    no_duration = {"audio_path": "a.flac", "text": ""}
    there, gone = read_manifest(manifest(tmp_path / "m.jsonl", no_duration, no_duration | {"audio_path": "b.flac"}))
    assert there.duration_s == 0.5
    assert math.isnan(gone.duration_s)


def test_byte_order_mark_windows_line_ends_and_blank_lines(tmp_path: Path) -> None:
    line = json.dumps(LINE | {"text": "zażółć"}, ensure_ascii=False)
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n\r\n{line}\r\n".encode())
    assert [record.text for record in read_manifest(path)] == ["zażółć"] * 2


BROKEN_LINES = [
    ('{"audio_path": "a.flac", "te', ":2: not JSON", "is the file cut"),
    ("[1]", ":2: a JSON list", "expected an object"),
    (json.dumps({"audio_filepath": "a", "text": "b"}), ':2: no "audio_path"', "did you mean 'audio_filepath'"),
    (json.dumps({"audio_path": "a"}), ':2: no "text"', '"duration": 1.5'),
    ("{}", ':2: no "audio_path" among its fields (none)', ""),
    (json.dumps(LINE | {"text": None}), ':2: "text" is null', "expected a string"),
    (json.dumps(LINE | {"audio_path": ""}), ':2: "audio_path" is ""', "expected a string"),
    (json.dumps(LINE | {"duration": "1.5"}), ':2: "duration" is "1.5"', "number of seconds"),
    (json.dumps(LINE | {"duration": True}), ':2: "duration" is true', "number of seconds"),
    ('{"audio_path": "a", "text": "b", "duration": NaN}', ':2: "duration" is NaN', "finite"),
    (json.dumps(LINE | {"text": "\ud83d"}), ':2: "text" is "\\ud83d"', "half a character"),
    (json.dumps(LINE | {"source": ["x"]}), ':2: "source" is ["x"]', "expected a string"),
]


@pytest.mark.parametrize(("line", "place", "mend"), BROKEN_LINES)
def test_a_broken_line_is_named(tmp_path: Path, line: str, place: str, mend: str) -> None:
    path = manifest(tmp_path / "m.jsonl", LINE, line)
    with pytest.raises(UserError) as caught:
        read_manifest(path)
    assert str(path) + place in str(caught.value)
    assert mend in str(caught.value)


def test_files_that_are_no_manifest_are_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(json.dumps(LINE).encode() + b"\n" + '{"text": "é"}'.encode("latin-1"))
    with pytest.raises(UserError, match=r"latin.jsonl:2: not UTF-8 \(byte 0xe9 at 10\)"):
        read_manifest(latin)
    for path, message in [
        (manifest(tmp_path / "empty.jsonl"), "no records"),
        (manifest(tmp_path / "blank.jsonl", "", "  "), "no records"),
        (tmp_path / "none.jsonl", "no such manifest"),
        (tmp_path, "cannot be read"),
    ]:
        with pytest.raises(UserError, match=message):
            read_manifest(path)


def test_manifests_follow_each_other_and_ids_become_unique(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = manifest(tmp_path / "1.jsonl", LINE | {"id": "x"}, LINE | {"id": "x#2"}, LINE | {"id": "x"})
    second = manifest(tmp_path / "2.jsonl", LINE | {"id": "x"}, LINE | {"id": "y"})
    with caplog.at_level(logging.WARNING):
        ids = [record.id for record in read_manifests([first, second])]
    assert ids == ["x", "x#2", "x#3", "x#4", "y"]
    assert "2 ids repeat (first: x)" in caplog.text


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "set" / "manifests" / "m.jsonl"
    places = ["set/manifests/a.flac", "set/audio/b.flac", "elsewhere/audio/c.flac"]
    records = [
        Record(str(i), str(tmp_path / place), "naïve text", 1 / 3, "s" * i, "t" * i) for i, place in enumerate(places)
    ]
    write_manifest(path, records)
    assert read_manifest(path) == records
    written = [json.loads(line)["audio_path"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert written == ["a.flac", "../audio/b.flac", str(tmp_path / places[2])]
    assert [file.name for file in path.parent.iterdir()] == ["m.jsonl"]


def test_an_unfinished_write_leaves_the_old_manifest(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    record = Record("1", str(tmp_path / "a.flac"), "one", 1.0)
    write_manifest(path, [record])

    def failing() -> Any:
        yield record
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_manifest(path, failing())
    assert read_manifest(path) == [record]

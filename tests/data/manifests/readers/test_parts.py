"""Parts of recordings: every spelling and unit of their fields, in every reader; skipped utterances; unused fields."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from part_readers import WRITERS, Row, nemo_tarred, parquet, part_of_entry, read_rows, tar, webdataset
from recordings import RATE, check_conversion, check_signals, jsonl, noise, read, write
from support import SHARED, approx

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.items import from_place, items_at
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.base import ReadOptions, warn_once
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.readers.parts import part_of
from asr_jax.data.manifests.readers.spellings import spelling
from asr_jax.data.manifests.storage import Storage
from asr_jax.data.manifests.utterances import Rejected, Utterance

CASES = SHARED / "cases"
PART = (1.0, 1.5, None)
WHOLE = (0.0, None, None)
# Fields, and the part that they select, or the name in the reason of the rejection.
ROWS: list[tuple[Row, tuple[float, float | None, int | None] | str]] = [
    ({"offset": 1.0, "duration": 1.5}, PART),
    ({"duration": "1.5", "offset": 1}, PART),
    ({"start": 1, "end": 2.5}, PART),
    ({"end_time": "2.5", "start_time": "1"}, PART),
    ({"begin": 1.0, "end": 2.5}, PART),
    ({"begin_time": 1, "end_time": "2.50"}, PART),
    ({"segment_start": 1.0, "segment_end": 2.5}, PART),
    ({"startTime": 1.0, "endTime": 2.5}, PART),
    ({"start_ms": 1000, "end_ms": "2500"}, PART),
    ({"offset_ms": 1000, "duration_ms": 1500}, PART),
    ({"start_sample": 16000, "end_sample": 40000, "sample_rate": 16000}, PART),
    ({"sample_offset": 8000, "num_samples": 12000, "sampling_rate": 8000}, PART),
    ({"start": 16000, "stop": 40000, "duration": 1.5}, PART),
    ({"start_frame": 100, "end_frame": 250, "duration": 1.5}, PART),
    ({"end": 2.5, "duration": 1.5}, PART),
    ({"start": 1.0, "offset": 1.0, "end": 2.5, "duration": 1.5}, PART),
    ({"end": 2.5}, (0.0, 2.5, None)),
    ({"end_ms": 2500}, (0.0, 2.5, None)),
    ({"offset": 1.0}, (1.0, None, None)),
    ({"start_s": 1.0, "channel": 1, "duration_s": 1.5}, (1.0, 1.5, 1)),
    ({"channel_id": "1"}, (0.0, None, 1)),
    ({"duration": 1.5}, WHOLE),
    ({"start": None, "end": None}, WHOLE),
    ({"start": 1.0, "offset": 2.0, "duration": 1.5}, "offset"),
    ({"start": 1.0, "end": 2.5, "duration": 60.0}, "duration"),
    ({"start": "00:01", "end": "00:02.5"}, "start"),
    ({"start_sample": 16000, "end_sample": 40000}, "start_sample"),
    ({"start_frame": 100, "end_frame": 250}, "start_frame"),
    ({"start": 16000, "stop": 40000}, "stop"),
    ({"offset": -1.0, "duration": 1.5}, "offset"),
    ({"begin": 2.5, "end": 1.0}, "begin"),
    ({"onset": "1,5", "duration": 1.5}, "onset"),
    ({"offset": 1.0, "length": 24000}, "length"),
    ({"channel": "left"}, "channel"),
    ({"channel": 0, "channel_id": 1}, "channel_id"),
]


@pytest.mark.parametrize("write_rows", WRITERS, ids=lambda write: write.__name__)
def test_every_reader_finds_the_same_parts(tmp_path: Path, write_rows: Callable) -> None:
    lower = write_rows.__name__ in ("csv", "tsv")  # tables of text have names in any case
    # SpeechBrain's length is in seconds.
    rows = [each for each in ROWS if "length" not in each[0] or write_rows.__name__ != "speechbrain"]
    entries = read_rows(write_rows, tmp_path, [row for row, _ in rows], ReadOptions())
    for (row, expected), entry in zip(rows, entries, strict=True):
        if isinstance(expected, str):
            assert isinstance(entry, Rejected), (row, entry)
            assert f'"{expected.lower() if lower else expected}"' in entry.reason
        else:
            assert isinstance(entry, Utterance), (row, entry)
            start_s, length_s, channel = part_of_entry(entry)
            assert (start_s, length_s, channel) == (approx(expected[0]), length_s and approx(expected[1]), expected[2])
            assert (length_s is None) == (expected[1] is None)
            seconds = row.get("duration", 1.5) if expected is WHOLE and "duration" in row else expected[1]
            is_original = write_rows.__name__ == "quartznet" and seconds is None
            assert entry.duration_s == approx(99.0 if is_original else seconds or math.nan, nan_ok=True)


@pytest.mark.parametrize("write_rows", WRITERS, ids=lambda write: write.__name__)
def test_marked_utterances_are_left_out_by_every_reader(tmp_path: Path, write_rows: Callable) -> None:
    marks = [True, False, 1, 0, "true", "False", None, "maybe"]
    rows = [{"_skipme": mark} for mark in marks]
    if write_rows.__name__ == "example_records":
        rows = [row if not isinstance(row["_skipme"], bool) else {"_skipme": int(row["_skipme"])} for row in rows]
    entries = read_rows(write_rows, tmp_path, rows, ReadOptions())
    stages = [entry.stage if isinstance(entry, Rejected) else "read" for entry in entries]
    assert stages == ["filter", "read", "filter", "read", "filter", "read", "read", "manifest"]
    assert '"_skipme" is "maybe"; expected true or false' in entries[-1].reason


def test_skipped_utterances_are_counted_and_are_no_mistakes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"audio_path": "a.wav", "text": "a", "duration": 1, "_skipme": i % 3 > 0} for i in range(60)]
    utterances = read(tmp_path, path := jsonl(tmp_path / "m.jsonl", *rows))
    assert (len(utterances), utterances.rejected) == (20, ())
    assert f'{path}: 40 utterances skipped, because "_skipme" is set' in caplog.text
    with pytest.raises(UserError, match=r'has no utterances: 1 utterance skipped, because "_skipme" is set; expected'):
        read(tmp_path, jsonl(tmp_path / "all.jsonl", rows[1]))


@pytest.mark.parametrize("write_rows", WRITERS, ids=lambda write: write.__name__)
def test_fields_that_look_like_times_are_counted_by_every_reader(tmp_path: Path, write_rows: Callable) -> None:
    options = ReadOptions()
    rows: list[Row] = [{"word_start": 1.0, "num_frames": 9, "lang": "en", "from": "en"}, {"word_start": 2.0}, {}]
    assert all(isinstance(entry, Utterance) for entry in read_rows(write_rows, tmp_path, rows, options))
    counts = {remark.partition(",")[0]: num for remark, num in options.remarks.items()}
    assert counts == {'with a field "word_start"': 2, 'with a field "num_frames"': 1}


def test_unused_times_are_named_once_for_an_input_also_from_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"audio_path": "a.wav", "text": "a", "duration": 1, "meta": {"start": 3.0}, "time": "00:01:02"}
    row |= {"recording_time": "0.5-1.0", "span": "1,5"}
    path = jsonl(tmp_path / "m.jsonl", *[row] * 3)
    for _ in range(2):  # the second time from the cache, as in another process
        read(tmp_path, path)
        read(tmp_path, path)
        warnings = [record.message for record in caplog.records if "looks like a time" in record.message]
        assert [warning.partition(", which")[0] for warning in warnings] == [
            f'{path}: 3 utterances with a field "meta.start"',
            f'{path}: 3 utterances with a field "time"',
            f'{path}: 3 utterances with a field "recording_time"',
            f'{path}: 3 utterances with a field "span"',
        ]
        warn_once.cache_clear()
        caplog.clear()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"timestamp": [1.0, 2.5]}, '"timestamp" is [1.0, 2.5]; expected start'),
        ({"ts": "0.5-1.0"}, '"ts" is "0.5-1.0"; expected start (or offset) and end'),
        ({"time": "0.5 - 1.0"}, '"time" is "0.5 - 1.0"; expected start'),
        ({"segment": "12 s to 15.25 s"}, '"segment" is "12 s to 15.25 s"; expected start'),
        ({"Time Range": "[0.5, 1]"}, '"Time Range" is "[0.5, 1]"; expected start'),
        ({"interval": "1–2.5"}, "expected start"),
        ({"segment": {"start": 1.0, "end": 2.5}}, '"segment" is {"start": 1.0, "end": 2.5}; expected start'),
        ({"start": True}, '"start" is true; expected a finite number'),
        ({"start": "1_5"}, '"start" is "1_5"; expected a finite number'),
        ({"start": 10**400}, '"start" is 1000'),
        ({"offset_ms": "a"}, "expected a finite number of milliseconds"),
        ({"channel": [0, 1]}, '"channel" is [0, 1]; expected a whole number'),
        ({"segment": "Benchmark", "channels": 2, "to": "de", "end": ""}, (math.nan, math.nan, None)),
        ({"time": "2024-05", "segment": "3-a", "range": "1,5", "span": "A-B"}, (math.nan, math.nan, None)),
        ({"channels": [1], "tmin": 1, "tmax": 2.5}, (1.0, 1.5, 1)),
        ({"Start Time": 1.0, "End Time": 2.5}, (1.0, 1.5, None)),
        ({"start": 1.0, "duration": 0}, (1.0, math.nan, None)),
        ({"from": 1.0, "to": "2.5"}, (1.0, 1.5, None)),
        ({"from_ms": 1000, "to_ms": "2500"}, (1.0, 1.5, None)),
        ({"tmin_s": 1.0, "xmax_ms": 2500, "tos": True}, (1.0, 1.5, None)),
        ({"offset_us": 4e9, "duration": 3}, (4000.0, 3.0, None)),
        ({"start": 1.0, "stop": 2.5, "duration": 1.5}, (1.0, 1.5, None)),
        ({"start": 5.0, "end": 9.0, "audio_duration": 60}, (5.0, 4.0, None)),
        ({"duration": 1.52, "num_samples": 24000, "sr": 16000}, (math.nan, 1.52, None)),
        ({"duration": 9.0, "num_samples": 24000, "sr": 16000}, '"duration" is 9 and "num_samples" is 24000: expected'),
    ],
)
def test_values_that_only_json_has(fields: Row, expected: str | tuple[Any, ...]) -> None:
    if isinstance(expected, str):
        with pytest.raises(InvalidEntry) as error:
            part_of(fields, ReadOptions())
        assert expected in str(error.value)
    else:
        assert part_of(fields, ReadOptions()) == approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("offset", ("start", "")), ("beg_time", ("start", "")), ("segmentStartMs", ("start", "ms")),
        ("utt-start-secs", ("start", "s")), ("frame_offset", ("start", "frames")), ("xmax", ("end", "")),
        ("end_offset", ("end", "")), ("clip_duration_ms", ("duration", "ms")), ("n_samples", ("duration", "samples")),
        ("length_in_samples", ("duration", "samples")), ("audio_channel", ("channel", "")),
        ("original_duration", ("other", "")), ("timestamps", ("part", "")), ("wav_length", ("other", "")),
        ("weekend", None), ("sample_rate", None), ("text", None), ("speaker_id", None), ("timezone", None),
    ],
)  # fmt: skip
def test_roles_and_units_of_names(name: str, expected: tuple[str, str] | None) -> None:
    found = spelling(name)
    assert (found and (found.role, found.unit)) == expected


def test_signals_of_parts(tmp_path: Path) -> None:
    stereo = np.stack([noise(1, 3 * RATE), noise(2, 3 * RATE)], axis=1)
    write(tmp_path / "a.wav", stereo)
    rows = [
        {"start_time": 1, "end_time": 2.5, "channel": 1},
        {"begin": "1", "end": "2.5", "channel": "0"},
        {"end": 0.5},
    ]
    path = jsonl(tmp_path / "m.jsonl", *({"audio_path": "a.wav", "text": "a"} | row for row in rows))
    expected = [stereo[16000:40000, 1], stereo[16000:40000, 0], np.rint(stereo[:8000].mean(axis=1))]
    check_signals(read(tmp_path, path), expected)
    check_conversion(tmp_path, path)


def test_items_of_shards_are_parts(tmp_path: Path) -> None:
    for write_rows in (parquet, webdataset):
        (item,) = items_at(str(write_rows(tmp_path, [{"begin": 1.0, "end": 2.5}])), from_place(0), ReadOptions())
        assert isinstance(item.entry, Utterance)
        assert part_of_entry(item.entry) == PART


def test_features_are_not_cut(tmp_path: Path) -> None:
    lines = [{"features": [[1, 2]] * 30, "text": "a"} | fields for fields in ({}, {"offset": 0}, {"offset": 5.0})]
    utterances = read(tmp_path, jsonl(tmp_path / "m.jsonl", *lines))
    assert [utterance.num_frames for utterance in utterances] == [30, 30]
    assert [entry.reason for entry in utterances.rejected] == [
        '"offset" is 5.0: ready features are used whole; expected features of the part, without the start'
    ]


@pytest.mark.parametrize("kind", ["parquet", "arrays", "webdataset", "shard"])
def test_audio_that_is_already_cut_is_used_whole(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Tables of segments have the times in the original recordings beside the audio of the segments."""
    samples = noise(1, 3 * RATE)
    rows = [{"begin_time": start, "end_time": start + 3.0} for start in (780.25, 0.5)]
    rows += [{"begin_time": 0.5, "end_time": 2.0}, {"begin_time": 2.0, "end_time": 3.0}]
    content = write(tmp_path / "x.flac", samples).read_bytes()
    if kind == "webdataset" or kind == "shard":
        members = {
            f"u{i}.{end}": data
            for i, row in enumerate(rows)
            for end, data in (("flac", content), ("json", json.dumps({"text": "a"} | row).encode()))
        }
        path = tar(tmp_path / "m.tar", members)
    else:
        audio = [{"array": (samples / 32768).tolist(), "sampling_rate": RATE} if kind == "arrays" else content] * 4
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        pq.write_table(pa.table({"audio": audio, "text": ["a"] * 4} | columns), path := tmp_path / "m.parquet")
    expected = [samples, samples, samples[8000:32000], samples[32000:]]
    if kind == "shard":
        found = [
            item.read(Location.audio, Storage(), rate_hz=RATE)
            for item in items_at(str(path), from_place(0), ReadOptions())
        ]
        for signal, samples in zip(found, expected, strict=True):
            np.testing.assert_array_equal(signal, samples)
        return
    check_signals(read(tmp_path, path), expected)
    assert f'{path}: 2 utterances with audio as long as the part that "begin_time" and "end_time" give' in caplog.text


def test_a_part_of_a_part_is_named(tmp_path: Path) -> None:
    lines = [
        {"audio_path": "a.wav#seconds=1.0+2.0", "text": "a", "duration": 2.0} | more for more in ({}, {"start": 1})
    ]
    utterances = read(tmp_path, jsonl(tmp_path / "m.jsonl", *lines))
    assert [Location.parse(each.location).start_s for each in utterances] == [1.0]
    assert "a.wav#seconds=1.0+2.0 is a part of a file, and so are the fields" in utterances.rejected[0].reason


def test_names_of_further_parts_in_tars_of_nemo(tmp_path: Path) -> None:
    path = nemo_tarred(tmp_path, [{"offset": float(i), "duration": 1.0} for i in range(3)])
    with path.open("a") as file:
        file.write(json.dumps({"audio_filepath": "other-sub1.wav", "text": "a", "shard_id": 0}) + "\n")
    utterances = read(tmp_path, path)
    assert [(each.id, Location.parse(each.location).start_s) for each in utterances] == [
        ("long.wav", 0.0), ("long-sub1.wav", 1.0), ("long-sub2.wav", 2.0),
    ]  # fmt: skip
    assert "no file 'other-sub1.wav' in " in utterances.rejected[0].reason


@pytest.mark.skipif(not CASES.exists(), reason=f"no {CASES}: set ASR_JAX_SHARED to its folder")
def test_a_part_in_a_tar_of_nemo_is_that_of_its_offset(tmp_path: Path) -> None:
    utterances = read(tmp_path, CASES / "nemo-tar-offset" / "tarred_audio_manifest.json")
    assert [utterance.text for utterance in utterances] == ["second part", "first part"]
    samples, _ = soundfile.read(CASES / "nemo-tar-offset" / "second.wav", dtype="int16")
    check_signals(utterances.select(slice(0, 1)), [samples])

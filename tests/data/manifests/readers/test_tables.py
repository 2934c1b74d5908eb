"""Parquet and Arrow: every name of a column, audio as bytes and as paths, features; opened once, unpacked once."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from recordings import RATE, check_conversion, check_signals, noise, read, write

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.locations import Location

SIGNALS = [noise(seed, 2000 + seed) for seed in range(5)]
FRAMES = [np.random.default_rng(seed).normal(size=(3 + seed, 4)).astype(np.float32) for seed in range(5)]
TEXTS = ["eins", "zwei", "", "vier", "fünf"]


def content(samples: np.ndarray, kind: str = "FLAC") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format=kind)
    return file.getvalue()


AUDIO = [content(samples) for samples in SIGNALS]
# Hugging Face stores its Audio feature in this form.
HF_AUDIO = [{"bytes": data, "path": f"clip {i}.flac"} for i, data in enumerate(AUDIO)]


def parquet(path: Path, columns: dict[str, Any], rows_of_a_group: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows_of_a_group)
    return path


def stream(path: Path, columns: dict[str, Any], compression: str | None = None, as_file: bool = False) -> Path:
    """An Arrow file as `datasets` writes it: a stream of record batches."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    make = pa.ipc.new_file if as_file else pa.ipc.new_stream
    with make(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


@pytest.mark.parametrize("name", ["audio_bytes", "bytes", "wav", "audio_data", "audio"])
def test_parquet_of_audio_bytes(tmp_path: Path, name: str) -> None:
    path = parquet(tmp_path / "part.parquet", {name: AUDIO, "text": TEXTS, "speaker_id": [1, 1, 2, 2, None]})
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == [f"part-{i}" for i in range(1, 6)]
    assert [utterance.text for utterance in utterances] == TEXTS
    assert [utterance.speaker for utterance in utterances] == ["1", "1", "2", "2", ""]
    assert [utterance.duration_s for utterance in utterances] == [len(samples) / RATE for samples in SIGNALS]
    check_signals(utterances, SIGNALS)
    check_conversion(tmp_path, path)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_hugging_face_audio(tmp_path: Path, kind: str) -> None:
    columns = {"id": ["a", "b", "c", "d", "e"], "audio": HF_AUDIO, "sentence": TEXTS, "duration": [1.0] * 5}
    path = parquet(tmp_path / "p.parquet", columns) if kind == "parquet" else stream(tmp_path / "a.arrow", columns)
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == ["a", "b", "c", "d", "e"]
    assert {utterance.duration_s for utterance in utterances} == {1.0}
    check_signals(utterances, SIGNALS)
    assert [Location.parse(utterance.location).name for utterance in utterances] == [f"clip {i}.flac" for i in range(5)]
    check_conversion(tmp_path, path)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("is_nested", [True, False])
def test_decoded_arrays(tmp_path: Path, kind: str, is_nested: bool) -> None:
    """Samples as Hugging Face's `datasets` decodes them, in a column with the rate or beside a column of it."""
    arrays = [(samples / 32768).tolist() for samples in SIGNALS]
    nested = [{"path": "clip.mp3", "array": array, "sampling_rate": RATE} for array in arrays]
    columns = {"audio": nested} if is_nested else {"speech": arrays, "sampling_rate": [RATE] * 5}
    parts = {"begin": [0.0] * 5, "end": [None, "0.1", None, None, None], "id": list("abcde")}
    path = (parquet if kind == "parquet" else stream)(tmp_path / f"t.{kind}", columns | {"text": TEXTS} | parts)
    utterances = read(tmp_path, path)
    check_signals(utterances, [SIGNALS[0], SIGNALS[1][:1600], *SIGNALS[2:]])
    check_conversion(tmp_path, path)


def test_arrays_that_are_no_audio_are_named(tmp_path: Path) -> None:
    good = [{"array": [0.5] * 400, "sampling_rate": RATE}] * 30
    bad = [{"array": [3.5, 2.0], "sampling_rate": RATE}, {"array": [0.5], "sampling_rate": None}, {"array": None}, None]
    utterances = read(tmp_path, parquet(tmp_path / "t.parquet", {"audio": good + bad, "text": ["a"] * 34}))
    assert len(utterances) == 30
    for entry, reason in zip(
        utterances.rejected, ("floats from -1 to 1", "1 values without a rate", "audio is {", "audio is {"), strict=True
    ):
        assert reason in entry.reason


@pytest.mark.parametrize("name", ["audio_path", "path", "file", "file_path", "audio"])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_paths(tmp_path: Path, name: str, kind: str) -> None:
    for i, samples in enumerate(SIGNALS):
        write(tmp_path / "wavs" / f"{i}.wav", samples)
    paths: list[Any] = [f"wavs/{i}.wav" for i in range(5)]
    if name == "audio":
        paths = [{"bytes": None, "path": path} for path in paths]
    columns = {
        name: paths,
        "transcription": TEXTS,
        "utt_id": ["a", "b", "c", "d", "e"],
        "tokens": [[1], [], [2], [], []],
    }
    if name == "audio":
        columns[name] = pa.array(paths, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    path = (parquet if kind == "parquet" else stream)(tmp_path / "tables" / f"t.{kind}", columns)
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == ["a", "b", "c", "d", "e"]
    assert [utterance.labels for utterance in utterances] == [(1,), (), (2,), (), ()]
    check_signals(utterances, SIGNALS)


@pytest.mark.parametrize(
    ("key", "text", "tokens"),
    [
        ("id", "text", "tokens"),
        ("utt_id", "transcript", "target"),
        ("utterance_id", "transcription", "targets"),
        ("key", "sentence", "labels"),
        ("sample_id", "normalized_text", "label_ids"),
    ],
)
def test_names_of_columns(tmp_path: Path, key: str, text: str, tokens: str) -> None:
    columns = {key: ["u", "v"], text: ["x", "y"], tokens: [[1, 2], [3]], "audio_path": ["a", "b"], "duration": [1.0, 2]}
    utterances = read(tmp_path, parquet(tmp_path / "p.parquet", columns | {"other": [0, 1]}))
    assert [(utterance.id, utterance.text, utterance.labels) for utterance in utterances] == [
        ("u", "x", (1, 2)),
        ("v", "y", (3,)),
    ]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("form", "name", "rows", "cols"),
    [
        ("flat", "features", "rows", "cols"),
        ("flat", "input_features", "num_frames", "feature_dim"),
        ("flat", "feature", "frames", "num_features"),
        ("flat", "fbank", "feature_rows", "cols"),
        ("nested", "filterbank", "", ""),
        ("fixed", "features", "", ""),
    ],
)
def test_features(tmp_path: Path, kind: str, form: str, name: str, rows: str, cols: str) -> None:
    """Features are flat as written by `extract_features`, nested, or lists of a fixed size."""
    columns: dict[str, Any] = {"text": TEXTS, "duration_ms": [30, 40, 50, 60, 70]}
    if form == "flat":
        columns |= {name: [frames.ravel() for frames in FRAMES], rows: [len(f) for f in FRAMES], cols: [4] * 5}
    elif form == "nested":
        columns[name] = [frames.tolist() for frames in FRAMES]
    else:
        columns[name] = pa.array([frames.tolist() for frames in FRAMES], pa.list_(pa.list_(pa.float32(), 4)))
    path = (parquet if kind == "parquet" else stream)(tmp_path / f"t.{kind}", columns)
    utterances = read(tmp_path, path)
    assert [utterance.duration_s for utterance in utterances] == [0.03, 0.04, 0.05, 0.06, 0.07]
    assert [(utterance.num_frames, utterance.num_values) for utterance in utterances] == [
        frames.shape for frames in FRAMES
    ]
    check_signals(utterances, FRAMES)
    check_conversion(tmp_path, path)


def test_ragged_and_empty_features_are_refused(tmp_path: Path) -> None:
    good = [[[1.0, 2.0]]] * 30
    columns = {"features": [*good, [[1.0], [1.0, 2.0]], [], None], "text": [""] * 33}
    utterances = read(tmp_path, parquet(tmp_path / "p.parquet", columns))
    assert len(utterances) == 30
    assert [entry.location.rpartition(": ")[2] for entry in utterances.rejected] == ["row 31", "row 32", "row 33"]
    assert "ragged features" in utterances.rejected[0].reason
    assert "empty features" in utterances.rejected[1].reason
    assert 'no "audio_path"' in utterances.rejected[2].reason


def test_parquet_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    whole = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda *args, **options: opened.append(args) or whole(*args, **options))
    path = parquet(tmp_path / "p.parquet", {"audio_bytes": AUDIO, "text": TEXTS}, rows_of_a_group=1)
    utterances = read(tmp_path, path)
    path.unlink()
    check_signals(utterances, SIGNALS)
    assert len(opened) == 1


def test_arrow_is_read_where_it_lies(tmp_path: Path) -> None:
    path = stream(tmp_path / "a.arrow", {"audio": HF_AUDIO, "text": TEXTS})
    utterances = read(tmp_path, path)
    data = path.read_bytes()
    for utterance, audio in zip(utterances, AUDIO, strict=True):
        location = Location.parse(utterance.location)
        assert location.path == str(path)
        assert data[location.first_byte :][: location.num_bytes] == audio
    assert not list((tmp_path / ".cache").rglob("*.bytes"))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("as_file", [False, True])
def test_arrow_of_other_programs(tmp_path: Path, compression: str | None, as_file: bool) -> None:
    """Files and streams, compressed batches, large types, rows without audio."""
    large = pa.array([None, *AUDIO[1:]], pa.large_binary())
    columns = {
        "wav": large,
        "path": ["gone.wav"] * 5,
        "text": pa.array(TEXTS, pa.large_string()),
        "duration": [1.0] * 5,
    }
    utterances = read(tmp_path, stream(tmp_path / "a.arrow", columns, compression, as_file))
    assert [utterance.text for utterance in utterances] == TEXTS
    assert utterances[0].location == str(tmp_path / "gone.wav")
    check_signals(utterances.select(slice(1, None)), SIGNALS[1:])
    assert bool(list((tmp_path / ".cache").rglob("*.bytes"))) == (compression is not None)


def saved_to_disk(folder: Path, first: int, after: int) -> None:
    """One split as written by `Dataset.save_to_disk`, in two shards."""
    middle = (first + after) // 2
    names = []
    for shard, (low, high) in enumerate([(first, middle), (middle, after)]):
        names.append(f"data-{shard:05}-of-00002.arrow")
        stream(folder / names[-1], {"audio": HF_AUDIO[low:high], "text": TEXTS[low:high]})
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"text": {"dtype": "string"}}}))
    (folder / "cache-0123456789abcdef.arrow").write_bytes(b"of a map that was made later")


def test_a_data_set_saved_to_disk(tmp_path: Path) -> None:
    saved_to_disk(tmp_path / "set", 0, 5)
    check_signals(read(tmp_path, tmp_path / "set"), SIGNALS)
    check_conversion(tmp_path, tmp_path / "set")


def test_a_dictionary_of_data_sets_saved_to_disk(tmp_path: Path) -> None:
    folder = tmp_path / "dict"
    saved_to_disk(folder / "train", 0, 2)
    saved_to_disk(folder / "validation", 2, 4)
    saved_to_disk(folder / "test", 3, 5)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation", "test"]}))
    check_signals(read(tmp_path, folder), SIGNALS[:2])
    check_signals(read(tmp_path, folder, role="validation"), SIGNALS[2:4])


def test_a_folder_of_parquet_files(tmp_path: Path) -> None:
    for part, rows in enumerate([slice(0, 2), slice(2, 5)]):
        parquet(tmp_path / "set" / f"part-{part}.parquet", {"audio": HF_AUDIO[rows], "text": TEXTS[rows]})
    check_signals(read(tmp_path, tmp_path / "set"), SIGNALS)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_what_is_no_table_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"t.{kind}"
    (parquet if kind == "parquet" else stream)(path, {"audio": HF_AUDIO, "text": TEXTS})
    whole = path.read_bytes()
    for data in (b"", whole[:100], whole[: len(whole) // 2], b"no table" * 99):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"not a complete (Parquet|Arrow) file"):
            read(tmp_path, path)
    (parquet if kind == "parquet" else stream)(path, {"wave": [1], "noise": ["a"]})
    with pytest.raises(UserError, match=r"none of its columns \(wave, noise\) is known"):
        read(tmp_path, path)

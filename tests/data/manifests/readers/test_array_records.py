"""ArrayRecord files: the three forms of records, samples with their rate, invalid records, damaged files."""

import json
import os
import pickle

import fsspec
import msgpack
import numpy as np
import pytest
from array_record_files import example, write_records
from recordings import check_conversion, check_signals, noise, read, write

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.inputs import described as described_inputs
from asr_jax.data.manifests.inputs import set_names
from asr_jax.data.manifests.items import from_place, items_at
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.array_records import fields_of
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.storage import Storage
from tests.support import approx

# The first message of TensorFlow's tutorial "TFRecord and tf.train.Example".
OF_TENSORFLOW = (
    b"\nR\n\x14\n\x08feature2\x12\x08\n\x06\n\x04goat\n\x11\n\x08feature0\x12\x05\x1a\x03\n\x01\x00"
    b"\n\x14\n\x08feature3\x12\x08\x12\x06\n\x04[\xd3|?\n\x11\n\x08feature1\x12\x05\x1a\x03\n\x01\x04"
)


def test_example_of_tensorflow():
    fields = fields_of(OF_TENSORFLOW, "")
    assert fields == {"feature2": b"goat", "feature0": 0, "feature3": approx(0.9876), "feature1": 4}
    order = ("feature2", "feature0", "feature3", "feature1")
    tensorflow = {name: fields[name] for name in order}
    assert example(tensorflow) == OF_TENSORFLOW


def test_forms_of_records(tmp_path):
    content = write(tmp_path / "a.flac", noise(0, 4000)).read_bytes()
    frames = np.arange(6, dtype=np.float32) / 8
    write_records(
        tmp_path / "corpus-train.array_record-00000-of-00001",
        [
            msgpack.packb({"id": "m", "audio": content, "text": "ein Wort", "speaker": "s", "duration": 0.25}),
            example({"audio": content, "text": "zwei Wörter", "speaker_id": 7}),
            json.dumps({"id": "j", "audio_path": "a.flac", "text": "drei"}).encode(),
            example({"id": "e", "speech": noise(1).tolist(), "sample_rate": 16000, "tokens": [5]}),
            example({"id": "f", "features": frames.tolist(), "rows": 3, "cols": 2, "text": "vier"}),
        ],
    )
    found = read(tmp_path, tmp_path / "corpus-train.array_record-00000-of-00001")
    assert [(each.id, each.text, each.speaker) for each in found] == [
        ("m", "ein Wort", "s"), ("corpus-train-00000-of-00001-2", "zwei Wörter", "7"), ("j", "drei", ""),
        ("e", "", ""), ("f", "vier", ""),
    ]  # fmt: skip
    check_signals(found, [noise(0, 4000)] * 3 + [noise(1), frames.reshape(3, 2)])
    assert list(found[3].labels) == [5]
    check_conversion(tmp_path, tmp_path / "corpus-train.array_record-00000-of-00001")


def described(folder, rate_hz, dims=("-1",)):
    """Writes the description of TensorFlow Datasets."""
    audio = {"shape": {"dimensions": list(dims)}, "dtype": "int64", "sampleRate": str(rate_hz)}
    about = {"featuresDict": {"features": {"speech": {"audio": audio}, "text": {"text": {}}}}}
    (folder / "features.json").write_text(json.dumps(about))
    os.utime(folder / "features.json", (rate_hz, rate_hz))  # another time for another content


def test_rate_of_samples_beside_the_file(tmp_path):
    write_records(tmp_path / "a.array_record", [example({"speech": [1, 2, 3, 4] * 100, "text": "a"})])
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(UserError, match='"speech" is 400 samples without a rate; expected a field sample_rate'):
        read(tmp_path, tmp_path)
    for rate_hz in (8000, 16000):
        described(tmp_path, rate_hz)
        (utterance,) = read(tmp_path, tmp_path)
        assert utterance.duration_s == 400 / rate_hz
    described(tmp_path, 4000, dims=("-1", "2"))
    with pytest.raises(
        UserError, match='"speech" is samples at 4000 Hz of 2 channels; expected a rate above 0 and one'
    ):
        read(tmp_path, tmp_path)


def test_rate_of_samples_beside_a_url(tmp_path):
    described(tmp_path, 8000)
    system = fsspec.filesystem("memory")
    system.pipe_file("/described/features.json", (tmp_path / "features.json").read_bytes())
    write_records(tmp_path / "a.array_record", [example({"speech": [1, 2, 3, 4] * 100, "text": "a"})])
    system.pipe_file("/described/a.array_record", (tmp_path / "a.array_record").read_bytes())
    (item,) = items_at("memory://described/a.array_record", from_place(0), ReadOptions())
    assert item.read(Location.info, Storage()).duration_s == 400 / 8000


@pytest.mark.parametrize("num", range(60, 90))
def test_an_example_of_any_size_is_no_json(num):
    """An Example of 123 bytes begins with a line break and a brace."""
    assert fields_of(example({"audio_path": "/data/a.flac", "text": "x" * num}), "a")["text"] == "x" * num


def test_fields_of_the_first_record_are_shown(tmp_path):
    path = write_records(tmp_path / "a.array_record", [example({"audio": b"RIFF", "text": "a", "other": 1})])
    assert described_inputs([str(path)]) == [f"{path}: read as ArrayRecord (audio, text)"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (pickle.dumps({"audio": b"x"}), "a pickle and is not read because a pickle can run code; expected a JSON"),
        (b"", "record of 0 bytes that begins with b''; expected a JSON object"),
        (b"{]", "not JSON"),
        (b"\n\x09\xff", "not a tf.train.Example"),
        (example({"text": b"\xff"}), "text: not UTF-8"),
        (example({"audio": [0, 70000], "sample_rate": 8000}), "expected samples of 16 bits"),
        (example({"audio": [0.5, 2.5], "sample_rate": 8000}), "or floats from -1 to 1"),
    ],
    ids=["pickle", "empty", "JSON", "Example", "text", "16 bits", "floats"],
)
def test_invalid_records(record, reason):
    with pytest.raises(InvalidEntry, match=reason):
        fields_of(record, "a.array_record")


def test_damage_within_a_file(tmp_path):
    rows = [example({"text": "a", "audio": os.urandom(9000)}) for _ in range(9)]
    path = write_records(tmp_path / "a.array_record", rows)
    content = bytearray(path.read_bytes())
    content[content.index(rows[4][500:600])] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a.array_record: damaged at record \d of 9: .*; copy it again, or remove it"):
        read(tmp_path, path)


def test_damaged_files(tmp_path):
    path = write_records(tmp_path / "a.array_record", [example({"text": "a", "audio": bytes(9000)})] * 9)
    content = path.read_bytes()
    for part in (b"", content[: len(content) // 2], b"no record" * 99):
        path.write_bytes(part)
        with pytest.raises(UserError, match=r"a.array_record: not a complete ArrayRecord file; copy it again"):
            read(tmp_path, path)
    assert set_names([str(path), "b-train.array_record-00000-of-00002"]) == ("a", "b-train")

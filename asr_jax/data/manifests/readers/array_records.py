"""Reader of ArrayRecord files, which Grain and TensorFlow Datasets write.

A record is bytes of any form. Three forms are read, which their first bytes distinguish: a JSON object, a msgpack map,
and a `tf.train.Example`. Each has fields with the names that tables have: audio as the bytes of a file, and text.
"""

import json
import os
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from asr_jax.audio.io import AudioError
from asr_jax.core.errors import UserError
from asr_jax.core.paths import MISSING, State, state_of
from asr_jax.core.text_files import TextError, text_of
from asr_jax.data.manifests.readers import entries
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.remote import StorageError, content_of, is_url, origin_of, without_query
from asr_jax.data.manifests.utterances import Rejected

ENDING_OF_SHARD = re.compile(r"\.array_?record(-\d+-of-\d+)?$", re.IGNORECASE)
"""Ending of the name of a file, which may have the number of the shard at its end."""
FEATURES = "features.json"
"""Description of the fields that TensorFlow Datasets writes beside the files."""
OF_TENSORFLOW_DATASETS = (FEATURES, "dataset_info.json", "metadata.json")
"""Names of the description files that TensorFlow Datasets writes into the folder of a data set."""
PICKLE = b"\x80"
"""First byte of a pickle, which is not read because it runs code."""


class Damaged(Exception):
    """Error: a file is no complete ArrayRecord file."""


def is_array_record(path: str) -> bool:
    return ENDING_OF_SHARD.search(path) is not None and not os.path.isdir(path)


def read_array_record(path: str, options: ReadOptions) -> Entries:
    """Reads an ArrayRecord file.

    Raises:
        UserError: If the file cannot be read.
    """
    try:
        with RecordFile(path) as records:
            for row, record in enumerate(records.after(0)):
                name = f"{stem(path)}-{row + 1}"
                try:
                    yield entries.utterance(fields_of(record, path), options, name=name)
                except InvalidEntry as error:
                    yield Rejected(name, f"{path}: record {row + 1}", str(error), error.stage)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except Damaged as error:
        raise UserError(f"{path}: {error}; copy it again, or remove it") from None


def files(path: str, options: ReadOptions) -> list[str]:
    """The file and the `features.json` beside it, which may give the sample rate."""
    about = os.path.join(os.path.dirname(os.path.abspath(path)), FEATURES)
    return [path, about] if os.path.exists(about) else [path]


def details(path: str) -> str:
    """Fields of the first record that are used. Empty if there is none."""
    try:
        with RecordFile(path) as records:
            used = f.used(fields_of(next(records.after(0)), path))
    except (OSError, StopIteration, Damaged, InvalidEntry, UserError):
        return ""
    return f"ArrayRecord ({used})" if used else ""


ARRAY_RECORD = Reader("ArrayRecord", is_array_record, files, read_array_record, details=details)


def stem(path: str) -> str:
    """Name of a file without `.array_record`, but with the number of its shard."""
    return re.sub(r"\.array_?record", "", os.path.basename(path), flags=re.IGNORECASE)


class RecordFile:
    """The records of a local ArrayRecord file.

    Raises:
        OSError: If the file cannot be opened.
        Damaged: If the file is not complete.
        UserError: If the package `array_record` is not installed.
    """

    def __init__(self, path: str) -> None:
        try:
            from array_record.python.array_record_module import ArrayRecordReader
        except ImportError as error:
            raise UserError(f"{path}: ArrayRecord files need the package array_record ({error})") from None
        open(path, "rb").close()  # the library does not distinguish errors of the storage from damage
        # Without threads that read ahead: shards are read beside many others.
        self._reader = ArrayRecordReader(path, "readahead_buffer_size:1M,max_parallelism:0")
        self._check()
        self._num = self._reader.num_records()  # after damage it is 0

    def __enter__(self) -> "RecordFile":
        return self

    def __exit__(self, *error: object) -> None:
        if self._reader.ok():  # otherwise closing raises the error of the read again
            self._reader.close()

    def after(self, row: int) -> Iterator[bytes]:
        """Yields the records from a row on, in order.

        Args:
            row: Number of the first record, from 0.

        Raises:
            Damaged: If a record cannot be read.
        """
        for number in range(row, self._num):
            if number == row:
                self._reader.seek(number)
            try:
                record = self._reader.read()
            except Exception as error:  # the errors of the library have no common class
                raise Damaged(f"damaged at record {number + 1} of {self._num}: {error}") from None
            self._check()
            yield record

    def _check(self) -> None:
        if not self._reader.ok():  # the library returns no records of a damaged file, without an error
            raise Damaged("not a complete ArrayRecord file")


def fields_of(record: bytes, path: str) -> dict[str, Any]:
    """Fields of a record.

    Args:
        record: JSON object, msgpack map or `tf.train.Example`.
        path: File of the record. A `features.json` beside it may give the sample rate of audio that is samples.

    Raises:
        InvalidEntry: If it has another form.
    """
    if record[:1] == b"\n":
        fields = _of_example(record)
    elif record[:1] == b"{":
        try:
            fields = json.loads(record)
        except (ValueError, RecursionError) as error:
            raise InvalidEntry(f"not JSON ({error})") from None
    else:
        fields = _of_msgpack(record)
    for name in f.AUDIO:
        if isinstance(fields.get(name), list):
            fields[name] = _wav(name, fields, path)
    return fields


def _of_msgpack(record: bytes) -> dict[str, Any]:
    import msgpack

    try:
        fields = msgpack.unpackb(record)
    except Exception:  # the library raises errors of many classes
        fields = None
    if not isinstance(fields, dict) or not fields:
        kind = ", which may be a pickle and is not read because a pickle can run code" * (record[:1] == PICKLE)
        raise InvalidEntry(
            f"record of {len(record)} bytes that begins with {record[:8]!r}{kind}; expected a JSON object, a msgpack "
            "map or a tf.train.Example with audio (the bytes of a file) and text"
        )
    return fields


@cache
def _example() -> Any:
    """Class of `tf.train.Example`, a map from names to lists of bytes, floats or integers."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="asr_jax/example.proto", package="asr_jax", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str], repeated: bool = False) -> None:
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        added = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            added.field.add(name=field, number=number, type=kind, label=label, type_name=of or None)

    text, nested = kinds.TYPE_STRING, kinds.TYPE_MESSAGE
    message("Bytes", ("value", 1, kinds.TYPE_BYTES, ""), repeated=True)
    message("Floats", ("value", 1, kinds.TYPE_FLOAT, ""), repeated=True)
    message("Integers", ("value", 1, kinds.TYPE_INT64, ""), repeated=True)
    lists = (("Bytes", 1), ("Floats", 2), ("Integers", 3))
    message("Feature", *((name.lower(), number, nested, f".asr_jax.{name}") for name, number in lists))
    message("Entry", ("key", 1, text, ""), ("value", 2, nested, ".asr_jax.Feature"))
    message("Features", ("feature", 1, nested, ".asr_jax.Entry"), repeated=True)
    message("Example", ("features", 1, nested, ".asr_jax.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("asr_jax.Example"))


def _of_example(record: bytes) -> dict[str, Any]:
    from google.protobuf.message import DecodeError

    try:
        example = _example().FromString(record)
    except DecodeError as error:
        raise InvalidEntry(f"not a tf.train.Example ({error})") from None
    fields = {}
    for entry in example.features.feature:
        values = next((list(getattr(entry.value, kind.name).value) for kind, _ in entry.value.ListFields()), [])
        if entry.key not in f.AUDIO:
            values = [_text(entry.key, value) if isinstance(value, bytes) else value for value in values]
        if values:
            is_list = len(values) > 1 or entry.key in (*f.LABELS, *f.FEATURES)
            fields[entry.key] = values if is_list else values[0]
    return fields


def _text(name: str, value: bytes) -> str | bytes:
    if not f.is_known(name):
        return value
    try:
        return text_of(value)
    except TextError as error:
        raise InvalidEntry(f"{name}: {error}") from None


def _wav(name: str, fields: dict[str, Any], path: str) -> bytes:
    """WAV file of the samples in a field, which are 16-bit integers or floats from -1 to 1."""
    rate_hz, channels = f.count(fields, f.RATE), 1
    if rate_hz is None:
        rate_hz, channels = _described(path)
    if rate_hz is None:
        raise InvalidEntry(
            f'"{name}" is {len(fields[name])} samples without a rate; expected a field sample_rate, a {FEATURES} of '
            "TensorFlow Datasets with it beside the file, or the bytes of an audio file"
        )
    if rate_hz <= 0 or channels != 1:
        raise InvalidEntry(
            f'"{name}" is samples at {rate_hz} Hz of {channels} channels; expected a rate above 0 and one channel, or '
            "the bytes of an audio file"
        )
    return entries.wav(name, fields[name], rate_hz)


def _described(path: str) -> tuple[int | None, int]:
    """Sample rate in Hz and number of channels that the description beside a file gives; None: no rate, or several."""
    folder = origin_of(path) or os.path.dirname(without_query(path))
    about = f"{folder}/{FEATURES}" if is_url(folder) else os.path.join(os.path.abspath(folder), FEATURES)
    return _rate_and_channels(about, MISSING if is_url(about) else state_of(about))


@lru_cache
def _rate_and_channels(about: str, state: State) -> tuple[int | None, int]:
    try:
        described = json.loads(content_of(about) if is_url(about) else Path(about).read_bytes())
    except StorageError:
        raise  # may succeed when the read is repeated
    except (OSError, ValueError, AudioError):
        return None, 1
    found, rest = set(), [described]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            shape = value.get("shape")
            dims = shape.get("dimensions", []) if isinstance(shape, dict) else []
            channels = int(dims[1]) if len(dims) > 1 else 1
            found |= {(int(value[name]), channels) for name in f.RATE if str(value.get(name)).isdecimal()}
        rest += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return found.pop() if len(found) == 1 else (None, 1)

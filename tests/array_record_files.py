"""Writes ArrayRecord files of `tf.train.Example` messages, byte by byte as the format of protocol buffers defines."""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_records(path: Path, records: Iterable[bytes]) -> Path:
    """Writes an ArrayRecord file and returns its path."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def example(fields: Mapping[str, Any]) -> bytes:
    """A `tf.train.Example`. A value is bytes, a string, an integer, a float, or a list of one kind of them."""
    entries = (_field(1, _field(1, name.encode()) + _field(2, _feature(value))) for name, value in fields.items())
    return _field(1, b"".join(entries))


def _feature(value: Any) -> bytes:
    values = value if isinstance(value, list) else [value]
    match values[0]:
        case bytes() | str():
            return _field(1, b"".join(_field(1, each.encode() if isinstance(each, str) else each) for each in values))
        case float():
            return _field(2, _field(1, struct.pack(f"<{len(values)}f", *values)))
        case _:
            return _field(3, _field(1, b"".join(_varint(each % 2**64) for each in values)))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])

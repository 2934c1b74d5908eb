"""Readers of Parquet, and of Arrow as Hugging Face's `datasets` saves it. Columns are recognised by usual names.

Parquet is read one row group at a time, and audio or features in the table are unpacked, because a compressed row
cannot be read individually. A row of an Arrow file can, and training reads its audio from there.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers import entries
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions, is_file_of, this_file
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.utterances import Rejected

ROWS_AT_ONCE = 256


def read_parquet(path: str, options: ReadOptions) -> Entries:
    """Reads a Parquet file.

    Raises:
        UserError: If the file cannot be read or has no known column.
    """
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            columns = known(path, file.schema_arrow.names)
            groups = range(file.num_row_groups)
            batches = (
                batch
                for group in groups
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=columns)
            )
            yield from _entries(path, chain.from_iterable(map(rows_of, batches)), options)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a complete Parquet file ({error}); copy it again, or remove it") from None


def read_arrow(path: str, options: ReadOptions) -> Entries:
    """Reads an Arrow file or stream.

    Raises:
        UserError: If the file cannot be read or has no known column.
    """
    try:
        with pyarrow.memory_map(path) as mapped:
            whole = mapped.read_buffer()
            batches = (batch.select(known(path, batch.schema.names)) for batch in _arrow_batches(whole))
            rows = (rows_of(batch, _places(batch, whole, os.path.abspath(path))) for batch in batches)
            yield from _entries(path, chain.from_iterable(rows), options)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a complete Arrow file ({error}); copy it again, or remove it") from None


PARQUET = Reader("Parquet", is_file_of(".parquet"), this_file, read_parquet)
ARROW = Reader("Arrow", is_file_of(".arrow"), this_file, read_arrow)


def known(path: str, names: list[str]) -> list[str]:
    known = [name for name in names if f.is_known(name)]
    if not f.num_names(known):
        raise UserError(
            f"{path}: none of its columns ({', '.join(names)}) is known; expected columns such as audio or features, "
            "and text"
        )
    return known


def _entries(path: str, rows: Iterable[dict[str, Any]], options: ReadOptions) -> Entries:
    for number, fields in enumerate(rows, 1):
        name = f"{f.base_name(path)}-{number}"
        try:
            yield entries.utterance(fields, options, name=name)
        except InvalidEntry as error:
            yield Rejected(str(f.first(fields, f.ID) or name), f"{path}: row {number}", str(error), error.stage)


def rows_of(batch: pyarrow.RecordBatch, columns: dict[str, list[Any]] | None = None) -> Iterator[dict[str, Any]]:
    """Yields the rows of a batch as dicts.

    Args:
        columns: Columns that are not taken from the batch. None: all are taken from it.
    """
    columns = dict(columns or {})
    for name in f.FEATURES:
        if name in batch.schema.names:
            columns[name] = [_frames(value) for value in batch.column(name)]
    for name in set(f.AUDIO) & set(batch.schema.names) - columns.keys():
        if found := _samples(batch.column(name)):
            columns[name] = found
    others = batch.select([name for name in batch.schema.names if name not in columns])
    rows = others.to_pylist() if others.num_columns else ({} for _ in range(batch.num_rows))
    for row, fields in enumerate(rows):
        yield fields | {name: column[row] for name, column in columns.items()}


def _samples(column: pyarrow.Array) -> list[Any]:
    """Audio that is samples, as arrays; other audio is an empty list."""
    kind = column.type
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return [_frames(value) for value in column]
    if not pyarrow.types.is_struct(kind) or kind.get_field_index("array") < 0:
        return []
    others = [field.name for field in kind if field.name != "array"]
    rows = zip(*(column.field(name).to_pylist() for name in others), strict=True) if others else [()] * len(column)
    arrays = map(_frames, column.field("array"))
    return [dict(zip(others, row, strict=True)) | {"array": array} for row, array in zip(rows, arrays, strict=True)]


def _frames(value: pyarrow.Scalar) -> Any:
    """Features of a row: an array if they are numbers or lists of equal length, otherwise Python values."""
    numbers = getattr(value, "values", None)
    if numbers is None:
        return value.as_py()
    if not pyarrow.types.is_list(numbers.type) and not pyarrow.types.is_large_list(numbers.type):
        return numbers.to_numpy(zero_copy_only=False) if pyarrow.types.is_primitive(numbers.type) else value.as_py()
    lengths = set(numbers.value_lengths().to_pylist())
    flat = numbers.flatten()
    if len(lengths) != 1 or None in lengths or not pyarrow.types.is_primitive(flat.type):
        return value.as_py()
    return flat.to_numpy(zero_copy_only=False).reshape(len(numbers), -1)


def _arrow_batches(whole: pyarrow.Buffer) -> Iterator[pyarrow.RecordBatch]:
    """Batches of a stream, which `datasets` writes, or of a file."""
    try:
        stream = pyarrow.ipc.open_stream(whole)
    except pyarrow.ArrowInvalid:
        file = pyarrow.ipc.open_file(whole)
        yield from (file.get_batch(number) for number in range(file.num_record_batches))
    else:
        yield from stream


def _places(batch: pyarrow.RecordBatch, whole: pyarrow.Buffer, path: str) -> dict[str, list[Any]]:
    """Locations of the bytes in columns of audio: by column, `{"bytes": Location, "path": …}` for each row."""
    places = {}
    for name in set(f.AUDIO) & set(batch.schema.names):
        column = batch.column(name)
        file_names: list[str | None] = [None] * len(column)
        if pyarrow.types.is_struct(column.type):
            parts = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
            file_names = parts["path"].to_pylist() if "path" in parts else file_names
            column = parts.get("bytes")
        if column is None or not _lies_in(column, whole):
            continue
        places[name] = [
            {"path": file_name, "bytes": span and Location(path, *span, name=os.path.basename(file_name or ""))}
            for file_name, span in zip(file_names, _spans(column, whole.address), strict=True)
        ]
    return places


def _lies_in(column: pyarrow.Array, whole: pyarrow.Buffer) -> bool:
    """Whether the bytes of a column are in the file unchanged. They are not if batches are compressed."""
    if not pyarrow.types.is_binary(column.type) and not pyarrow.types.is_large_binary(column.type):
        return False
    values = column.buffers()[2]
    return values is not None and whole.address <= values.address < whole.address + whole.size


def _spans(column: pyarrow.Array, begin: int) -> Iterator[tuple[int, int] | None]:
    """First byte and number of bytes of each value in the file. None for a value that is null."""
    _, offsets_buffer, values = column.buffers()
    wide = pyarrow.types.is_large_binary(column.type)
    offsets = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1]
    for row, valid in enumerate(column.is_valid().to_pylist()):
        first, after = int(offsets[row]), int(offsets[row + 1])
        yield (values.address - begin + first, after - first) if valid else None

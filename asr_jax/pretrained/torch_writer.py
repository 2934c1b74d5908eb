"""Writer of arrays and settings in the format of torch.save (a zip archive since PyTorch 1.6), without PyTorch."""

import pickle
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Tree = Mapping[str, Any]
"""Nested mappings and lists of arrays, strings, numbers, Booleans, None and instances."""


class Instance(NamedTuple):
    """An object of a class that the reader of the file has."""

    module: str
    name: str
    """Name of the class."""
    state: Mapping[str, Any]
    """Attributes of the object."""


def save_torch(tree: Tree, path: Path) -> None:
    """Writes a file that `torch.load` reads as nested dicts and lists of CPU tensors and plain values.

    Integer arrays become int64 tensors, all others float32 tensors. With `weights_only=True`, `torch.load` refuses
    files with an `Instance`.

    Source: the layout of torch.save: `data.pkl`, whose tensors refer to storages, and one file of bytes per storage.
    """
    arrays = list[np.ndarray]()
    content = b"\x80\x02" + b"".join(_value(tree, arrays)) + b"."  # protocol 2, value, STOP
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/byteorder", "little")
        for number, array in enumerate(arrays):
            archive.writestr(f"archive/data/{number}", array.tobytes())
        archive.writestr("archive/version", "3\n")


def averaged_checkpoint(weights: Tree, *_: Any) -> Tree:
    """Returns the content of a checkpoint of NVIDIA's recipes, which use its averaged weights."""
    return {"state_dict": weights, "ema_state_dict": weights}


def _value(value: Any, arrays: list[np.ndarray]) -> Iterator[bytes]:
    """Yields the pickle operations that create a value, and appends its arrays to `arrays`."""
    if isinstance(value, Instance):
        yield _global(value.module, value.name) + b")\x81"  # EMPTY_TUPLE, NEWOBJ
        yield from _value(value.state, arrays)
        yield b"b"  # BUILD
        return
    if isinstance(value, Mapping):
        yield b"}("  # EMPTY_DICT, MARK
        for name, inner in value.items():
            yield _plain(name)
            yield from _value(inner, arrays)
        yield b"u"  # SETITEMS
        return
    if isinstance(value, list):
        yield b"]("  # EMPTY_LIST, MARK
        for inner in value:
            yield from _value(inner, arrays)
        yield b"e"  # APPENDS
        return
    if value is None or isinstance(value, str | bool | int | float):
        yield _plain(value)
        return
    whole = np.issubdtype(np.asarray(value).dtype, np.integer)
    array = np.asarray(value, "<i8" if whole else "<f4", order="C")
    storage = (
        b"("
        + _plain("storage")
        + _global("torch", "LongStorage" if whole else "FloatStorage")
        + _plain(str(len(arrays)))
    )
    storage += _plain("cpu") + _plain(array.size) + b"tQ"  # TUPLE, BINPERSID
    strides = [stride // array.itemsize for stride in array.strides]
    arrays.append(array)
    yield _global("torch._utils", "_rebuild_tensor_v2") + b"(" + storage + _plain(0)
    yield _numbers(array.shape) + _numbers(strides) + _plain(False)
    yield _global("collections", "OrderedDict") + b")R" + b"tR"  # empty dict of hooks, REDUCE


def _numbers(numbers: Any) -> bytes:
    return b"(" + b"".join(_plain(int(number)) for number in numbers) + b"t"


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _plain(value: str | float | bool | None) -> bytes:
    """Returns the pickle operations of a string, a number, a Boolean or None."""
    if isinstance(value, str):
        encoded = value.encode()
        return b"X" + struct.pack("<I", len(encoded)) + encoded
    return pickle.dumps(value, protocol=2)[2:-1]  # without the protocol header and STOP

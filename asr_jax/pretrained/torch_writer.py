"""Files as torch.save writes them (a zip archive since PyTorch 1.6), written without PyTorch: arrays by name."""

import pickle
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Tree = Mapping[str, Any]
"""Arrays by name, and such trees by name."""


def save_torch(tree: Tree, path: Path) -> None:
    """Writes what `torch.load(path, weights_only=True)` gives back: dicts of tensors on the host, int64 those of whole
    numbers and float32 all others.

    Source: the layout that torch.save has: `data.pkl`, whose tensors name storages, and a file of bytes for each.
    """
    arrays = list[np.ndarray]()
    content = b"\x80\x02" + b"".join(_value(tree, arrays)) + b"."  # protocol 2, then the value, then the end
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/byteorder", "little")
        for number, array in enumerate(arrays):
            archive.writestr(f"archive/data/{number}", array.tobytes())
        archive.writestr("archive/version", "3\n")


def _value(value: Any, arrays: list[np.ndarray]) -> Iterator[bytes]:
    """The operations that make a value; its arrays are added to those that are written."""
    if isinstance(value, Mapping):
        yield b"}("  # an empty dict, and from here on what goes into it
        for name, inner in value.items():
            yield _plain(name)
            yield from _value(inner, arrays)
        yield b"u"
        return
    whole = np.issubdtype(np.asarray(value).dtype, np.integer)
    array = np.asarray(value, "<i8" if whole else "<f4", order="C")
    storage = (
        b"("
        + _plain("storage")
        + _global("torch", "LongStorage" if whole else "FloatStorage")
        + _plain(str(len(arrays)))
    )
    storage += _plain("cpu") + _plain(array.size) + b"tQ"  # a tuple, and what it names outside of the pickle
    strides = [stride // array.itemsize for stride in array.strides]
    arrays.append(array)
    yield _global("torch._utils", "_rebuild_tensor_v2") + b"(" + storage + _plain(0)
    yield _numbers(array.shape) + _numbers(strides) + _plain(False)
    yield _global("collections", "OrderedDict") + b")R" + b"tR"  # no hooks; then the call with the tuple of all


def _numbers(numbers: Any) -> bytes:
    return b"(" + b"".join(_plain(int(number)) for number in numbers) + b"t"


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _plain(value: str | int | bool) -> bytes:
    """A string, a whole number or a truth value."""
    if isinstance(value, str):
        encoded = value.encode()
        return b"X" + struct.pack("<I", len(encoded)) + encoded
    return pickle.dumps(value, protocol=2)[2:-1]  # without the frame of a whole pickle

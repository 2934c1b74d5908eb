"""Arrays in files that all processes memory-map."""

import hashlib
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


def digest_of_values(*values: Any) -> str:
    """Digest of arrays with their types and shapes, of bytes, and of other values by their `repr`."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value))
        else:
            digest.update(value if isinstance(value, bytes) else repr(value).encode())
    return digest.hexdigest()


def save_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def mapped(path: Path) -> np.ndarray:
    """Memory-maps an array that `save_arrays` wrote (`FOLDER/NAME`); pages that are not accessed take no memory."""
    array = np.load(path.with_name(f"{path.name}.npy"), mmap_mode="r")
    return array if array.size else np.array(array)  # an empty array cannot be mapped


@dataclass(frozen=True)
class _InFile:
    """Replaces a mapped array in a pickle: worker processes map the same file instead of receiving a copy."""

    path: str


class ByFile:
    """Base of dataclasses in whose pickles arrays that are wholly mapped are replaced by the names of their files."""

    def __getstate__(self) -> dict[str, Any]:
        # The base of a wholly mapped array is the map; the base of a slice is an array.
        return {
            name: _InFile(str(value.filename))
            if isinstance(value, np.memmap) and isinstance(value.base, mmap.mmap)
            else value
            for name, value in vars(self).items()
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(
            (name, np.load(value.path, mmap_mode="r") if isinstance(value, _InFile) else value)
            for name, value in state.items()
        )

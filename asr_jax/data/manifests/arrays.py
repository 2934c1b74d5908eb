"""Arrays in files, which are mapped from there by all processes that use them."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


def save_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def mapped(path: Path) -> np.ndarray:
    """An array of `save_arrays` (`FOLDER/NAME`), mapped: pages that nobody looks at take no memory."""
    array = np.load(path.with_name(f"{path.name}.npy"), mmap_mode="r")
    return array if array.size else np.array(array)  # nothing cannot be mapped


@dataclass(frozen=True)
class _InFile:
    """Stands for a mapped array in a pickle: worker processes map the same file instead of getting a copy."""

    path: str


def by_file(values: dict[str, Any]) -> dict[str, Any]:
    """Fields of a dataclass for its pickle, with names of files in the place of arrays that are mapped whole."""
    # A part of a mapped array has that as its base, not the map.
    return {
        name: _InFile(str(value.filename)) if isinstance(value, np.memmap) and isinstance(value.base, mmap.mmap)
        else value for name, value in values.items()
    }  # fmt: skip


def unpickled(kind: Callable[..., Any], values: dict[str, Any]) -> Any:
    """The dataclass again, of what `by_file` gave."""
    return kind(**{
        name: np.load(value.path, mmap_mode="r") if isinstance(value, _InFile) else value
        for name, value in values.items()
    })  # fmt: skip

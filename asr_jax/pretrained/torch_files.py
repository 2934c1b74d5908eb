"""Reader of files that torch.save wrote (`.pt`, `.pth`, `.ckpt`, `.bin`), without PyTorch.

A file's pickle can create only tensors, containers and plain objects that hold settings. Every other class is replaced
by an inert stand-in, and no code of the file is run.
"""

import pickle
import re
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from asr_jax.core.errors import UserError

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C

TYPES: dict[str, Any] = {
    "FloatStorage": np.float32,
    "DoubleStorage": np.float64,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
PLAIN = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): lambda *_: {},
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "complex"): complex,
    ("builtins", "bytearray"): bytearray,
    ("builtins", "slice"): slice,
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
}


class Stand:
    """Stand-in for an object of an unknown class; it stores the arguments and the state that the file contains."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.__dict__.update(named | ({"args": args} if args else {}))

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__[str(key)] = value

    def __call__(self, *args: Any, **named: Any) -> "Stand":
        return Stand()

    def append(self, value: Any) -> None:
        """Ignores a value that is appended to a stand-in for a list."""


def load_torch(path: Path, content: IO[bytes] | None = None) -> Any:
    """Returns the object that torch.save wrote, with tensors as NumPy arrays.

    Args:
        content: Content of a file within the file `path`. None: that of `path`.

    Raises:
        UserError: If torch.save did not write the file, or if the file is truncated.
    """
    try:
        with content or path.open("rb") as file:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    return _read_archive(archive)
            file.seek(0)
            return _read_legacy(file)
    except (OSError, pickle.UnpicklingError, zipfile.BadZipFile, *_DAMAGED) as error:
        raise UserError(f"{path} cannot be read ({error}): expected a complete file that torch.save wrote") from error


_DAMAGED = (EOFError, KeyError, ValueError, IndexError, AttributeError, TypeError, struct.error, UnicodeDecodeError)


def state_dict(loaded: Any) -> dict[str, np.ndarray]:
    """Returns the weights of a loaded checkpoint, keyed by their names.

    The search descends into `model`, `ema_state_dict` (the averaged weights), `state_dict` and `model_state_dict`, in
    this order, if they exist. Prefixes that all names share (`module.`, `model.`) are removed.

    For icefall's checkpoints the result is the live model: their `model_avg` is the mean since the start of the run, of
    which icefall takes differences. The averages that icefall publishes are files with a single `model`.

    Raises:
        UserError: If there are no arrays.
    """
    for name in ("model", "ema_state_dict", "state_dict", "model_state_dict"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(name), Mapping):
            loaded = loaded[name]
    arrays = {
        name: value
        for name, value in (loaded.items() if isinstance(loaded, Mapping) else ())
        if isinstance(name, str) and isinstance(value, np.ndarray)
    }
    if not arrays:
        raise UserError("the file contains no named weights: expected a state_dict, or one under `model`")
    for prefix in ("module.", "model."):
        if all(name.startswith(prefix) for name in arrays):
            arrays = {name.removeprefix(prefix): value for name, value in arrays.items()}
    return arrays


def has_weight(path: Path, pattern: str) -> bool:
    """Returns whether a path is a file of torch.save in which the name of a weight begins with a regular expression."""
    if path.suffix not in SUFFIXES or not path.is_file():
        return False
    try:
        return any(re.match(pattern, name) for name in state_dict(load_torch(path)))
    except UserError:  # the reader that takes the file reports it
        return False


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, load_storage: Callable[[tuple[Any, ...]], Any]) -> None:
        super().__init__(file, encoding="utf-8")
        self._load_storage = load_storage

    def find_class(self, module: str, name: str) -> Any:
        """Returns a known constructor of tensors or containers, or a new stand-in class."""
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor"):
            return _tensor
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda data, *_: data
        if module == "torch" and name in TYPES:
            return TYPES[name]
        return PLAIN.get((module, name)) or type(name, (Stand,), {})

    def persistent_load(self, pid: Any) -> Any:
        """Returns the storage that a persistent id of the file names."""
        return self._load_storage(pid)


def _tensor(storage: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> np.ndarray:
    values = storage() if callable(storage) else storage
    end = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True)) + 1 if size else offset + 1
    if 0 in size:
        return np.zeros(size, values.dtype)
    if not 0 <= offset < end <= len(values) or min((*size, *stride), default=0) < 0:
        raise ValueError(
            f"a tensor of shape {size}, offset {offset} and strides {stride} exceeds its storage of {len(values)} "
            "values"
        )
    steps = [step * values.itemsize for step in stride]
    return np.array(np.lib.stride_tricks.as_strided(values[offset:], size, steps))


def _read_archive(archive: zipfile.ZipFile) -> Any:
    pickles = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise ValueError(f"the archive has {len(pickles)} files data.pkl instead of one")
    folder = pickles[0].rpartition("/")[0]
    storages: dict[str, np.ndarray] = {}

    def storage(pid: tuple[Any, ...]) -> np.ndarray:
        _, kind, key = pid[:3]
        if key not in storages:
            storages[key] = np.frombuffer(archive.read(f"{folder}/data/{key}" if folder else f"data/{key}"), kind)
        return storages[key]

    with archive.open(pickles[0]) as file:
        return _Unpickler(file, storage).load()


def _read_legacy(file: Any) -> Any:
    """Reads the format of torch.save before PyTorch 1.6: pickles, followed by the storages.

    The storages' types are known only after the pickle is read; it is therefore read twice.
    """

    def unknown(pid: tuple[Any, ...]) -> Any:
        return np.zeros(int(pid[4]), pid[1])

    if _Unpickler(file, unknown).load() != LEGACY_MAGIC:
        raise ValueError("not a file of torch.save (no magic number)")
    for _ in range(2):  # protocol version and description of the machine
        _Unpickler(file, unknown).load()
    kinds: dict[str, Any] = {}
    content = file.tell()

    def noted(pid: tuple[Any, ...]) -> Any:
        kinds[str(pid[2])] = np.dtype(pid[1])
        return np.zeros(int(pid[4]), pid[1])

    _Unpickler(file, noted).load()
    storages: dict[str, np.ndarray] = {}
    for key in _Unpickler(file, unknown).load():
        (count,) = struct.unpack("<q", file.read(8))
        size = count * kinds[str(key)].itemsize
        data = file.read(size)
        if len(data) != size:
            raise ValueError("the file ends too early")
        storages[str(key)] = np.frombuffer(data, kinds[str(key)])
    file.seek(content)
    return _Unpickler(file, lambda pid: storages[str(pid[2])]).load()

"""Arrays of PyTorch's files, read without PyTorch: `.pt`, `.pth`, `.ckpt` and `.bin` as torch.save writes them.

A file's pickle can make nothing but tensors, containers and plain holders of settings; whatever else it asks for
becomes an inert stand-in, and nothing of it is run.
"""

import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from asr_jax.core.errors import UserError

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C

TYPES: dict[str, Any] = {
    "FloatStorage": np.float32, "DoubleStorage": np.float64, "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16, "LongStorage": np.int64, "IntStorage": np.int32,
    "ShortStorage": np.int16, "CharStorage": np.int8, "ByteStorage": np.uint8, "BoolStorage": np.bool_,
}  # fmt: skip
PLAIN = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): lambda *_: {},
    ("builtins", "set"): set, ("builtins", "frozenset"): frozenset, ("builtins", "complex"): complex,
    ("builtins", "bytearray"): bytearray, ("builtins", "slice"): slice,
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
}  # fmt: skip


class Stand:
    """What stands for an object of a class that is not known here: it holds what the file gave it."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.__dict__.update(named | ({"args": args} if args else {}))

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__[str(key)] = value

    def __call__(self, *args: Any, **named: Any) -> "Stand":
        return Stand()

    def append(self, value: Any) -> None:
        """Of stand-ins for lists: what is appended is left out."""


def load_torch(path: Path) -> Any:
    """What torch.save was given, its tensors as NumPy arrays on the host.

    Raises: UserError where the file is none that it writes, or is cut.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return _read_archive(archive)
        with path.open("rb") as file:
            return _read_legacy(file)
    except (OSError, pickle.UnpicklingError, zipfile.BadZipFile, *_DAMAGED) as error:
        raise UserError(f"{path} cannot be read ({error}): expected a whole file that torch.save wrote") from error


_DAMAGED = (EOFError, KeyError, ValueError, IndexError, AttributeError, TypeError, struct.error, UnicodeDecodeError)


def state_dict(loaded: Any) -> dict[str, np.ndarray]:
    """The arrays by name of what a checkpoint holds: those under `model` where there is one, or the averaged ones under
    `ema_state_dict`, or those under `state_dict`, without a prefix that all names have (`module.`, `model.`). Of
    icefall's checkpoints that is the live model: its `model_avg` is the mean of a run from its start on, of which
    icefall takes differences; the averages that it publishes are files of one `model`.

    Raises: UserError where there are no arrays.
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
        raise UserError("the file holds no weights by name: expected a state_dict, or one under `model`")
    for prefix in ("module.", "model."):
        if all(name.startswith(prefix) for name in arrays):
            arrays = {name.removeprefix(prefix): value for name, value in arrays.items()}
    return arrays


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, load_storage: Callable[[tuple[Any, ...]], Any]) -> None:
        super().__init__(file, encoding="utf-8")
        self._load_storage = load_storage

    def find_class(self, module: str, name: str) -> Any:
        """Tensors and plain containers; for all others a class of stand-ins."""
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor"):
            return _tensor
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda data, *_: data
        if module == "torch" and name in TYPES:
            return TYPES[name]
        return PLAIN.get((module, name)) or type(name, (Stand,), {})

    def persistent_load(self, pid: Any) -> Any:
        """A storage of the file."""
        return self._load_storage(pid)


def _tensor(storage: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> np.ndarray:
    values = storage() if callable(storage) else storage
    end = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True)) + 1 if size else offset + 1
    if 0 in size:
        return np.zeros(size, values.dtype)
    if not 0 <= offset < end <= len(values) or min((*size, *stride), default=0) < 0:
        raise ValueError(f"a tensor of {size} from {offset} by {stride} does not lie within its {len(values)} values")
    steps = [step * values.itemsize for step in stride]
    return np.array(np.lib.stride_tricks.as_strided(values[offset:], size, steps))


def _read_archive(archive: zipfile.ZipFile) -> Any:
    pickles = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise ValueError("no data.pkl")
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
    """As torch.save wrote before 1.6: pickles, and then the storages one after the other. Storages are known only when
    the pickle is read, so it is read twice.
    """

    def unknown(pid: tuple[Any, ...]) -> Any:
        return np.zeros(int(pid[4]), pid[1])

    if _Unpickler(file, unknown).load() != LEGACY_MAGIC:
        raise ValueError("it does not begin as one")
    for _ in range(2):  # protocol, and what machine wrote it
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
            raise ValueError("it ends too early")
        storages[str(key)] = np.frombuffer(data, kinds[str(key)])
    file.seek(content)
    return _Unpickler(file, lambda pid: storages[str(pid[2])]).load()

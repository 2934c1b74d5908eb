"""What was read of manifests and headers, kept in files: the next start maps it instead of reading again."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asr_jax.audio.io import AudioError
from asr_jax.core.environment import CACHES
from asr_jax.core.files import write_whole
from asr_jax.data.manifests.columns import Columns, load_columns, save_columns
from asr_jax.data.manifests.locations import UNPACKED, Location
from asr_jax.data.manifests.measuring import Measured
from asr_jax.data.manifests.readers.base import Reader, ReadOptions
from asr_jax.data.manifests.utterances import Rejected

VERSION = 4
"""Of the readers and of the columns: another one reads everything anew."""
CACHE = "ASR_JAX_INDEX_CACHE"
"""The variable that says where columns are kept; the user's cache folder where it is not set."""
META = "meta.json"
UNUSED_DAYS = 30
"""After which what was read of other data is removed."""
REPLACED_DAYS = 1
"""After which what others have replaced is removed (of the same inputs, before they changed), and what a killed process
left."""
_PLACE = re.compile("[0-9a-f]{24}")
_held: dict[Path, int] = {}
"""Open folders of columns that this process uses, or may start worker processes with: locked, which `_is_free` sees."""


@dataclass(frozen=True)
class Read:
    """What was read, and what makes it out of date."""

    columns: Columns
    digest: str
    """Of the columns."""
    rejected: tuple[Rejected, ...]
    """What no utterance could be made of."""
    unread: tuple[Rejected, ...]
    """Whose duration nobody knows, since the audio could not be opened. Out of date when one of them can."""
    looked_for: tuple[str, ...]
    """Paths at which the files of relative locations were looked for in vain. Out of date when one of them is there."""
    only_in: str
    """The current folder, where relative locations start from it: out of date in another one."""
    measured: Measured
    """Whose durations or silence were looked for. Out of date when one of them is another."""
    unpacked: str = ""
    """The file that bytes were unpacked to, if any were. Out of date when it is gone: the cache was moved."""

    def is_up_to_date(self) -> bool:
        return (
            self.only_in in ("", os.getcwd())
            and not any(map(os.path.exists, self.looked_for))
            and not any(_opens(entry.location) for entry in self.unread)
            and not self.measured.have_changed()
        )


def place_of(cache: str, inputs: Sequence[tuple[int, str, Reader]], trim_db: float, options: ReadOptions) -> Path:
    """Where what is read of these inputs is kept, named by the paths, sizes and times of all their files."""
    digest = hashlib.sha256(f"{VERSION} {trim_db}{' texts may lack' if options.texts_may_lack else ''}".encode())
    for number, path, reader in inputs:
        digest.update(os.fsencode(f"{number} {reader.name} {os.path.abspath(path)}\n"))
        for name in reader.files(path, options):
            try:
                status = os.stat(name)
            except OSError:  # a link that leads nowhere
                continue
            digest.update(os.fsencode(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"))
    folder = cache or os.environ.get(CACHE) or os.path.join(CACHES, "index")
    return Path(os.path.abspath(Path(folder).expanduser())) / digest.hexdigest()[:24]


def unpacked_at(place: Path) -> str:
    """Where bytes are unpacked to."""
    return str(place / UNPACKED)


def keep(read: Read, place: Path, inputs: Sequence[tuple[int, str, Reader]]) -> None:
    """Columns get a folder of their own, which is never changed: a process that maps others is not disturbed. What is
    out of date or has not been used for long is removed, here and of all other data, unless a process has it.
    """
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=place, prefix="columns-"))
    save_columns(read.columns, folder)
    read.measured.save(folder)
    meta = {
        "columns": folder.name,
        "of": [os.path.abspath(path) for _, path, _ in inputs],
        "digest": read.digest,
        "rejected": [asdict(entry) for entry in read.rejected],
        "unread": [asdict(entry) for entry in read.unread],
        "looked_for": read.looked_for,
        "only_in": read.only_in,
        "unpacked": read.unpacked,
        "unpacked_bytes": _size(read.unpacked),
    }
    # Written under a name that no other process has, and renamed: whoever reads it finds it whole.
    write_whole(folder / META, json.dumps(meta, ensure_ascii=False))
    os.replace(folder / META, place / META)
    _tidy(place, folder, meta["of"])


def kept(place: Path) -> tuple[Read, Path] | None:
    """What `keep` wrote, and the folder of the columns; None where there is nothing, or it is damaged."""
    try:
        meta = json.loads((place / META).read_text(encoding="utf-8"))
        if meta["unpacked_bytes"] != _size(meta["unpacked"]):
            return None
        folder = place / meta["columns"]
        read = Read(
            columns=load_columns(folder),
            digest=meta["digest"],
            rejected=tuple(Rejected(**entry) for entry in meta["rejected"]),
            unread=tuple(Rejected(**entry) for entry in meta["unread"]),
            looked_for=tuple(meta["looked_for"]),
            only_in=meta["only_in"],
            measured=Measured.load(folder),
            unpacked=meta["unpacked"],
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
    for used in (folder, place):
        with suppress(OSError):  # a cache that others own
            os.utime(used)
    if folder not in _held:
        with suppress(OSError):  # a file system without locks
            _held[folder] = os.open(folder, os.O_RDONLY)
            fcntl.flock(_held[folder], fcntl.LOCK_SH)
    return read, folder


def _tidy(place: Path, folder: Path, of: Any) -> None:
    """Removes what nobody needs: `folder` are the columns that have just been kept at the place, `of` some inputs."""
    for other in filter(lambda path: _PLACE.fullmatch(path.name), place.parent.iterdir()):
        stale = [path for path in other.glob("*.partial") if _age_days(path) > REPLACED_DAYS]
        if other == place:
            replaced = set(place.glob("columns-*")) - {folder}
            stale += [path for path in replaced if _age_days(path) > REPLACED_DAYS and _is_free(path)]
        elif _age_days(other) > (REPLACED_DAYS if _inputs(other) == of else UNUSED_DAYS):
            stale = [other] if all(map(_is_free, other.glob("columns-*"))) else stale
        for path in stale:
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _inputs(place: Path) -> Any:
    try:
        return json.loads((place / META).read_text(encoding="utf-8"))["of"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _age_days(path: Path) -> float:
    try:
        return (time.time() - path.stat().st_mtime) / 86_400
    except OSError:
        return 0.0


def _is_free(path: Path) -> bool:
    """Whether no process uses columns."""
    try:
        opened = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(opened)
    return True


def _opens(location: str) -> bool:
    try:
        Location.parse(location).info()
    except AudioError:
        return False
    return True


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0

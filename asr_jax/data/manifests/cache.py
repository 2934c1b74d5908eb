"""Cache of the contents of manifests and audio headers, which are memory-mapped instead of read again."""

import fcntl
import functools
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
from asr_jax.core.files import is_free, write_whole
from asr_jax.core.paths import at_home, state_of
from asr_jax.core.text_files import json_text, read_text
from asr_jax.data.manifests.columns import Columns, load_columns, save_columns
from asr_jax.data.manifests.locations import UNPACKED, Location
from asr_jax.data.manifests.measuring import MeasuredAudio
from asr_jax.data.manifests.readers.base import Input, ReadOptions
from asr_jax.data.manifests.utterances import Rejected

PACKAGE = Path(__file__).resolve().parents[2]
SOURCES = (PACKAGE / "data/manifests", PACKAGE / "audio")
"""Folders of the code that reads. If a file of them changes, as in an upgrade, everything is read again."""
CACHE = "ASR_JAX_INDEX_CACHE"
"""Environment variable for the folder of the cache. Not set: the user's cache folder."""
META, MEASURED = "meta.json", "measured-"
TEXT_SOURCES = (PACKAGE / "text",)
"""Folder of the code that normalises and encodes texts. If a file of it changes, labels and tokenizers are made
again."""
UNUSED_DAYS = 30
"""Days after which unused columns of other data are removed."""
REPLACED_DAYS = 1
"""Days after which replaced columns (of the same inputs before a change) and files of killed processes are removed."""
PLACE = re.compile("[0-9a-f]{24}")
"""Names of the folders of inputs in the cache."""
_held: dict[Path, int] = {}
"""Open folders of columns that this process uses, or may start worker processes with. They are locked for
`is_free`."""


@dataclass(frozen=True)
class Read:
    """Result of reading some inputs, and the conditions under which it is out of date."""

    columns: Columns
    digest: str
    """Digest of the columns."""
    rejected: tuple[Rejected, ...]
    """Utterances of the manifests that cannot be used."""
    without_duration: tuple[Rejected, ...]
    """Utterances without a duration, because their audio could not be opened. Out of date if one of them can be
    opened."""
    looked_for: tuple[str, ...]
    """Paths of relative locations that did not exist. Out of date if one of them exists."""
    only_in: str
    """Current folder, if relative locations start from it; otherwise empty. Out of date in another folder."""
    measured: MeasuredAudio
    """Measured durations and silence. Out of date if one of the files has changed."""
    unpacked: str = ""
    """File of unpacked bytes; empty if there are none. Out of date if it does not exist, as in a cache that was
    moved."""
    notes: tuple[str, ...] = ()
    """Remarks on the inputs: utterances that are left out, and unused fields that look like times."""

    def is_up_to_date(self) -> bool:
        return (
            self.only_in in ("", os.getcwd())
            and not any(map(os.path.exists, self.looked_for))
            and not any(_opens(entry.location) for entry in self.without_duration)
            and not self.measured.have_changed()
        )


def place_of(cache: str, inputs: Sequence[Input], trim_db: float, options: ReadOptions) -> Path:
    """Folder of some inputs in the cache, named by a digest of the code and of the paths and states of all files.

    Args:
        cache: Folder of the cache. Empty: that of the environment variable, or the user's cache folder.
    """
    how = " texts may lack" * options.texts_may_lack + " pipes" * options.allow_pipes + options.root
    code = f"{digest_of_code(SOURCES)} {trim_db}{how}"
    digest = hashlib.sha256(f"{code} {digest_of_files(inputs, options)}".encode())
    folder = cache or os.environ.get(CACHE) or os.path.join(CACHES, "index")
    return Path(os.path.abspath(at_home(folder))) / digest.hexdigest()[:24]


def digest_of_files(inputs: Sequence[Input], options: ReadOptions) -> str:
    """Digest of the paths and states of all files of some inputs."""
    digest = hashlib.sha256()
    for number, path, reader in inputs:
        digest.update(os.fsencode(f"{number} {reader.name} {os.path.abspath(path)}\n"))
        for name in reader.files(path, options):
            digest.update(os.fsencode(f"{name}\0{state_of(name)}\n"))
    return digest.hexdigest()


@functools.cache
def digest_of_code(folders: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(file for folder in folders for file in folder.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def unpacked_at(place: Path) -> str:
    """Path of the file that bytes are unpacked to."""
    return str(place / UNPACKED)


def keep(read: Read, place: Path, inputs: Sequence[Input]) -> None:
    """Writes the result of reading to the cache.

    Columns get a new folder that is never changed, and processes that map other columns are not disturbed. Columns of
    any data that are out of date or have not been used for long are removed, unless a process uses them.
    """
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=place, prefix="columns-"))
    save_columns(read.columns, folder)
    save_columns(read.measured, folder, prefix=MEASURED)
    meta = vars(read) | {
        "columns": folder.name,
        "measured": MEASURED,
        "rejected": [asdict(entry) for entry in read.rejected],
        "without_duration": [asdict(entry) for entry in read.without_duration],
        "of": [os.path.abspath(path) for _, path, _ in inputs],
        "unpacked_bytes": _size(read.unpacked),
    }
    # Written under a unique name and renamed: other processes read it completely or not at all.
    write_whole(folder / META, json_text(meta))
    os.replace(folder / META, place / META)
    _tidy(place, folder, meta["of"])


def kept(place: Path) -> tuple[Read, Path] | None:
    """Result that `keep` wrote, and folder of its columns. None if there is none or it is damaged."""
    try:
        meta = json.loads(read_text(place / META))
        if meta["unpacked_bytes"] != _size(meta["unpacked"]):
            return None
        folder = place / meta["columns"]
        kept = {name: meta[name] for name in ("digest", "only_in", "unpacked")}
        kept |= {name: tuple(meta[name]) for name in ("looked_for", "notes")}
        kept |= {name: tuple(Rejected(**each) for each in meta[name]) for name in ("rejected", "without_duration")}
        measured = load_columns(MeasuredAudio, folder, prefix=MEASURED)
        read = Read(columns=load_columns(Columns, folder), measured=measured, **kept)
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
    for used in (folder, place):
        with suppress(OSError):  # another user may own the cache
            os.utime(used)
    if folder not in _held:
        with suppress(OSError):  # the file system may have no locks
            _held[folder] = os.open(folder, os.O_RDONLY)
            fcntl.flock(_held[folder], fcntl.LOCK_SH)
    return read, folder


def _tidy(place: Path, folder: Path, of: Any) -> None:
    """Removes unused columns from the cache.

    `folder` contains the columns that were just written to `place`, and `of` the paths of their inputs.
    """
    for other in filter(lambda path: PLACE.fullmatch(path.name), place.parent.iterdir()):
        stale = [path for path in other.glob("*.partial") if _age_days(path) > REPLACED_DAYS]
        if other == place:
            replaced = set(place.glob("columns-*")) - {folder}
            stale += [path for path in replaced if _age_days(path) > REPLACED_DAYS and is_free(path)]
        elif _age_days(other) > (REPLACED_DAYS if inputs_of(other) == of else UNUSED_DAYS):
            stale = [other] if all(map(is_free, other.glob("columns-*"))) else stale
        for path in stale:
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def inputs_of(place: Path) -> list[str]:
    """Paths of the inputs whose columns a folder has. Empty if it is unfinished or damaged."""
    inputs = _meta(place).get("of")
    return list(map(str, inputs)) if isinstance(inputs, list) else []


def foreign_files(place: Path) -> list[Path]:
    """Files in the folder of some inputs that this module does not write."""
    known = re.compile(r"meta\.json|columns-\w+|unpacked\.bytes|.*\.(partial|unfinished|removed)")
    of_columns = re.compile(r".*\.(npy|json|partial|unfinished)|(labels|tokenizer)-[\w-]+|\.partial-\w+")
    return [path for path in place.iterdir() if path.is_symlink() or not known.fullmatch(path.name)] + [
        path
        for columns in place.glob("columns-*")
        for path in columns.iterdir()
        if path.is_symlink() or not of_columns.fullmatch(path.name)
    ]


def user_of(place: Path) -> str:
    """Why the columns of some inputs must not be removed. Empty if no process uses or writes them."""
    if not all(map(is_free, place.glob("columns-*"))):
        return "in use"
    named = _meta(place).get("columns")
    unfinished = [path for path in place.iterdir() if path.name not in (META, UNPACKED, named)]
    return "being written" if any(_age_days(path) < REPLACED_DAYS for path in unfinished) else ""


def remove_place(place: Path) -> bool:
    """Removes the columns of some inputs unless a process uses them; returns whether they were removed."""
    hidden = place / f"{META}.removed"
    try:
        if (place / META).exists():
            os.replace(place / META, hidden)  # no other process takes the columns from now on
        if not all(map(is_free, place.glob("columns-*"))):
            os.replace(hidden, place / META)
            return False
        shutil.rmtree(place)
    except OSError:
        return False
    return True


def _meta(place: Path) -> dict[str, Any]:
    try:
        meta = json.loads(read_text(place / META))
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _age_days(path: Path) -> float:
    try:
        return (time.time() - path.stat().st_mtime) / 86_400
    except OSError:
        return 0.0


def _opens(location: str) -> bool:
    try:
        Location.parse(location).info()
    except AudioError:
        return False
    return True


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0

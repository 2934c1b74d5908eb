"""Lists the caches of this package, and removes them after a question: `python -m asr_jax.clean [KIND …] [--yes]`.

The kinds are manifests (columns of manifests, and audio from tables and archives), traced (traced programs), compiled
(JAX's compiled programs), imported (weights of published models), logs (lines of native libraries) and tests (compiled
programs of this project's tests). Removed caches are created again when they are needed, which takes time. Runs and
data are never removed, nor are columns that a process uses. If a folder contains other files, nothing is removed.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from tyro.conf import Positional, arg

from asr_jax.core.environment import CACHES
from asr_jax.core.errors import UserError
from asr_jax.core.files import is_free, size_of
from asr_jax.core.names import counted
from asr_jax.core.native import FOLDER
from asr_jax.core.options import parse
from asr_jax.core.paths import at_home
from asr_jax.core.settings import NonNegativeFloat, command_options
from asr_jax.data.manifests.cache import CACHE, PLACE, foreign_files, inputs_of, remove_place, user_of
from asr_jax.observe.tables import console_for, print_table, quantity, say

Kind = Literal["manifests", "traced", "compiled", "imported", "logs", "tests"]
FOLDERS: dict[Kind, str] = {
    "manifests": "index",
    "traced": "compiled/traced",
    "compiled": "compiled",
    "imported": "imported",
    "logs": FOLDER,
    "tests": "tests",
}
"""Default folders of the caches, in the folder of all caches."""
PROGRAMS = r".+-(cache|atime)|\.lockfile|xla_gpu_\w+"
NAMES: dict[Kind, str] = {
    "manifests": PLACE.pattern,
    "traced": r"\w+-[0-9a-f]{64}|.+\.unfinished",
    "compiled": PROGRAMS + "|traced",
    "imported": "[0-9a-f]{12}-[0-9a-f]{12}",
    "logs": r"[\w-]+\.log",
    "tests": PROGRAMS + "|traced",
}
"""Names of the files and folders that this package and JAX write."""


@command_options
class CleanOptions:
    """Options of `asr_jax.clean`."""

    kinds: Annotated[Positional[tuple[Kind, ...]], arg(metavar="KIND …")] = ()
    """Kinds of caches. Default: all of them."""
    yes: bool = False
    """Remove without a question."""
    dry_run: bool = False
    """List the caches and remove nothing."""
    unused_days: Annotated[NonNegativeFloat, arg(metavar="D")] = 0.0
    """Only caches that were not used for this number of days."""
    cache: Annotated[Path | None, arg(metavar="DIR")] = None
    """Folder of the kind manifests, as for --data.cache. Default: ASR_JAX_INDEX_CACHE, or the user's cache folder."""


@dataclass(frozen=True)
class RemovableCache:
    """One cache that can be removed as a whole."""

    kind: Kind
    path: Path
    """The folder, or a folder in it."""
    files: tuple[Path, ...]
    """Files and folders to remove."""
    of: str
    """Description of the content."""
    kept: str = ""
    """Why it is not removed; empty if it can be."""

    @property
    def num_bytes(self) -> int:
        return sum(map(size_of, self.files))

    @property
    def unused_days(self) -> float:
        """Days since it was last used or written."""
        return min(map(_unused_days, self.files))


def main(arguments: Sequence[str]) -> None:
    options = parse(CleanOptions, arguments, prog="python -m asr_jax.clean", about=__doc__)
    if options.yes and options.dry_run:
        raise UserError("--yes and --dry-run contradict each other: expected one of them")
    kinds = tuple(dict.fromkeys(options.kinds)) or get_args(Kind)
    found = [each for kind in kinds for each in caches(kind, options.cache, unused_days=options.unused_days)]
    console = console_for()
    if not found:
        say(console, f"no caches in {CACHES}")
        return
    print_table([row(each) for each in found], title="caches", console=console)
    removable = [each for each in found if not each.kept]
    num_bytes = sum(each.num_bytes for each in removable)
    say(console, f"{counted(len(removable), 'cache')} of {len(found)} can be removed: {quantity(num_bytes, 'B')}")
    if not removable or options.dry_run:
        return
    check_foreign(kinds, options.cache)
    if not options.yes and not confirmed(f"remove {counted(len(removable), 'cache')}? [y/N] "):
        say(console, "nothing was removed")
        return
    removed = [each for each in removable if remove(each)]
    left = sum(each.num_bytes for each in removable)
    say(console, f"removed {counted(len(removed), 'cache')}, {quantity(num_bytes - left, 'B')}")
    if len(removed) < len(removable):
        say(console, f"{counted(len(removable) - len(removed), 'cache')} could not be removed, or is in use now")


def folder_of(kind: Kind, cache: Path | None) -> Path:
    """Returns the folder of a kind."""
    if kind == "manifests" and (given := cache or os.environ.get(CACHE)):
        return Path(at_home(str(given))).absolute()
    compiled = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    if kind in ("traced", "compiled") and compiled and "://" not in compiled:
        return Path(compiled) / "traced" if kind == "traced" else Path(compiled)
    return Path(CACHES) / FOLDERS[kind]


def caches(kind: Kind, cache: Path | None, *, unused_days: float = 0.0) -> Iterator[RemovableCache]:
    """Yields the caches of a kind: one for each set of inputs, and each imported model; the others have one folder."""
    folder = folder_of(kind, cache)
    known = [path for path in _entries(folder) if re.fullmatch(NAMES[kind], path.name) and not path.is_symlink()]
    known = [path for path in known if _unused_days(path) >= unused_days]
    if kind == "manifests":
        for path in known:
            yield RemovableCache(kind, path, (path,), ", ".join(inputs_of(path)) or "unfinished", user_of(path))
        return
    if kind == "imported":
        yield from (
            RemovableCache(kind, path, (path,), ", ".join(each.name for each in _entries(path))) for path in known
        )
        return
    files = tuple(path for path in known if path.name != "traced")
    if kind == "logs":
        files = tuple(path for path in files if is_free(path))  # a log is locked while its command runs
    if files:
        kept = "JAX_COMPILATION_CACHE_DIR may be that of other programs too" if _is_shared(kind, folder) else ""
        yield RemovableCache(kind, folder, files, counted(len(files), "file"), kept)


def check_foreign(kinds: Sequence[Kind], cache: Path | None) -> None:
    """Checks that the folders contain only files of this package and of JAX.

    Raises:
        UserError: If one contains other files. Nothing was removed.
    """
    names = {path.split("/")[0] for path in FOLDERS.values()}
    foreign = [path for path in _entries(Path(CACHES)) if path.name not in names]
    for kind, folder in ((kind, folder_of(kind, cache)) for kind in kinds):
        for path in [] if _is_shared(kind, folder) else _entries(folder):
            if path.is_symlink() or not re.fullmatch(NAMES[kind], path.name):
                foreign.append(path)
            elif kind == "manifests":
                foreign += foreign_files(path)
    if foreign:
        shown = "\n".join(f"  {path}" for path in foreign[:5]) + "\n  …" * (len(foreign) > 5)
        raise UserError(
            f"nothing was removed, because {counted(len(foreign), 'file')} in the cache folders "
            f"{'is' if len(foreign) == 1 else 'are'} not of this package:\n{shown}\nmove them to another folder"
        )


def row(cache: RemovableCache) -> dict[str, object]:
    """Row of the table."""
    return {
        "kind": cache.kind,
        "path": str(cache.path),
        "of": cache.of,
        "bytes": cache.num_bytes,
        "unused days": round(cache.unused_days, 1),
        "kept": cache.kept or "",
    }


def confirmed(question: str) -> bool:
    """Asks in the terminal.

    Raises:
        UserError: If standard input is not a terminal.
    """
    if not sys.stdin or not sys.stdin.isatty():
        raise UserError("nothing was removed: --yes removes without a question, which needs a terminal")
    return input(question).strip().lower() in ("y", "yes")


def remove(cache: RemovableCache) -> bool:
    """Removes a cache; returns whether all of it was removed."""
    if cache.kind == "manifests":
        return remove_place(cache.path)
    for path in cache.files:
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with suppress(OSError):  # it may contain the traced programs, or the log of this command
        cache.path.rmdir()
    return not any(path.exists() for path in cache.files)


def _is_shared(kind: Kind, folder: Path) -> bool:
    """Whether the compiled programs are in a folder that the user has chosen for JAX."""
    return kind == "compiled" and folder != Path(CACHES) / FOLDERS[kind]


def _unused_days(path: Path) -> float:
    try:
        return (time.time() - path.lstat().st_mtime) / 86_400
    except OSError:
        return 0.0


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []

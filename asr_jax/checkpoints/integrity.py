"""Integrity of checkpoints: each contains a seal, a file with the size and digest of every other file."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from asr_jax.core.files import write_whole
from asr_jax.core.paths import digest_of
from asr_jax.core.text_files import read_text

SEAL = "seal.json"
# Not sealed: after the seal is written, Orbax adds the time of the commit to the first file and creates the second one.
METADATA, COMMITTED = "_CHECKPOINT_METADATA", "commit_success.txt"


def seal(folder: Path) -> None:
    """Flushes every file of a complete checkpoint to the disk and writes the seal."""
    files = {}
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": digest}
    write_whole(folder / SEAL, _text({"files": files, "metadata": _metadata(folder)}))


def seal_digest(checkpoint: Path) -> str:
    """Returns a digest of all files of a checkpoint; empty if it has no seal."""
    return digest_of(checkpoint / SEAL)[:16]


def damage(folder: Path, part: str = "") -> str:
    """Checks a checkpoint against its seal.

    Args:
        part: Prefix of the names of the files to check. Empty: all files.

    Returns:
        A message about the first difference; empty if the checkpoint is intact.
    """
    try:
        text = read_text(folder / SEAL)
        sealed = json.loads(text)
        files = {name: (written["bytes"], written["sha256"]) for name, written in sealed["files"].items()}
        metadata = sealed["metadata"]
    except OSError:
        return f"it has no {SEAL}: it was not written completely"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"its {SEAL} cannot be parsed"
    if text != _text(sealed):
        return f"its {SEAL} differs from what was written"
    if any(name.endswith("/" + COMMITTED) for name in files) and not (folder / COMMITTED).exists():
        return f"it has no {COMMITTED}: it was not written completely"
    for name, (size, digest) in files.items():
        if not name.startswith(part):
            continue
        path = folder / name
        try:
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, but {size} were written"
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return f"{name} differs from what was written"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    try:
        return "" if _metadata(folder) == metadata else f"{METADATA} differs from what was written"
    except (OSError, ValueError, AttributeError) as error:
        return f"{METADATA} cannot be read: {error}"


def _text(sealed: dict[str, Any]) -> str:
    return json.dumps(sealed, indent=1) + "\n"


def _files(folder: Path) -> list[Path]:
    unsealed = {folder / name for name in (SEAL, METADATA, COMMITTED)}
    return sorted(path for path in folder.rglob("*") if path.is_file() and path not in unsealed)


def _metadata(folder: Path) -> dict[str, Any]:
    values = json.loads(read_text(folder / METADATA))
    return {name: value for name, value in values.items() if name != "commit_timestamp_nsecs"}

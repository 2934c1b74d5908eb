"""Downloads of corpus archives: resumed after interruptions, verified by checksum, and unpacked atomically."""

import hashlib
import http.client
import ssl
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from asr_jax.core.errors import RunError

BLOCK_BYTES = 1 << 20
TIMEOUT_S = 60
WAITS_S = (1, 5, 20)
"""Seconds before each further attempt after one that received nothing. After the last attempt, the download fails."""
OF_THE_NETWORK = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)


@dataclass(frozen=True)
class Archive:
    """Tar archive at a URL, with the expected checksum."""

    url: str
    checksum: str
    """`md5:…` or `sha256:…`, in hexadecimal."""

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def fetch(archive: Archive, folder: Path) -> Path:
    """Returns the verified file of the archive in the folder, and downloads it if it does not exist.

    An interrupted download is resumed, both immediately and by the next call.

    Raises:
        RunError: If the server does not deliver the archive, or if its checksum differs from the expected one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / archive.name
    partial = folder / f"{archive.name}.partial"
    if not path.exists():
        _receive(archive.url, partial)
    arrived = path if path.exists() else partial
    kind, _, expected = archive.checksum.partition(":")
    with open(arrived, "rb") as file:
        checksum = hashlib.file_digest(file, kind).hexdigest()
    if checksum != expected:
        if arrived == partial:
            partial.unlink()
        raise RunError(
            f"{path}: its {kind} is {checksum}, expected {expected}: the file from {archive.url} is another "
            f"one; {'download it again' if arrived == partial else 'remove the file'}, or use a mirror"
        )
    return arrived.rename(path)


def unpack(path: Path, folder: Path) -> None:
    """Moves the content of the archive's single top-level folder into `folder` after all of it is unpacked.

    Existing files are kept.

    Raises:
        RunError: If the file is not a tar, or does not have a single top-level folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as made:
        try:
            with tarfile.open(path) as tar:
                tar.extractall(made, filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise RunError(f"{path}: not a complete tar: {error}; download it again") from None
        tops = list(Path(made).iterdir())
        if len(tops) != 1:
            raise RunError(f"{path}: {len(tops)} files and folders at its top level; expected one folder")
        for entry in sorted(tops[0].iterdir()):
            if not (folder / entry.name).exists():
                entry.rename(folder / entry.name)


def _receive(url: str, partial: Path) -> None:
    """Downloads until the file is complete. Fails after several attempts that received nothing."""
    waits = iter(WAITS_S)
    while True:
        before = _size(partial)
        try:
            if _continue(url, partial):
                return
            reason = "the connection was interrupted"
        except urllib.error.HTTPError as error:
            with error:
                if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    return  # no bytes are left to fetch; the checksum verifies the file
                if error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise RunError(f"{url}: {error.code} {error.reason}; use a mirror or a local copy") from None
                reason = f"{error.code} {error.reason}"
        except OF_THE_NETWORK as error:
            reason = str(getattr(error, "reason", "") or error or type(error).__name__)
        if _size(partial) > before:
            waits = iter(WAITS_S)
            continue
        wait_s = next(waits, None)
        if wait_s is None:
            raise RunError(
                f"{url}: {reason}, with {_size(partial)} bytes in {partial}; run the same command again to resume, or "
                "use a mirror or a local copy"
            )
        time.sleep(wait_s)


def _continue(url: str, partial: Path) -> bool:
    """Downloads the missing end of the file. Returns whether the file is complete."""
    first = _size(partial)
    request = urllib.request.Request(url, headers={"Range": f"bytes={first}-"} if first else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        goes_on = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        length = answer.headers.get("Content-Length")
        total = int(length) + (first if goes_on else 0) if length else None
        with open(partial, "ab" if goes_on else "wb") as file, _bar() as bar:
            task = bar.add_task(url.rpartition("/")[2], total=total, completed=first if goes_on else 0)
            while block := answer.read(BLOCK_BYTES):
                file.write(block)
                bar.advance(task, len(block))
    return total is None or _size(partial) >= total


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    return Progress(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True,
        disable=not sys.stderr.isatty(),
    )  # fmt: skip


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

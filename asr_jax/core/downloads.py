"""Downloads of large files: resumed after interruptions, verified by checksum, and renamed when they are complete."""

import hashlib
import http.client
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.parse
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
    """File at a URL, with the expected checksum."""

    url: str
    checksum: str = ""
    """`md5:…` or `sha256:…`, in hexadecimal. Empty: it is not known, and the file is not verified."""

    @property
    def name(self) -> str:
        """Last part of the URL's path."""
        return urllib.parse.urlsplit(self.url).path.rpartition("/")[2]


def fetch(archive: Archive, folder: Path) -> Path:
    """Returns the verified file of the archive in the folder, and downloads it if it does not exist.

    An interrupted download is resumed, both immediately and by the next call.

    Raises:
        RunError: If the server does not deliver the archive or leads from https to http, if the disk has no space for
            it, or if its checksum differs from the expected one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / archive.name
    partial = folder / f"{archive.name}.partial"
    if not path.exists():
        _receive(archive.url, partial)
    arrived = path if path.exists() else partial
    kind, _, expected = archive.checksum.partition(":")
    with open(arrived, "rb") as file:
        checksum = hashlib.file_digest(file, kind or "sha256").hexdigest()
    if expected and checksum != expected:
        if arrived == partial:
            partial.unlink()
        raise RunError(
            f"{path}: its {kind} is {checksum}, expected {expected}: the file from {archive.url} is another "
            f"one; {'download it again' if arrived == partial else 'remove the file'}, or use a mirror"
        )
    return arrived.rename(path)


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
        if url.startswith("https:") and not answer.url.startswith("https:"):
            raise RunError(f"{url} leads to {answer.url}: expected https, which keeps the file unchanged on its way")
        goes_on = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        length = answer.headers.get("Content-Length")
        total = int(length) + (first if goes_on else 0) if length else None
        free = shutil.disk_usage(partial.parent).free
        if length and int(length) > free:
            raise RunError(
                f"{url} has {int(length):,} more bytes, and the disk of {partial.parent} {free:,}: free space"
            )
        with open(partial, "ab" if goes_on else "wb") as file, _bar() as bar:
            task = bar.add_task(partial.stem, total=total, completed=first if goes_on else 0)
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

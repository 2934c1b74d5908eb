"""Files behind URLs (`s3://`, `gs://`, `https://` …), read with fsspec, of which the extra `remote` has the parts."""

import hashlib
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from asr_jax.audio.io import AudioError
from asr_jax.core.environment import CACHES
from asr_jax.core.errors import UserError
from asr_jax.core.files import temporary_path, write_whole
from asr_jax.core.installation import installing
from asr_jax.core.text_files import read_text

URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
MAGIC = re.compile(r"[*?\[]")
QUERY = re.compile(r"\?[\w.~%-]+=.*", re.DOTALL)
"""Query of an http or https URL, such as the signature of a signed one."""
ORIGIN = "origin.url"
"""Name of the file beside a fetched one that contains the URL of its folder."""
BLOCK = 1 << 20


class StorageError(AudioError):
    """Error of a storage that may succeed when the read is repeated: an interrupted connection, half of a file."""


def is_url(path: str) -> bool:
    """Whether a path is a URL of another scheme than `file`."""
    found = URL.match(path)
    return found is not None and found[1].lower() != "file"


def without_query(url: str) -> str:
    """The URL without its query, such as that of a signed URL. Other paths are returned as they are."""
    return QUERY.sub("", url) if url.lower().startswith(("http://", "https://")) else url


def source_of(path: str) -> str:
    """Storage that a path belongs to: scheme and host or bucket of a URL, or the mount point of a local path."""
    if is_url(path):
        scheme, _, rest = path.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"
    return _mount_of(os.path.dirname(os.path.abspath(path)))


@lru_cache(1 << 16)
def _mount_of(folder: str) -> str:
    parent = os.path.dirname(folder)
    return folder if parent == folder or os.path.ismount(folder) else _mount_of(parent)


def why_not_read(path: str) -> str:
    """Reason why URLs of a scheme cannot be read here. Empty if they can."""
    scheme = path.partition("://")[0]
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme.lower())
    except (ImportError, ValueError) as error:
        return (
            f"{scheme}:// addresses are not read: download the files, or mount them as a folder, and give local paths; "
            f"or install the extra remote, {installing('remote')} ({' '.join(str(error).split())})"
        )
    return ""


def content_of(url: str, first_byte: int = 0, num_bytes: int | None = None) -> bytes:
    """Reads a file behind a URL, or a part of it.

    Args:
        num_bytes: Number of bytes. None: the whole file.

    Raises:
        StorageError: If the storage fails, or returns less than the file or the part has.
        AudioError: If there is no such file.
    """
    try:
        system, path = _opened(url)
        if num_bytes is None:
            expected = system.size(path)
            content = system.cat_file(path)
        else:
            expected = num_bytes
            content = system.cat_file(path, start=first_byte, end=first_byte + num_bytes)
    except FileNotFoundError:
        raise AudioError(url, "no such file") from None
    except PermissionError as error:
        raise AudioError(url, f"no permission: {error}") from None
    except Exception as error:  # each file system has its own errors of connections
        raise StorageError(url, f"{type(error).__name__}: {error}") from None
    if expected is not None and len(content) < expected:
        raise StorageError(url, f"truncated: the storage sent {len(content)} of {expected} bytes")
    return content


def opened(url: str) -> Any:
    """Opens a file behind a URL for reading in order and at any place.

    Raises:
        FileNotFoundError: If there is no such file.
        StorageError: If the storage fails.
    """
    try:
        system, path = _opened(url)
        return system.open(path, "rb")
    except (FileNotFoundError, AudioError):
        raise
    except Exception as error:
        raise StorageError(url, f"{type(error).__name__}: {error}") from None


def _opened(url: str) -> tuple[Any, str]:
    import fsspec

    return fsspec.core.url_to_fs(url)


def matching(url: str) -> list[str]:
    """URLs that match a pattern, in order; the URL itself if it is no pattern.

    Raises:
        UserError: If the storage fails, or if nothing matches.
    """
    if not MAGIC.search(without_query(url).partition("://")[2]):
        return [url]
    try:
        system, pattern = _opened(url)
        if system.exists(pattern):
            return [url]
        found = [_like(url, path) for path in sorted(system.glob(pattern))]
    except Exception as error:
        raise UserError(f"{url}: {type(error).__name__}: {error}") from None
    if not found:
        raise UserError(f"{url}: no file matches this pattern")
    return found


def _like(url: str, path: str) -> str:
    """URL of a path of a file system, with as many slashes after the scheme as a given URL of it."""
    scheme, _, rest = url.partition("://")
    if is_url(path):
        return path
    return f"{scheme}://{path if rest.startswith('/') else path.lstrip('/')}"


def fetched(url: str) -> str:
    """Copies a file, such as a manifest, to the cache; returns the path of the copy.

    It is copied again if its size, time or tag in the storage has changed.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        system, path = _opened(url)
        about = system.info(path)
        digest = hashlib.sha256(repr((url, _state(about))).encode()).hexdigest()[:24]
        copy = Path(CACHES) / "remote" / digest / without_query(path).rstrip("/").rpartition("/")[2]
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_whole(copy.with_name(ORIGIN), without_query(url).rpartition("/")[0])
            partial = temporary_path(copy, f"{copy.name}.{os.getpid()}.partial")
            with system.open(path, "rb") as source, partial.open("wb") as file:
                while block := source.read(BLOCK):
                    file.write(block)
            if about.get("size") is not None and partial.stat().st_size != about["size"]:
                raise StorageError(url, f"truncated: {partial.stat().st_size} of {about['size']} bytes")
            partial.replace(copy)
    except Exception as error:
        raise UserError(f"{url} cannot be read: {type(error).__name__}: {error}") from None
    return str(copy)


def state_of_url(url: str) -> str:
    """Size, time and tag of a file in its storage. Empty if the storage does not tell."""
    try:
        system, path = _opened(url)
        return repr(_state(system.info(path)))
    except Exception:  # each file system has its own errors; reading the file reports them
        return ""


def _state(about: Mapping[str, Any]) -> list[Any]:
    return [about.get("size"), *(str(about.get(name)) for name in ("ETag", "etag", "mtime", "created", "updated"))]


def origin_of(path: str) -> str:
    """URL of the folder that a fetched file is from. Empty for other files."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.dirname(folder) != os.path.join(CACHES, "remote"):
        return ""
    try:
        return read_text(Path(folder, ORIGIN))
    except OSError:
        return ""

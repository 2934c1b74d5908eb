"""Finds files of several recordings, one after the other, as `cat a.mp3 b.mp3` and streams write them.

libsndfile reads the first recording of such MP3, Ogg and FLAC files and nothing of the others.
"""

import functools
import mmap
import os
import re
from collections.abc import Callable
from io import BufferedIOBase, BytesIO

from asr_jax.audio.mp3 import LARGEST_FRAME, frame_at, pass_id3
from asr_jax.audio.ogg import next_page

_TAIL_BYTES = 1 << 16
"""At least the size of an Ogg page: 65,307 bytes."""
_SERIAL = slice(14, 18)
"""Place of the number of a track in a page of Ogg."""
_HAS_FRAMES, _HAS_BYTES = 1, 2
_FLAC_START = rb"fLaC\x00\x00\x00\x22"
"""Marker of a FLAC file and header of its first block, which has 34 bytes."""


def is_joined(file: BytesIO | str | os.PathLike[str], kind: str) -> bool:
    """Whether a second recording follows the first one in an MP3 or Ogg file.

    Only the beginning and the end of the first recording are read, or the end of the file.
    """
    return kind in _FINDERS and scanned(file, _FINDERS[kind])


def scanned(file: BytesIO | str | os.PathLike[str], find: Callable[[BufferedIOBase], bool]) -> bool:
    """Returns what is found in a file. Results are remembered, because parts of a file are read often."""
    if isinstance(file, BytesIO):
        return find(BytesIO(file.getvalue()))
    return _scanned(os.fspath(file), os.stat(file).st_mtime_ns, find)


@functools.lru_cache(maxsize=1 << 16)
def _scanned(path: str, time_ns: int, find: Callable[[BufferedIOBase], bool]) -> bool:
    with open(path, "rb") as content:
        return find(content)


def begins_again(file: BufferedIOBase, kind: str) -> bool:
    """Whether a second recording begins in a FLAC file, or an Ogg track of equal number. The file is read to its end.

    Args:
        file: The file, open at its beginning.
        kind: libsndfile's name of its format. No others than OGG and FLAC begin again.
    """
    if kind not in ("FLAC", "OGG"):
        return False
    start = _FLAC_START
    if kind == "OGG":
        head = file.read(_SERIAL.stop)
        start = re.escape(head[:6]) + b".{8}" + re.escape(head[_SERIAL])
    pattern = re.compile(start, re.DOTALL)
    if isinstance(file, BytesIO):
        return bool(pattern.search(file.getbuffer(), 1))
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return bool(pattern.search(content, 1))


def _mp3(file: BufferedIOBase) -> bool:
    """Whether frames follow the end that the Xing header of the first frame states. Without it, all frames are read."""
    pass_id3(file)
    start = file.tell()
    head = file.read(LARGEST_FRAME)
    first = frame_at(head, 0)
    place = max(head.find(tag, 0, first[0]) for tag in (b"Xing", b"Info")) if first else -1
    if place < 0:
        return False
    flags = int.from_bytes(head[place + 4 : place + 8])
    if not flags & _HAS_BYTES:
        return False
    offset = place + (12 if flags & _HAS_FRAMES else 8)
    # Programs that edit tags or write to a pipe leave a size of 0, or one that is larger than the file.
    size = int.from_bytes(head[offset : offset + 4])
    if not size:
        return False
    file.seek(start + size)
    pass_id3(file)
    rest = file.read(2 * LARGEST_FRAME)
    following = frame_at(rest, 0)
    return following is not None and frame_at(rest, following[0]) is not None


def _ogg(file: BufferedIOBase) -> bool:
    """Whether a track begins after the pages with the beginnings of the first tracks."""
    first = next_page(file)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    tail = file.read()
    last = next_page(BytesIO(tail[max(tail.rfind(b"OggS"), 0) :]))
    if not first or not last or first.serial == last.serial:
        return False
    file.seek(0)
    has_begun = False
    while page := next_page(file):
        if page.begins and has_begun:
            return True
        has_begun |= not page.begins
    return False


_FINDERS = {"MP3": _mp3, "OGG": _ogg}

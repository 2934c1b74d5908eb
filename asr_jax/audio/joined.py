"""Finds files of several recordings, one after the other, as `cat a.mp3 b.mp3` and streams write them.

libsndfile reads the first recording of such MP3, Ogg and FLAC files and nothing of the others.
"""

import functools
import mmap
import os
import re
import struct
from io import BufferedIOBase, BytesIO

from asr_jax.audio.mp3 import LARGEST_FRAME, frame_at, pass_id3

_TAIL_BYTES = 1 << 16
"""At least the size of an Ogg page: 65,307 bytes."""
_FIRST_PAGE = 2
_PAGE = struct.Struct("<4sBB8xI")
_HAS_FRAMES, _HAS_BYTES = 1, 2
_FLAC_START = rb"fLaC\x00\x00\x00\x22"
"""Marker of a FLAC file and header of its first block, which has 34 bytes."""


def is_joined(file: BytesIO | str | os.PathLike[str], kind: str) -> bool:
    """Whether a second recording follows the first one in an MP3 or Ogg file.

    Only the beginning and the end of the first recording are read, or the end of the file. Results are remembered.

    Args:
        file: Path, or content in memory, whose position does not change.
        kind: libsndfile's name of its format.
    """
    if kind not in _FINDERS:
        return False
    if isinstance(file, BytesIO):
        return _FINDERS[kind](BytesIO(file.getvalue()))
    return _is_joined(os.fspath(file), os.stat(file).st_mtime_ns, kind)


@functools.lru_cache(maxsize=1 << 16)
def _is_joined(path: str, time_ns: int, kind: str) -> bool:
    with open(path, "rb") as content:
        return _FINDERS[kind](content)


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
        head = file.read(_PAGE.size)
        start = re.escape(head[:6]) + b".{8}" + re.escape(head[14:])
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
    head = file.read(_PAGE.size)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    tail = file.read()
    last = tail.rfind(b"OggS")
    if len(head) < _PAGE.size or not 0 <= last <= len(tail) - _PAGE.size:
        return False
    serial = _PAGE.unpack_from(head)[-1]
    if _PAGE.unpack_from(tail, last)[-1] == serial:
        return False
    file.seek(0)
    content, place, begun = file.read(), 0, False
    while place >= 0:
        is_first = bool(content[place + 5] & _FIRST_PAGE)
        if is_first and begun:
            return True
        begun |= not is_first
        place = _next_page(content, place)
    return False


def _next_page(content: bytes, place: int) -> int:
    num_segments = content[place + 26]
    following = place + 27 + num_segments + sum(content[place + 27 : place + 27 + num_segments])
    return following if content[following : following + 4] == b"OggS" and len(content) > following + 27 else -1


_FINDERS = {"MP3": _mp3, "OGG": _ogg}

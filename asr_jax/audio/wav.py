"""Sizes in the headers of WAV files. A file written to a pipe has none, and its samples go on to its end."""

import struct
from io import BufferedIOBase

_HEADER_BYTES = 1 << 16
UNKNOWN = 0xFFFFFFFF
"""Size of a chunk that is not known; libsndfile then reads up to the end of the file."""
UNKNOWN_FROM = 0x7FFF0000
"""Least size in bytes that is not the length of the samples: writers that cannot seek back (pipes), such as sox and
arecord, leave a size near 2 or 4 GiB in the header."""


def with_unknown_size(content: bytes) -> bytes | None:
    """Replaces a size of 0 bytes of samples by UNKNOWN.

    Args:
        content: Content of a WAV file.

    Returns:
        The content with the other header. None if the header has another size, or there are no samples after it.
    """
    place, size = _data(content)
    if place is None or size or _are_chunks(content, place):
        return None
    header = content[:4] + struct.pack("<I", UNKNOWN) + content[8 : place - 4] + struct.pack("<I", UNKNOWN)
    return header + content[place:]


def data_end(file: BufferedIOBase) -> int | None:
    """Returns the number of bytes up to the end of the samples, which a complete file has. None if it is unknown."""
    place, size = _data(file.read(_HEADER_BYTES))
    return None if place is None or size in (0, UNKNOWN) else place + size


def _data(content: bytes) -> tuple[int | None, int]:
    """Returns the place and the size in bytes of the samples. None: there is no such chunk."""
    place = 12
    while place + 8 <= len(content):
        name, size = content[place : place + 4], struct.unpack_from("<I", content, place + 4)[0]
        if name == b"data":
            return place + 8, size
        place += 8 + size + size % 2
    return None, 0


def _are_chunks(content: bytes, place: int) -> bool:
    """Whether only complete chunks, such as LIST, or nothing follow."""
    while place + 8 <= len(content) and content[place : place + 4].isascii():
        size = struct.unpack_from("<I", content, place + 4)[0]
        place += 8 + size + size % 2
    return place >= len(content) and place <= len(content) + 1

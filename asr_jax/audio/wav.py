"""WAV files whose header has no size, because they were written to a pipe: the samples go on to the end of the file."""

import struct

UNKNOWN = 0xFFFFFFFF
"""Size of a chunk that is not known; libsndfile then reads up to the end of the file."""


def with_unknown_size(content: bytes) -> bytes | None:
    """Replaces a size of 0 bytes of samples by UNKNOWN.

    Args:
        content: Content of a WAV file.

    Returns:
        The content with the other header. None if the header has another size, or there are no samples after it.
    """
    place = 12
    while place + 8 <= len(content):
        name, size = content[place : place + 4], struct.unpack_from("<I", content, place + 4)[0]
        if name == b"data":
            if size or _are_chunks(content, place + 8):
                return None
            header = content[:4] + struct.pack("<I", UNKNOWN) + content[8 : place + 4] + struct.pack("<I", UNKNOWN)
            return header + content[place + 8 :]
        place += 8 + size + size % 2
    return None


def _are_chunks(content: bytes, place: int) -> bool:
    """Whether only complete chunks, such as LIST, or nothing follow."""
    while place + 8 <= len(content) and content[place : place + 4].isascii():
        size = struct.unpack_from("<I", content, place + 4)[0]
        place += 8 + size + size % 2
    return place >= len(content) and place <= len(content) + 1

"""Sizes in the headers of Matroska and WebM files: FFmpeg reads a truncated file to its end without an error.

Sources: RFC 8794 (elements) and RFC 9559 (segment).
"""

from io import BufferedIOBase

_HEADER, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
_LONGEST_SIZE = 8


def segment_end(file: BufferedIOBase) -> int | None:
    """Returns the number of bytes up to the end of the segment, which a complete file has; None if it is unknown."""
    if file.read(len(_HEADER)) != _HEADER or (size := _size(file)) is None:
        return None
    file.seek(size, 1)
    if file.read(len(_SEGMENT)) != _SEGMENT or (size := _size(file)) is None:
        return None
    return file.tell() + size


def _size(file: BufferedIOBase) -> int | None:
    """Reads the size of an element. None if it is unknown or cut."""
    first = file.read(1)
    num_bytes = _LONGEST_SIZE + 1 - first[0].bit_length() if first else 0
    rest = file.read(num_bytes - 1) if 0 < num_bytes <= _LONGEST_SIZE else b""
    if not first or len(rest) != num_bytes - 1:
        return None
    bits = 7 * num_bytes
    size = int.from_bytes(first + rest) & ((1 << bits) - 1)
    return None if size == (1 << bits) - 1 else size

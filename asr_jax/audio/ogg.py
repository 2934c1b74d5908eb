"""Pages of Ogg files, and gaps in the times of Opus, which libsndfile passes over: later samples would be too early.

Sources: RFC 3533 (pages), RFC 6716 (3.1) and RFC 7845 (packets).
"""

import struct
from io import BufferedIOBase
from typing import NamedTuple

_HEAD = struct.Struct("<4sBBqIIIB")
_FRAMES = (*(480, 960, 1920, 2880) * 3, *(480, 960) * 2, *(120, 240, 480, 960) * 4)
"""Samples at 48 kHz of a frame, by the configuration of the packet."""
_NO_PACKET_ENDS, _CONTINUED, _BEGINS = -1, 1, 2
GAP_SAMPLES = 4800
"""Smallest gap, 0.1 s: the packets of a page may have different durations."""


class Page(NamedTuple):
    """Header of a page."""

    begins: bool
    """Whether a track begins with this page."""
    granule: int
    """Number of samples up to the end of the page."""
    serial: int
    number: int
    num_packets: int
    """Number of packets that end on the page."""
    first: bytes
    """Beginning of the first packet that begins on the page."""


def has_gaps(file: BufferedIOBase) -> bool:
    """Whether the times of an Ogg Opus file have gaps although it has all of its pages."""
    if not (page := next_page(file)) or page.first != b"OpusHead":
        return False
    serial, number, granule, found = page.serial, page.number, 0, False
    while page := next_page(file):
        if page.serial != serial:  # another track, or the next recording of a chain
            continue
        if page.number != number + 1:
            return False
        number = page.number
        if page.granule == _NO_PACKET_ENDS or page.first == b"OpusTags":
            continue
        expected = granule + page.num_packets * _samples(page.first)
        found |= granule > 0 and page.granule > expected + GAP_SAMPLES
        granule = page.granule
    return found


def next_page(file: BufferedIOBase) -> Page | None:
    """Reads the next page. None at the end, or if there is no page."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, _, kind, granule, serial, number, _, num_segments = _HEAD.unpack(head)
    if magic != b"OggS":
        return None
    segments = file.read(num_segments)
    size, skipped = sum(segments), 0
    if kind & _CONTINUED:
        ends = next((place for place, segment in enumerate(segments) if segment < 255), len(segments) - 1)
        skipped = sum(segments[: ends + 1])
    start = file.tell()
    file.seek(start + skipped)
    first = file.read(min(8, size - skipped))
    file.seek(start + size)
    return Page(bool(kind & _BEGINS), granule, serial, number, len(segments) - segments.count(255), first)


def _samples(packet: bytes) -> int:
    """Number of samples of a packet at 48 kHz."""
    if not packet:
        return 0
    frames = (1, 2, 2, packet[1] & 63 if len(packet) > 1 else 1)[packet[0] & 3]
    return frames * _FRAMES[packet[0] >> 3]

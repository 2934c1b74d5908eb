"""Counts the samples of MP3 files that do not have their length in a header.

libsndfile estimates the length of such files from the first frame's bit rate and reads no further. Frames are those of
ISO/IEC 11172-3 and 13818-3, layer III.
"""

from io import BufferedIOBase

# Keyed by the two bits of the MPEG version: 0 is version 2.5, 2 is version 2, 3 is version 1.
_LOW = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_KBIT = {0: _LOW, 2: _LOW, 3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)}
_RATE_HZ = {0: (11025, 12000, 8000), 2: (22050, 24000, 16000), 3: (44100, 48000, 32000)}
_SAMPLES = {0: 576, 2: 576, 3: 1152}
_TELL_LENGTH = (b"Xing", b"Info", b"VBRI")
_ID3_BYTES = 10
LARGEST_FRAME = 4096


def untold_samples(file: BufferedIOBase) -> int | None:
    """Counts the samples of all frames of an MP3 file without its length in a header.

    The whole file is read only in this case.

    Returns:
        The number of samples, or None if a header contains it or the first frame is not of layer III.
    """
    pass_id3(file)
    content = file.read(LARGEST_FRAME)
    first = frame_at(content, 0)
    if first is None or any(tag in content[: first[0]] for tag in _TELL_LENGTH):
        return None
    content += file.read()
    num_samples = offset = 0
    while (frame := frame_at(content, offset)) and offset + frame[0] <= len(content):
        offset += frame[0]
        num_samples += frame[1]
    return num_samples


def frame_at(content: bytes, offset: int) -> tuple[int, int] | None:
    """Returns the size in bytes and the number of samples of the frame at `offset`; None if there is no frame."""
    header = content[offset : offset + 4]
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return None
    version, kbit, rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or rate == 3 or kbit in (0, 15):
        return None
    samples = _SAMPLES[version]
    return samples * 125 * _KBIT[version][kbit] // _RATE_HZ[version][rate] + (header[2] >> 1 & 1), samples


def pass_id3(file: BufferedIOBase) -> None:
    """Moves the position of a file behind the ID3 tags at this position."""
    offset = file.tell()
    while (head := file.read(_ID3_BYTES)).startswith(b"ID3") and len(head) == _ID3_BYTES:
        size = 0
        for byte in head[6:]:
            size = size << 7 | byte
        offset += _ID3_BYTES + size
        file.seek(offset)
    file.seek(offset)

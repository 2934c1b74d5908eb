"""The length of MP3 that no header tells: libsndfile guesses it by the first rate of bits, and reads no further.

Frames of ISO/IEC 11172-3 and 13818-3, layer III.
"""

from io import BufferedIOBase

# By MPEG version as its two bits are: 0 is 2.5, 2 is 2, 3 is 1.
_LOW = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_KBIT = {0: _LOW, 2: _LOW, 3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)}
_RATE_HZ = {0: (11025, 12000, 8000), 2: (22050, 24000, 16000), 3: (44100, 48000, 32000)}
_SAMPLES = {0: 576, 2: 576, 3: 1152}
_TELL_LENGTH = (b"Xing", b"Info", b"VBRI")
_ID3_BYTES = 10
_LARGEST_FRAME = 4096


def untold_samples(file: BufferedIOBase) -> int | None:
    """Samples of all frames; None where a header tells their number, or the first frame is none of layer III. Only
    where none does is all of the file read.
    """
    _pass_id3(file)
    content = file.read(_LARGEST_FRAME)
    first = _frame(content, 0)
    if first is None or any(tag in content[: first[0]] for tag in _TELL_LENGTH):
        return None
    content += file.read()
    num_samples = offset = 0
    while (frame := _frame(content, offset)) and offset + frame[0] <= len(content):
        offset += frame[0]
        num_samples += frame[1]
    return num_samples


def _frame(content: bytes, offset: int) -> tuple[int, int] | None:
    """Bytes and samples of the frame that begins there; None where none does."""
    header = content[offset : offset + 4]
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return None
    version, kbit, rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or rate == 3 or kbit in (0, 15):
        return None
    samples = _SAMPLES[version]
    return samples * 125 * _KBIT[version][kbit] // _RATE_HZ[version][rate] + (header[2] >> 1 & 1), samples


def _pass_id3(file: BufferedIOBase) -> None:
    """Leaves the file where the tags at its beginning end."""
    offset = 0
    while (head := file.read(_ID3_BYTES)).startswith(b"ID3") and len(head) == _ID3_BYTES:
        size = 0
        for byte in head[6:]:
            size = size << 7 | byte
        offset += _ID3_BYTES + size
        file.seek(offset)
    file.seek(offset)

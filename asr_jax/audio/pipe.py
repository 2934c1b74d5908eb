"""Audio from a pipe while it arrives: raw 16-bit samples, or the samples of a WAV file."""

import math
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int16

from asr_jax.audio.errors import AudioError
from asr_jax.audio.mono import Mono, Remarks, as_int16
from asr_jax.audio.wav import UNKNOWN_FROM
from asr_jax.core.names import counted

AT_ONCE = 1 << 16
"""Largest number of bytes that are read at once."""
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
"""Codes of formats of samples in WAV files. Source: mmreg.h of Windows."""
TYPES: dict[tuple[int, int], np.dtype] = {(PCM, 16): np.dtype("<i2"), (FLOAT, 32): np.dtype("<f4")}
"""Type of samples by their code and number of bits."""
OTHERS = {
    b"fLaC": "FLAC",
    b"OggS": "Ogg",
    b"ID3": "MP3",
    b"FORM": "AIFF",
    b".snd": "AU",
    b"caff": "CAF",
    b"RF64": "RF64",
}
"""Names of other formats by the first bytes of their files."""
ADVICE = "ffmpeg -i INPUT -f s16le -ar {rate_hz} -ac 1 -"


class Samples(NamedTuple):
    """Form of the samples of a pipe."""

    rate_hz: int
    channels: int = 1
    dtype: np.dtype = TYPES[PCM, 16]
    size: float = math.inf
    """Number of bytes of the samples; infinite if the header does not have it."""


class PipedAudio:
    """Samples of a pipe. Iteration yields blocks of mono samples as soon as their bytes arrive, up to the end."""

    def __init__(self, read: Callable[[int], bytes], name: str, *, rate_hz: int, remarks: Remarks) -> None:
        """Reads the header, if there is one.

        Args:
            read: Waits for bytes and returns at most the given number of them; none at the end.
            rate_hz: Sample rate of samples without a header in Hz.
            remarks: Collects the remarks of `Mono`, and one if the pipe ends within a sample.

        Raises:
            AudioError: If the pipe is empty, has another format, or a header that cannot be read.
        """
        self._read, self._name, self._remarks, self._rate_hz = read, name, remarks, rate_hz
        self._held = b""
        start = self._peek(12)
        if not start:
            raise AudioError(name, "empty: expected raw 16-bit samples or a WAV file")
        if other := next((name for magic, name in OTHERS.items() if start.startswith(magic)), ""):
            raise AudioError(name, f"{other}, which is not read from a pipe while it arrives: {self._advice}")
        is_wav = start[:4] == b"RIFF" and start[8:] == b"WAVE"
        self.samples = self._header() if is_wav else Samples(rate_hz)

    @property
    def _advice(self) -> str:
        return f"expected raw 16-bit samples or a WAV file, as from {ADVICE.format(rate_hz=self._rate_hz)}"

    def __iter__(self) -> Iterator[Int16[np.ndarray, " S"]]:
        """Yields blocks of mono samples of full scale ±32768, the mean of all channels.

        Raises:
            AudioError: As `Mono`, when the block with the problem is reached, and if no whole sample arrives.
        """
        _, channels, dtype, left = self.samples
        mix, frame, rest = Mono(self._name, None, self._remarks), channels * dtype.itemsize, self._held
        is_empty = True
        while True:
            whole = len(rest) - len(rest) % frame
            if whole:
                is_empty = False
                block = np.frombuffer(rest[:whole], dtype).reshape(-1, channels).astype(dtype.newbyteorder("="))
                mono, rest = mix(block, is_float=dtype.kind == "f"), rest[whole:]
                yield mono if mono.dtype == np.int16 else as_int16(mono)
            more = self._read(int(min(AT_ONCE, left)))
            left -= len(more)
            if not more:
                break
            rest += more
        if is_empty:
            raise AudioError(self._name, f"it ends before the first sample is whole: {self._advice}")
        if rest:
            self._remarks.reasons.append(
                f"the pipe ends within a sample: its last {counted(len(rest), 'byte')} of a sample of {frame} bytes "
                "cannot be used"
            )
        mix.finish()

    def _header(self) -> Samples:
        """Reads a WAV file up to its samples."""
        self._take(12)
        form = b""
        while True:
            name, size = struct.unpack("<4sI", self._take(8))
            if name == b"data":
                break
            left = size + size % 2
            chunk = self._take(min(left, AT_ONCE))
            form = chunk if name == b"fmt " else form
            while left := left - len(chunk):
                chunk = self._take(min(left, AT_ONCE))
        if len(form) < 16:
            raise AudioError(self._name, f"a WAV file without the format of its samples: {self._advice}")
        code, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", form)
        if code == EXTENSIBLE and len(form) >= 26:
            (code,) = struct.unpack_from("<H", form, 24)
        if (code, bits) not in TYPES or not channels or not rate_hz:
            raise AudioError(
                self._name,
                f"a WAV file with {counted(channels, 'channel')} at {rate_hz} Hz and samples of {bits} bits with code "
                f"{code}: expected 16 bits with code {PCM}, or 32 bits with code {FLOAT}, as from "
                f"{ADVICE.format(rate_hz=self._rate_hz)}",
            )
        return Samples(rate_hz, channels, TYPES[code, bits], size if 0 < size < UNKNOWN_FROM else math.inf)

    def _peek(self, num: int) -> bytes:
        """Returns the next `num` bytes, or fewer at the end of the pipe, which remain."""
        while len(self._held) < num and (more := self._read(num - len(self._held))):
            self._held += more
        return self._held[:num]

    def _take(self, num: int) -> bytes:
        """Returns the next `num` bytes. Raises an AudioError if the pipe ends before."""
        found = self._peek(num)
        if len(found) < num:
            raise AudioError(self._name, f"the pipe ends within the header of a WAV file: {self._advice}")
        self._held = self._held[num:]
        return found

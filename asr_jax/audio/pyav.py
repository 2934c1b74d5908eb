"""Reads audio formats that libsndfile does not support (m4a, aac, webm, mp4 …) by FFmpeg.

Samples are at the times of the medium: a track that begins later, and a gap between packets, are silence. Requires
PyAV, which the extra `formats` installs. Files are paths or file objects, with their names in error messages.
"""

import io
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from asr_jax.audio.errors import AudioError
from asr_jax.audio.matroska import segment_end
from asr_jax.audio.wav import data_end
from asr_jax.core.installation import installing

SUFFIXES = (".m4a", ".aac", ".webm", ".mp4", ".mka", ".wma", ".mkv", ".mov")
CONTENT = re.compile(
    rb"\x1aE\xdf\xa3|.{4}(?:ftyp|moov|mdat|wide)|\x30\x26\xb2\x75\x8e\x66\xcf\x11|\xff[\xf0\xf1\xf8\xf9]|#!AMR"
    rb"|G.{187}G.{187}G|OggS|(?:RIFF|RF64).{4}WAVE.{0,1024}?fmt .{4}(?:\x50\0|[\x60\x61]\x01|\0\x20)",
    re.DOTALL,
)
"""First bytes of files that FFmpeg reads if libsndfile cannot: webm and mka, m4a and mov, wma, aac, amr, MPEG-TS, and
codecs in Ogg and WAV."""
CONTENT_BYTES = 2048
# Formats without a header that contains the duration; FFmpeg estimates it.
WITHOUT_HEADER = ("aac", "amr", "mpegts", "wav")
MATROSKA = "matroska,webm"
FROM_ZERO = (MATROSKA, "mov,mp4,m4a,3gp,3g2,mj2")
"""Formats whose times begin at 0, so that a track may begin later. In others, such as MPEG-TS and Ogg, the first packet
of all tracks is the beginning."""
GAP_S = 0.1
"""Smallest gap in seconds that is filled with silence. Times of packets are rounded, and clocks of senders differ."""
LONGEST_GAP_S = 3600.0
"""Longest gap in seconds if the header has no duration. A recording that begins later is a part of a live one, and
begins with its first packet."""
LONGEST_S = 86_400.0
"""Longest gap in seconds if the header has a longer duration."""
RESET_S = 10.0
"""Step back in seconds at which times begin again, as in concatenated files. After a smaller step, the next gap is
shorter."""
SILENCE_BLOCK = 1 << 20
"""Largest number of samples of silence in a block."""
# Durations in headers include the encoder's delay and padding, which the decoder removes.
SLACK_S = 0.15
MISSING = f"install PyAV ({installing('formats')}), or convert the file to flac"


class NeedsFFmpeg(Exception):
    """Raised for a file that libsndfile cannot read, or not at its times, and that FFmpeg reads."""


class Joined(NeedsFFmpeg):
    """Raised for a file of several recordings, whose header has the length of the first one."""


class Block(NamedTuple):
    """Samples of a file, one after the other."""

    samples: Float32[np.ndarray, "S C"]
    """Samples of full scale ±1."""
    rate_hz: int
    """Sample rate in Hz."""
    is_float: bool
    """Whether the file has floating-point samples. False for lossy codecs."""


def is_of_ffmpeg(first_bytes: bytes) -> bool:
    """Whether FFmpeg reads a file that libsndfile does not read.

    Args:
        first_bytes: The first CONTENT_BYTES bytes of the file, or fewer.
    """
    return bool(CONTENT.match(first_bytes))


def blocks_with_pyav(file: Any, name: str) -> Iterator[Block]:
    """Reads the samples of the first audio stream in blocks, with silence where it has no packets.

    Yields:
        Blocks of the same rate and number of channels.

    Raises:
        AudioError: If PyAV is not installed, or the file has no audio, less than its header specifies, or times that
            cannot be right.
    """
    kinds, place, end_s = set[tuple[int, int]](), 0, 0.0
    with _opened(file, name) as (container, stream):
        clock = _Clock(container, stream, name)
        is_float = stream.codec_context.name.startswith("pcm_f")
        resampler = _library(name).AudioResampler(format="fltp")
        for packet in container.demux(stream):
            end_s = max(end_s, clock.end_s(packet))
            for frame in packet.decode():
                silence = clock.gap(frame, place)
                for out in resampler.resample(frame):
                    kinds.add((out.sample_rate, len(out.layout.channels)))
                    if len(kinds) > 1:
                        raise AudioError(
                            name,
                            "damaged: its sample rate or number of channels changes within the file (rates and "
                            f"channels: {sorted(kinds)}); copy the file again",
                        )
                    for samples in (*_silence(silence, len(out.layout.channels)), out.to_ndarray().T):
                        place += len(samples)
                        yield Block(samples, out.sample_rate, is_float)
                    silence = 0
        if not place:
            raise AudioError(name, "no samples")
        promised_s = _end_by_header(container, stream)
        _check_end(file, name, container, end_s, promised_s)
        end_s = end_s if promised_s is None else min(end_s, promised_s)
        ((rate_hz, channels),) = kinds
        for samples in _silence(clock.silence(end_s - clock.zero_s, place, rate_hz), channels):
            yield Block(samples, rate_hz, is_float)


def probe_with_pyav(file: Any, name: str) -> tuple[float, int, int]:
    """Reads duration, sample rate and number of channels of the first audio stream.

    The duration is that of the stream in the header, after the silence before it. Matroska and formats without a header
    have none; it is then the end of the last packet. It is the decoded one up to the padding of a packet.

    Returns:
        Duration in seconds, sample rate in Hz, and number of channels.
    """
    with _opened(file, name) as (container, stream):
        rate_hz, channels, clock = stream.rate, stream.channels, _Clock(container, stream, name)
        if (end_s := _end_by_header(container, stream)) is None:
            end_s = max((clock.end_s(packet) for packet in container.demux(stream)), default=0.0)
        duration_s = max(end_s - clock.zero_s, 0.0)
    return duration_s, rate_hz, channels


class _Clock:
    """Times of a stream's packets and frames in the medium."""

    def __init__(self, container: Any, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name
        start_s = (container.start_time or 0) / 1e6
        is_late = container.format.name in FROM_ZERO and 0 < start_s <= LONGEST_GAP_S
        self.zero_s = 0.0 if is_late else start_s
        """Time of the beginning of the medium."""
        self._frames, self._packets, self._last_s = _Times(), _Times(), math.inf
        if container.duration:
            # The duration of Matroska begins at 0, and others are computed from the first packet.
            self._last_s = container.duration / 1e6 + (0 if container.format.name == MATROSKA else start_s)

    def end_s(self, packet: Any) -> float:
        """Returns the time at which a packet ends; 0 if it has none."""
        if packet.pts is None:
            return 0.0
        start_s, duration_s = (float((value or 0) * packet.time_base) for value in (packet.pts, packet.duration))
        duration_s = duration_s or self._stream.codec_context.frame_size / self._stream.rate
        return self._packets.start_s(start_s, duration_s) + duration_s

    def gap(self, frame: Any, place: int) -> int:
        """Returns the number of samples of silence before a frame, of which `place` samples precede."""
        if frame.pts is None:
            return 0
        start_s = self._frames.start_s(float(frame.pts * frame.time_base), frame.samples / frame.sample_rate)
        return self.silence(start_s - self.zero_s, place, frame.sample_rate)

    def silence(self, now_s: float, place: int, rate_hz: int) -> int:
        """Returns the number of samples of silence up to a time.

        Raises:
            AudioError: If the time cannot be right.
        """
        gap_s = now_s - place / rate_hz
        longest_s = LONGEST_GAP_S if self._last_s == math.inf else min(self._last_s + 1.0, LONGEST_S)
        if gap_s <= GAP_S:
            return 0
        if gap_s > longest_s:
            raise AudioError(
                self._name,
                f"no audio for {gap_s:.0f} s, expected at most {longest_s:.0f} s; if its times are right, write the "
                "silence (ffmpeg -i IN -af aresample=async=1 OUT.flac)",
            )
        return round(gap_s * rate_hz)


class _Times:
    """Times that begin again are continued, so that nothing of concatenated files is lost."""

    def __init__(self) -> None:
        self._shift_s, self._end_s = 0.0, -math.inf

    def start_s(self, start_s: float, duration_s: float) -> float:
        """Returns the start of the next packet or frame, after a step back at the end of the last one."""
        if start_s + self._shift_s < self._end_s - RESET_S:
            self._shift_s = self._end_s - start_s
        self._end_s = start_s + self._shift_s + duration_s
        return start_s + self._shift_s


def _silence(num_samples: int, channels: int) -> Iterator[Float32[np.ndarray, "S C"]]:
    for first in range(0, num_samples, SILENCE_BLOCK):
        yield np.zeros((min(SILENCE_BLOCK, num_samples - first), channels), np.float32)


def _check_end(file: Any, name: str, container: Any, end_s: float, promised_s: float | None) -> None:
    """Checks that a file is complete: by its bytes for Matroska and WAV, otherwise by the end of the last packet."""
    if find_end := {MATROSKA: segment_end, "wav": data_end}.get(container.format.name):
        with io.BytesIO(file.getvalue()) if isinstance(file, io.BytesIO) else open(file, "rb") as content:
            wanted, there = find_end(content), content.seek(0, os.SEEK_END)
        if wanted is not None and there < wanted:
            raise AudioError(name, f"truncated: it has {there} of {wanted} bytes; copy the file again")
    elif promised_s is not None and end_s < promised_s - SLACK_S:
        raise AudioError(name, f"truncated: it has {end_s:.2f} of {promised_s:.2f} s of audio; copy the file again")


def _end_by_header(container: Any, stream: Any) -> float | None:
    """Returns the time at which the stream ends; None if it is not in the header or estimated from the bit rate."""
    if container.format.name in WITHOUT_HEADER or not stream.duration:
        return None
    return float(((stream.start_time or 0) + stream.duration) * stream.time_base)


@contextmanager
def _opened(file: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Opens a container and its first audio stream.

    FFmpeg's errors, also inside the block, are raised as AudioError, and so are PyAV's errors for damaged headers with
    missing fields.
    """
    av = _library(name)
    if isinstance(file, io.BytesIO):
        file.seek(0)  # libsndfile may have read it
    try:
        with av.open(file) as container:
            if not container.streams.audio:
                raise AudioError(name, "the file has no audio stream")
            yield container, container.streams.audio[0]
    except AudioError:
        raise
    except (av.FFmpegError, OSError) as error:
        raise AudioError(
            name, f"not audio that FFmpeg can read ({error.strerror or error}); check that the file is complete"
        ) from None
    except (AttributeError, ValueError, TypeError, ArithmeticError):
        raise AudioError(name, "FFmpeg cannot read it (damaged header); copy the file again") from None


def _library(name: str) -> Any:
    try:
        import av
    except ImportError:
        raise AudioError(name, f"libsndfile does not read its format, or the gaps in it; {MISSING}") from None
    av.logging.set_level(av.logging.PANIC)
    return av

"""Reads audio formats that libsndfile does not support (m4a, aac, webm, mp4 …) by FFmpeg.

Requires PyAV, which the extra `formats` installs.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from jaxtyping import Float32

from asr_jax.audio.errors import AudioError

SUFFIXES = (".m4a", ".aac", ".webm", ".mp4", ".mka", ".wma")
# Formats without a header that contains the duration; FFmpeg estimates it from the bit rate.
WITHOUT_HEADER = ("aac",)
# Durations in headers include the encoder's delay and padding, which the decoder removes.
SLACK_S = 0.15
MISSING = "install PyAV (pip install 'asr-jax[formats]'), or convert the file to flac"


def decode_with_pyav(file: Any, name: str) -> tuple[Float32[np.ndarray, "S C"], int]:
    """Reads all samples of the first audio stream.

    Args:
        file: Path of the file, or a file object.
        name: Name of the file in error messages.

    Returns:
        Samples of full scale ±1, and the sample rate in Hz.

    Raises:
        AudioError: As `blocks_with_pyav`.
    """
    blocks = list(blocks_with_pyav(file, name))
    return np.concatenate([samples for samples, _ in blocks]), blocks[0][1]


def blocks_with_pyav(file: Any, name: str) -> Iterator[tuple[Float32[np.ndarray, "S C"], int]]:
    """Reads the samples of the first audio stream in blocks.

    Args:
        file: Path of the file, or a file object.
        name: Name of the file in error messages.

    Yields:
        Blocks of samples of full scale ±1, each with the sample rate in Hz.

    Raises:
        AudioError: If PyAV is not installed, or the file has no audio or less than its header specifies.
    """
    kinds, num_samples = set[tuple[int, int]](), 0
    with _opened(file, name) as (container, stream):
        promised_s = _by_header(container, stream)
        resampler = _library(name).AudioResampler(format="fltp")
        for frame in itertools.chain(container.decode(stream), [None]):  # None flushes the resampler
            for out in resampler.resample(frame):
                kinds.add((out.sample_rate, len(out.layout.channels)))
                if len(kinds) > 1:
                    raise AudioError(
                        name,
                        "damaged: its sample rate or number of channels changes within the file (rates and channels: "
                        f"{sorted(kinds)}); copy the file again",
                    )
                num_samples += out.samples
                yield out.to_ndarray().T, out.sample_rate
    if not num_samples:
        raise AudioError(name, "no samples")
    ((rate_hz, _),) = kinds
    if promised_s is not None and num_samples / rate_hz < promised_s - SLACK_S:
        raise AudioError(
            name, f"truncated: it has {num_samples / rate_hz:.2f} of {promised_s:.2f} s of audio; copy the file again"
        )


def probe_with_pyav(file: Any, name: str) -> tuple[float, int, int]:
    """Reads duration, sample rate and number of channels of the first audio stream.

    The duration is that of the header, which is never less than the decoded one. For formats without it in the header
    it is the sum of the packets' durations; otherwise, if the header lacks it, the stream is decoded.

    Args:
        file: Path of the file, or a file object.
        name: Name of the file in error messages.

    Returns:
        Duration in seconds, sample rate in Hz, and number of channels.
    """
    with _opened(file, name) as (container, stream):
        rate_hz, channels = stream.rate, stream.channels
        duration_s = _by_header(container, stream)
        if duration_s is None and container.format.name in WITHOUT_HEADER:
            duration_s = float(sum(packet.duration or 0 for packet in container.demux(stream)) * stream.time_base)
        elif duration_s is None:
            duration_s = sum(frame.samples / frame.sample_rate for frame in container.decode(stream))
        return duration_s, rate_hz, channels


def _by_header(container: Any, stream: Any) -> float | None:
    """Returns the duration in seconds; None if it is not in the header or only estimated from the bit rate."""
    if container.format.name in WITHOUT_HEADER:
        return None
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return container.duration / 1e6 if container.duration else None


@contextmanager
def _opened(file: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Opens a container and its first audio stream.

    FFmpeg's errors, also inside the block, are raised as AudioError, and so are PyAV's errors for damaged headers with
    missing fields.
    """
    av = _library(name)
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
        raise AudioError(
            name, f"{os.path.splitext(name)[1] or 'the format'} is not read by libsndfile; {MISSING}"
        ) from None
    av.logging.set_level(av.logging.PANIC)
    return av

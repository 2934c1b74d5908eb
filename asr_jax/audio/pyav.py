"""Audio that libsndfile does not read (m4a, aac, webm, mp4 …), by FFmpeg through PyAV: the extra `formats`."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from jaxtyping import Float32

from asr_jax.audio.errors import AudioError

SUFFIXES = (".m4a", ".aac", ".webm", ".mp4", ".mka", ".wma")
# Packets follow each other without a word on how many there are; FFmpeg guesses a duration by the rate of bits.
WITHOUT_HEADER = ("aac",)
# Headers count what the encoder puts before and after the audio, which the decoder drops.
SLACK_S = 0.15
MISSING = "reading it takes PyAV: pip install 'asr-jax[formats]', or convert it to flac"


def decode_with_pyav(file: Any, name: str) -> tuple[Float32[np.ndarray, "S C"], int]:
    """All samples of the first audio stream, full scale ±1, and their rate.

    Raises: as `blocks_with_pyav`.
    """
    blocks = list(blocks_with_pyav(file, name))
    return np.concatenate([samples for samples, _ in blocks]), blocks[0][1]


def blocks_with_pyav(file: Any, name: str) -> Iterator[tuple[Float32[np.ndarray, "S C"], int]]:
    """The samples in order, some at a time, and their rate.

    Raises: AudioError where PyAV is not installed, there is no audio in the file, or less than its header says.
    """
    kinds, num_samples = set[tuple[int, int]](), 0
    with _opened(file, name) as (container, stream):
        promised_s = _by_header(container, stream)
        resampler = _library(name).AudioResampler(format="fltp")
        for frame in itertools.chain(container.decode(stream), [None]):  # None: what the resampler still has
            for out in resampler.resample(frame):
                kinds.add((out.sample_rate, len(out.layout.channels)))
                if len(kinds) > 1:
                    raise AudioError(
                        name, f"damaged: its rate or channels change on the way ({sorted(kinds)}); copy it again"
                    )
                num_samples += out.samples
                yield out.to_ndarray().T, out.sample_rate
    if not num_samples:
        raise AudioError(name, "no samples")
    ((rate_hz, _),) = kinds
    if promised_s is not None and num_samples / rate_hz < promised_s - SLACK_S:
        raise AudioError(name, f"truncated: {num_samples / rate_hz:.2f} of {promised_s:.2f} s are there; copy it again")


def probe_with_pyav(file: Any, name: str) -> tuple[float, int, int]:
    """Duration in seconds, rate and channels: by the header, which is never less than what decoding gives, by the
    lengths of all packets where it is a guess, or by decoding where there are none.
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
    """Seconds; None where the header does not tell, or a rate of bits is all that it goes by."""
    if container.format.name in WITHOUT_HEADER:
        return None
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return container.duration / 1e6 if container.duration else None


@contextmanager
def _opened(file: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """The open container and its first audio stream; FFmpeg's errors, inside the block too, become AudioError, and so
    do PyAV's own over damaged headers, which lack what it looks for.
    """
    av = _library(name)
    try:
        with av.open(file) as container:
            if not container.streams.audio:
                raise AudioError(name, "no audio stream in it")
            yield container, container.streams.audio[0]
    except AudioError:
        raise
    except (av.FFmpegError, OSError) as error:
        raise AudioError(name, f"not audio that FFmpeg can read ({error.strerror or error}); is it whole?") from None
    except (AttributeError, ValueError, TypeError, ArithmeticError):
        raise AudioError(name, "not audio that FFmpeg can read (its header is damaged); copy it again") from None


def _library(name: str) -> Any:
    try:
        import av
    except ImportError:
        raise AudioError(
            name, f"{os.path.splitext(name)[1] or 'its format'} is not read by libsndfile; {MISSING}"
        ) from None
    av.logging.set_level(av.logging.PANIC)
    return av

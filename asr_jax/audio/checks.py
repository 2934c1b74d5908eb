"""Checks of decoded audio against the file's header: truncated and empty files, and parts beyond the end.

Each takes the name of the file for its error messages, and some a function that opens the file at its beginning.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedIOBase

import soundfile

from asr_jax.audio.errors import AudioError
from asr_jax.audio.joined import begins_again
from asr_jax.audio.mono import Remarks
from asr_jax.audio.mp3 import untold_samples
from asr_jax.audio.wav import UNKNOWN_FROM

# An MP3 header counts the encoder's delay, which the decoder removes: up to two MPEG frames fewer are decoded.
MP3_SLACK_SAMPLES = 2 * 1152
# A FLAC written to a pipe has no length in its header; libsndfile then reports the largest integer.
UNKNOWN_SAMPLES = 1 << 62
MISSING_S = 0.1
"""Longest duration in seconds that may be missing at the end of a file."""
# The largest missing duration at the end of a part, in seconds and as a share of the part: times in manifests are
# rounded.
PART_SLACK_S, PART_SLACK_SHARE = 0.5, 0.1
# The largest missing share of a part that may overshoot the end: Kaldi's extract-segments truncates as much.
OVERSHOOT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class AudioPart:
    """A requested part of a file's audio. Default: all of it."""

    start_s: float = 0.0
    """Start of the part in seconds."""
    length_s: float | None = None
    """Length of the part in seconds. None: up to the end of the file."""
    may_overshoot: bool = False
    """Whether up to half of the part may be beyond the end of the file; otherwise up to a tenth. At most half a second
    in both cases."""


def promised_samples(
    sound: soundfile.SoundFile, name: str, opened: Callable[[], BufferedIOBase], *, whole: bool = True
) -> int | None:
    """Returns the number of samples per channel according to the header or, without one, to all frames of an MP3.

    Args:
        whole: Whether the whole file is to be read. The frames of an MP3 are counted only then.

    Returns:
        The number of samples, or None if it is unknown.

    Raises:
        AudioError: If libsndfile would read only a part of an MP3.
    """
    if sound.frames >= UNKNOWN_SAMPLES:
        return None
    counted = None
    if whole and sound.format == "MP3":
        with opened() as file:
            counted = untold_samples(file)
    if counted is None:
        return sound.frames
    if sound.frames < counted - MP3_SLACK_SAMPLES:
        raise AudioError(
            name,
            f"an MP3 of variable bit rate without its length in a header: only {sound.frames} of {counted} samples "
            "would be read; rewrite the file (ffmpeg -i IN.mp3 -c copy OUT.mp3)",
        )
    return min(sound.frames, counted)


def check_joined(sound: soundfile.SoundFile, name: str, opened: Callable[[], BufferedIOBase], part: AudioPart) -> None:
    """Checks that a FLAC or Ogg file has one recording, if the part ends where the first one ends.

    Files are not searched for other parts, because these are read without the rest of the file.

    Args:
        part: Part to read; it may be the whole file.

    Raises:
        AudioError: If another recording follows, which libsndfile does not read.
    """
    end_s = math.inf if part.length_s is None else part.start_s + part.length_s
    if end_s < sound.frames / sound.samplerate - MISSING_S:
        return
    with opened() as file:
        if begins_again(file, sound.format):
            raise AudioError(
                name,
                f"several {sound.format} recordings in one file: only the first would be read; write one "
                "(ffmpeg -i IN OUT.flac), or separate files",
            )


def check_number(
    sound: soundfile.SoundFile, name: str, promised: int | None, num_samples: int, remarks: Remarks
) -> None:
    """Checks the number of samples of a whole file.

    Args:
        promised: Result of `promised_samples`.
        num_samples: Number of samples per channel that were decoded.
        remarks: Takes a remark if less than MISSING_S is missing.

    Raises:
        AudioError: If there are no samples, or more than MISSING_S is missing.
    """
    if not num_samples:
        raise AudioError(name, "no samples")
    slack = MP3_SLACK_SAMPLES if sound.format == "MP3" else 0
    missing = 0.0 if promised is None or num_samples >= promised - slack else promised - num_samples
    there = f"it has {num_samples} of {promised} samples"
    # libsndfile reduces a WAV's length to that of its content and reports the difference only in its log.
    log = sound.extra_info if sound.format.startswith("WAV") else ""
    sizes = re.search(r"data : (\d+) \(should be (\d+)\)", log)
    if sizes and 0 < int(sizes[2]) < int(sizes[1]) < UNKNOWN_FROM:
        missing = num_samples * (int(sizes[1]) / int(sizes[2]) - 1)
        there = f"it has {sizes[2]} of {sizes[1]} bytes of samples"
    if missing > MISSING_S * sound.samplerate:
        raise AudioError(name, f"truncated: {there}; copy the file again")
    if missing:
        remarks.reasons.append(f"truncated by {1000 * missing / sound.samplerate:.0f} ms: {there}")


def check_part(there: int, wanted: int, rate_hz: int, name: str, part: AudioPart) -> None:
    """Checks that enough samples of a requested part are within the file.

    Args:
        there: Number of samples of the part within the file.
        wanted: Number of samples requested.
        rate_hz: Sample rate of the file.

    Raises:
        AudioError: If no samples, or too few (see `AudioPart.may_overshoot`), are within the file.
    """
    share = OVERSHOOT_SHARE if part.may_overshoot else PART_SLACK_SHARE
    if not there or there < wanted - min(PART_SLACK_S * rate_hz, share * wanted):
        raise AudioError(
            name,
            f"the file ends before the requested part: it has {there / rate_hz:.2f} s of the {wanted / rate_hz:.2f} s "
            f"from {part.start_s:.2f} s",
        )

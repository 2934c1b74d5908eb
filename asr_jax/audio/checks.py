"""Whether an open sound file holds what it promises: what is cut, absent, not finite or out of range is named."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedIOBase

import numpy as np
import soundfile
from jaxtyping import Shaped

from asr_jax.audio.errors import AudioError
from asr_jax.audio.mp3 import untold_samples

# An MP3 header counts the encoder's delay, which the decoder drops: a sound file gives up to two frames less.
MP3_SLACK_SAMPLES = 2 * 1152
# Writers that cannot seek back (pipes) leave a size near 2 or 4 GiB in a WAV header: that promises nothing.
WAV_UNKNOWN_BYTES = 0x7FFF0000
# A FLAC written to a pipe has no length in its header; libsndfile gives the largest integer for it.
UNKNOWN_SAMPLES = 1 << 62
# How much less than a part of a file may be there, seconds and of the part: times are rounded.
PART_SLACK_S, PART_SLACK_SHARE = 0.5, 0.1
# Of one that may overshoot the end: Kaldi's extract-segments cuts as much off.
OVERSHOOT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Part:
    """What is asked for of a file's audio; by itself all of it."""

    start_s: float = 0.0
    length_s: float | None = None
    """None: all from there."""
    may_overshoot: bool = False
    """Whether up to half of it, half a second at most, may lie beyond the end of the file; else a tenth."""


def promised_samples(
    sound: soundfile.SoundFile, name: str, opened: Callable[[], BufferedIOBase], *, whole: bool = True
) -> int | None:
    """Samples that the header, or all frames of an MP3, say there are; None where nothing tells.

    `opened`: the same file, from its beginning. `whole`: that all of them are wanted; frames are not counted else.

    Raises: AudioError where libsndfile would not read all of them.
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
            f"an MP3 of varying bit rate without a header that tells its length: {sound.frames} of {counted} samples "
            "would be read; write it anew (ffmpeg -i IN.mp3 -c copy OUT.mp3)",
        )
    return min(sound.frames, counted)


def check_whole(
    sound: soundfile.SoundFile, name: str, promised: int | None, samples: Shaped[np.ndarray, "S C"]
) -> None:
    """Raises: AudioError for all samples of a file that are fewer than promised, or none, or as `check_values` says."""
    check_number(sound, name, promised, len(samples))
    check_values(sound, name, samples)


def check_number(sound: soundfile.SoundFile, name: str, promised: int | None, num_samples: int) -> None:
    """Raises: AudioError for a whole file that has fewer samples than promised, or none."""
    # libsndfile trims a WAV's length to what the file holds and tells the difference only in its log.
    log = sound.extra_info if sound.format.startswith("WAV") else ""
    sizes = re.search(r"data : (\d+) \(should be (\d+)\)", log)
    if sizes and int(sizes[2]) < int(sizes[1]) < WAV_UNKNOWN_BYTES:
        raise AudioError(name, f"truncated: {sizes[2]} of {sizes[1]} bytes of samples are there; copy it again")
    slack = MP3_SLACK_SAMPLES if sound.format == "MP3" else 0
    if promised is not None and num_samples < promised - slack:
        raise AudioError(name, f"truncated: {num_samples} of {promised} samples are there; copy it again")
    if not num_samples:
        raise AudioError(name, "no samples")


def check_values(sound: soundfile.SoundFile, name: str, samples: Shaped[np.ndarray, "S C"]) -> None:
    """Raises: AudioError for samples that are not finite, or beyond full scale in a file of floats."""
    if samples.dtype == np.int16:
        return
    peak = float(np.abs(samples).max())
    if not np.isfinite(peak):
        raise AudioError(
            name, f"not finite: {int((~np.isfinite(samples)).sum())} samples are NaN or infinite; make it anew"
        )
    if peak > 1 and sound.subtype in ("FLOAT", "DOUBLE"):
        raise AudioError(name, f"out of range: a peak of {peak:.4g} where full scale is 1; scale the file down")


def check_part(there: int, wanted: int, rate_hz: int, name: str, part: Part) -> None:
    """Raises: AudioError where too few of the samples of a part are there."""
    share = OVERSHOOT_SHARE if part.may_overshoot else PART_SLACK_SHARE
    if not there or there < wanted - min(PART_SLACK_S * rate_hz, share * wanted):
        raise AudioError(
            name,
            f"it ends before the part that is asked for: {wanted / rate_hz:.2f} s from {part.start_s:.2f} s, of which "
            f"{there / rate_hz:.2f} s are there",
        )

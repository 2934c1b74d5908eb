"""Durations and silence measured from audio, and the state of the measured files, by which changes are detected."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int16, Int64

from asr_jax.audio.io import AudioError
from asr_jax.core.paths import State, state_of
from asr_jax.data.manifests.columns import Ragged
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.progress import in_threads
from asr_jax.data.manifests.utterances import Rejected, Utterance

RATE_HZ = 16000
FRAME, HOP = 2048, 512


def sounding_part(samples: Int16[np.ndarray, " S"], below_db: float) -> tuple[int, int]:
    """First and last sample (exclusive) of the part that is not silent. The whole if all of it is silent.

    Silence is quieter than the loudest frame by at least `below_db`, by the mean square in frames of 2048 samples that
    are centred every 512 samples.

    Source: librosa.effects.trim.
    """
    padded = np.pad(samples.astype(np.float64), FRAME // 2)
    power = np.concatenate([[0.0], np.cumsum(padded**2)])
    starts = np.arange(0, len(padded) - FRAME + 1, HOP)
    mean_square = (power[starts + FRAME] - power[starts]) / FRAME
    loud = np.flatnonzero(mean_square > mean_square.max() * 10 ** (-below_db / 10))
    if not len(loud) or mean_square.max() <= 0:
        return 0, len(samples)
    return int(loud[0]) * HOP, min((int(loud[-1]) + 1) * HOP, len(samples))


def trimmed(utterance: Utterance, below_db: float) -> Utterance:
    """Utterance without silence at both ends. Ready features, and audio that cannot be read, are returned unchanged."""
    location = Location.parse(utterance.location)
    if location.shape is not None:
        return utterance
    try:
        samples = location.audio(rate_hz=RATE_HZ)
    except AudioError:
        return utterance
    first, end = sounding_part(samples, below_db)
    if (first, end) == (0, len(samples)):
        return utterance
    length_s = (end - first) / RATE_HZ
    start_s = location.start_s + first / RATE_HZ
    part = replace(location, start_s=start_s, length_s=length_s, may_overshoot=False)
    return replace(utterance, location=str(part), duration_s=length_s)


Row = tuple[str, str, float, State]
"""Location, part, duration in seconds and state, as in `MeasuredAudio`."""


@dataclass(frozen=True)
class MeasuredAudio:
    """Measurements by utterance, and the states of the files at that time.

    Utterances that need no measurement, and files that belong to the manifest, are not included.
    """

    locations: Ragged
    """Locations as in the manifest."""
    parts: Ragged
    """Locations without silence at both ends; equal to `locations` if nothing is trimmed."""
    duration_s: Float64[np.ndarray, " M"]
    """Duration of the part in seconds; NaN if it is the manifest's."""
    state: Int64[np.ndarray, "M 3"]
    """State of each file, as from `state_of`."""

    @classmethod
    def of(cls, found: Sequence[Row]) -> "MeasuredAudio":
        return cls(
            Ragged.of_texts(location for location, _, _, _ in found),
            Ragged.of_texts(part for _, part, _, _ in found),
            np.fromiter((duration_s for _, _, duration_s, _ in found), np.float64, len(found)),
            np.array([state for _, _, _, state in found], np.int64).reshape(-1, 3),
        )

    def rows(self) -> list[Row]:
        states = map(tuple, self.state.tolist())
        columns = self.locations.all_texts(), self.parts.all_texts(), self.duration_s.tolist(), states
        return list(zip(*columns, strict=True))

    def have_changed(self) -> bool:
        """Whether any file has changed. Each file is checked once."""
        then = dict(zip(map(_path, self.locations.all_texts()), map(tuple, self.state.tolist()), strict=True))
        return in_threads(state_of, list(then), "times of audio") != list(then.values())


def measure(
    utterances: Sequence[Utterance], *, trim_db: float, own: set[str], known: Mapping[str, Row]
) -> tuple[list[Utterance | Rejected], list[Row]]:
    """Adds missing durations, and trims silence at both ends.

    Args:
        trim_db: Silence is quieter than the loudest part by this many dB. 0: no trimming.
        own: Files that are not recorded, because their changes are detected otherwise.
        known: Earlier rows by location. They are used again if the file has not changed.

    Returns:
        Utterances with durations, with a Rejected for audio that cannot be read, and rows of a `MeasuredAudio`.
    """
    places = [
        place
        for place, utterance in enumerate(utterances)
        if math.isnan(utterance.duration_s) or (trim_db and not utterance.num_frames)
    ]
    found = in_threads(
        lambda place: _measured(utterances[place], trim_db, known.get(utterances[place].location)),
        places,
        "silence" if trim_db else "durations",
    )
    result, rows = list[Utterance | Rejected](utterances), []
    for place, (entry, state) in zip(places, found, strict=True):
        result[place], location = entry, utterances[place].location
        if isinstance(entry, Utterance) and _path(location) not in own:
            is_manifests = entry.location == location and not math.isnan(utterances[place].duration_s)
            rows.append((location, entry.location, math.nan if is_manifests else entry.duration_s, state))
    return result, rows


def _measured(utterance: Utterance, trim_db: float, known: Row | None) -> tuple[Utterance | Rejected, State]:
    # The state is taken before the file is read: a change during the reading is then detected at the next start.
    state = state_of(_path(utterance.location))
    if known and known[3] == state:
        _, part, duration_s, _ = known
        if not math.isnan(duration_s):
            return replace(utterance, location=part, duration_s=duration_s), state
        if not math.isnan(utterance.duration_s):
            return utterance, state
    try:
        if math.isnan(utterance.duration_s):
            utterance = replace(utterance, duration_s=Location.parse(utterance.location).info().duration_s)
    except AudioError as error:
        reason = f"no duration in the manifest, and the audio: {error.reason}"
        return Rejected(utterance.id, utterance.location, reason), state
    return trimmed(utterance, trim_db) if trim_db else utterance, state


def _path(location: str) -> str:
    return Location.parse(location).path if "#" in location else location

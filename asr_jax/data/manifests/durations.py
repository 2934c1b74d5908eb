"""Remarks on the audio of utterances: its duration differs from the manifest's, or it is not as it should be."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Int16

from asr_jax.audio.errors import AudioError
from asr_jax.audio.mono import SILENT, Remarks
from asr_jax.audio.pyav import SUFFIXES
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.remote import without_query
from asr_jax.data.manifests.utterances import Rejected, Utterance

TOLERATED_S, TOLERATED_SHARE = 0.05, 0.01
"""Tolerated difference, because durations are rounded. A difference above both limits is named."""
MISSING_S, MISSING_SHARE = 0.5, 0.1
"""Difference of shorter audio, above both of which a part of the audio is missing and the utterance is rejected."""
THAN_IN_MANIFEST = "than its manifest says"
"""Part of the reasons of all differences."""
PADDED = (*SUFFIXES, ".mp3")
PADDING_S = 0.15
"""Longest padding of a codec that headers include and decoders remove, in seconds, in files that end in PADDED."""
BETWEEN = "; "
"""Separates remarks."""
OVERSHOOT = 10
"""Factor of the tolerance for segments that may end after the audio."""


def tolerated_s(duration_s: float) -> float:
    """Largest difference in seconds that is not named."""
    return max(TOLERATED_S, TOLERATED_SHARE * duration_s)


def difference(there_s: float, duration_s: float, place: Location) -> str:
    """Describes the difference between the audio and its duration in the manifest. Empty: it is tolerated.

    Raises:
        AudioError: If a part of the audio is missing.
    """
    more_s, tolerated = there_s - duration_s, tolerated_s(duration_s)
    if more_s > tolerated:
        return f"longer {THAN_IN_MANIFEST}: {there_s:.2f} s, of which {duration_s:.2f} s are used"
    shorter = f"shorter {THAN_IN_MANIFEST}: {there_s:.2f} s of {duration_s:.2f} s"
    if -more_s > max(MISSING_S, MISSING_SHARE * duration_s):
        raise AudioError(
            str(place),
            f"{shorter}; the file may be truncated: copy it again, or correct the duration in the manifest",
        )
    tolerated = max(tolerated, PADDING_S if without_query(place.path).lower().endswith(PADDED) else 0.0)
    return shorter if -more_s > tolerated * (OVERSHOOT if place.may_overshoot else 1) else ""


def joined_remarks(utterance: Utterance, remarks: Remarks, differs: str) -> str:
    """Joins the remarks on the audio of an utterance to one line. Empty: there are none.

    Raises:
        AudioError: If the audio is silent and the utterance has a text.
    """
    if remarks.is_silent and (utterance.text.strip() or utterance.labels):
        raise AudioError(utterance.location, f"{SILENT}, but the utterance has a text")
    return BETWEEN.join(filter(None, (*remarks.reasons, SILENT * remarks.is_silent, differs)))


def is_silent(differing: Rejected | None) -> bool:
    """Whether remarks say that the audio is silent."""
    return differing is not None and SILENT in differing.reason


def without_durations(differing: Rejected) -> Rejected | None:
    """Remarks without a difference of durations, for audio without a manifest. None if there are no others."""
    parts = [part for part in differing.reason.split(BETWEEN) if THAN_IN_MANIFEST not in part]
    return replace(differing, reason=BETWEEN.join(parts)) if parts else None


class UtteranceBlocks:
    """Audio of an utterance of any length in blocks, up to the manifest's duration.

    After the last block, `num_samples` and `differing` are set.
    """

    def __init__(self, utterance: Utterance, rate_hz: int) -> None:
        self.utterance, self.rate_hz = utterance, rate_hz
        self.num_samples = 0
        """Number of samples of all blocks."""
        self.differing: Rejected | None = None
        """The utterance with the remarks on its audio. None: there are none."""

    def __iter__(self) -> Iterator[Int16[np.ndarray, " S"]]:
        """Yields blocks.

        Raises:
            AudioError: If the audio cannot be read to its end, a part of it is missing, or it is silent although the
                utterance has a text.
        """
        place, duration_s, remarks = Location.parse(self.utterance.location), self.utterance.duration_s, Remarks()
        blocks = place.audio_blocks(rate_hz=self.rate_hz, remarks=remarks)
        if not (duration_s > 0 and math.isfinite(duration_s)):
            yield from map(self._counted, blocks)
            self._say(remarks, "")
            return
        limit, most = (round(seconds * self.rate_hz) for seconds in (duration_s, duration_s + tolerated_s(duration_s)))
        num, beyond = 0, list[Int16[np.ndarray, " S"]]()
        for block in blocks:
            room = max(limit - num, 0)
            num += len(block)
            if room:
                yield self._counted(block[:room])
            if num > most:
                beyond.clear()
            elif room < len(block):
                beyond.append(block[room:])  # used if the audio ends within the tolerance
        yield from map(self._counted, beyond)
        self._say(remarks, difference(num / self.rate_hz, duration_s, place))

    def _say(self, remarks: Remarks, differs: str) -> None:
        if said := joined_remarks(self.utterance, remarks, differs):
            self.differing = Rejected(self.utterance.id, self.utterance.location, said, "used")

    def _counted(self, block: Int16[np.ndarray, " S"]) -> Int16[np.ndarray, " S"]:
        self.num_samples += len(block)
        return block

"""Check of the audio of a set before training: some files of each input are opened, or all of them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.durations import OVERSHOOT, tolerated_s
from asr_jax.data.manifests.inputs import Role, resolve
from asr_jax.data.manifests.lines import Lines, lines_of, place_in
from asr_jax.data.manifests.locations import AudioError, Location
from asr_jax.data.manifests.progress import in_threads
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Rejected, Utterance

OPENED = 50
"""Number of utterances of each input that are opened."""
TOO_MANY = 0.5
"""Share of the opened utterances of an input that cannot be read at which the input as a whole is wrong."""
SHOWN = 3


@dataclass(frozen=True)
class AudioCheck:
    """Result of opening the audio of some utterances of one input."""

    path: str
    """The input."""
    num_opened: int
    num_utterances: int
    unreadable: tuple[Rejected, ...]
    """Utterances whose audio cannot be read."""
    differing: tuple[Rejected, ...]
    """Utterances whose duration in the manifest differs from that of the audio."""

    role: Role = "train"
    """Set that is read from the input if it is a folder of several sets."""

    def lines(self) -> list[str]:
        """Warnings: one line for each kind of problem, with its number and the first utterances."""
        opened = f"{self.path}: of {self.num_opened:,} opened utterances (of {self.num_utterances:,})"
        kinds = (
            (self.unreadable, "cannot be read"),
            (self.differing, "have another duration in the manifest than their audio"),
        )
        return [f"{opened}, {len(found):,} {what}: {'; '.join(self._shown(found))}" for found, what in kinds if found]

    def refuse(self) -> None:
        """Checks the share of unreadable utterances.

        Raises:
            UserError: If half of the opened utterances or more cannot be read.
        """
        if not self.unreadable or len(self.unreadable) < TOO_MANY * self.num_opened:
            return
        relative = "relative paths start at the manifest's folder, its parent folder or the current folder"
        raise UserError(
            f"{self.path}: {len(self.unreadable):,} of {self.num_opened:,} opened utterances (of "
            f"{self.num_utterances:,}) cannot be read. The first:\n"
            + "\n".join(f"  {line}" for line in self._shown(self.unreadable))
            + f"\nCorrect the paths ({relative}), or remove the utterances"
        )

    def named(self, found: Sequence[Rejected]) -> list[str]:
        """One line for each utterance: line of the manifest, location and reason."""
        lines: Lines = {}
        with suppress(UserError):  # the input may be gone
            lines = lines_of([file for _, file, _ in resolve([self.path], self.role)] if found else [])
        return [f"{place_in(lines, each)}{each.location}: {each.reason}" for each in found]

    def _shown(self, found: Sequence[Rejected]) -> list[str]:
        return self.named(found[:SHOWN])


def check_audio(
    utterances: Utterances, inputs: Sequence[str], *, role: Role = "train", opens_all: bool = False
) -> list[AudioCheck]:
    """Opens the audio of OPENED utterances of each input, evenly spread over it.

    Only headers are read where they have the duration.

    Args:
        inputs: Paths of the inputs, in the order of `Columns.input_of`.
    """
    rows_of, checks = utterances.columns.input_of[utterances.rows], []
    for number, path in enumerate(inputs):
        places = np.flatnonzero(rows_of == number)
        if not len(places):
            continue
        num = len(places) if opens_all else min(len(places), OPENED)
        chosen = [utterances[place] for place in places[np.arange(num) * len(places) // num].tolist()]
        found = [each for each in in_threads(_checked, chosen, "audio") if each]
        unreadable = tuple(each for each in found if each.stage == "audio")
        differing = tuple(each for each in found if each.stage == "used")
        checks.append(AudioCheck(path, num, len(places), unreadable, differing, role))
    return checks


def _checked(utterance: Utterance) -> Rejected | None:
    """Returns the problem of an utterance's audio. None if there is none."""
    place = Location.parse(utterance.location)
    where = str(replace(place, start_s=0.0, length_s=None, may_overshoot=False))
    try:
        if place.shape is not None:
            place.features()
            return None
        whole_s = replace(place, start_s=0.0, length_s=None, may_overshoot=False).info().duration_s
    except AudioError as error:
        return Rejected(utterance.id, where, error.reason, "audio")
    tolerated = tolerated_s(utterance.duration_s)
    is_part = bool(place.start_s) or place.length_s is not None
    difference = whole_s - place.start_s - utterance.duration_s
    if -difference > tolerated * (OVERSHOOT if place.may_overshoot else 1) or (difference > tolerated and not is_part):
        part = f" from {place.start_s:g} s" * is_part
        reason = f"the manifest has {utterance.duration_s:.2f} s{part}, the audio has {whole_s:.2f} s"
        if is_part and abs(whole_s - utterance.duration_s) <= tolerated:
            reason += ", as long as the part: if it is already cut, remove the start and end from the manifest"
        return Rejected(utterance.id, where, reason, "used")
    return None

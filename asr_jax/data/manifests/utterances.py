"""Utterances as manifests describe them, and rejected utterances."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from asr_jax.core.names import one_line
from asr_jax.core.processes import gathered


@dataclass(frozen=True, slots=True)
class Utterance:
    """Utterance as a manifest describes it, before its signal is opened."""

    id: str
    """Id in messages, transcripts and rejected.jsonl; unique among utterances that are read together."""
    location: str
    """Location of its audio or features, as a string of `data.manifests.locations.Location`."""
    text: str = ""
    duration_s: float = math.nan
    """Duration in seconds; NaN if the manifest has none."""
    speaker: str = ""
    source: str = ""
    labels: tuple[int, ...] | None = None
    """Token ids; None if the manifest has none."""
    num_frames: int = 0
    """Number of frames of ready features; 0 for audio."""
    num_values: int = 0
    """Number of values per frame of ready features; 0 for audio."""


Stage = Literal["manifest", "filter", "audio", "result", "used"]
"""Stage in which an utterance is rejected. manifest: the manifest's line or row is not valid. filter: the utterance is
outside of a limit. audio: audio or features cannot be read. result: there is no transcript or alignment. used: the
utterance is used, but not all of it: characters of its text are removed (the line names the first such utterance), or
its audio is longer than the manifest's duration."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Utterance that is not used, and the reason."""

    id: str
    location: str
    """Location of audio or features, or the file with its line, row or member."""
    reason: str
    stage: Stage = "manifest"
    value: float | str | None = None
    """Value that is outside of the limit, or detail of the reason."""
    limit: float | None = None
    """Limit that the value is outside of. None: the reason is not a limit."""

    @property
    def detail(self) -> str:
        """The reason with the value and the limit, such as `too few frames (3, needs 5)`."""
        more = "" if self.limit is None else f", needs {self.limit:g}"
        return self.reason + ("" if self.value is None else f" ({self.value}{more})")

    @property
    def line(self) -> str:
        """Id, location and reason, for messages. The id is left out if it is the location."""
        return one_line(": ".join(dict.fromkeys((self.id, self.location, self.reason))))

    def to_json(self) -> dict[str, Any]:
        """Fields of a line of rejected.jsonl."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def with_usable_name(entry: Utterance | Rejected) -> Utterance | Rejected:
    """Returns a Rejected if an id or location cannot be written to UTF-8 files, or cannot be opened.

    Any other character may be in a name: spaces of all widths, joiners, and control characters.
    """
    if entry.id.isprintable() and entry.location.isprintable():
        return entry
    name, location = (text.encode(errors="backslashreplace").decode() for text in (entry.id, entry.location))
    if isinstance(entry, Rejected):
        return replace(entry, id=name, location=location)
    if (name, location) == (entry.id, entry.location) and "\0" not in location:
        return entry
    return Rejected(name, location, "its name is not UTF-8, or has a zero byte; rename the file")


def rejected_everywhere(rejected: Iterable[Rejected]) -> list[Rejected]:
    """Rejected utterances of all processes, in the order of the processes. Every process must call it."""
    return [Rejected(**each) for of_process in gathered([each.to_json() for each in rejected]) for each in of_process]

"""What a manifest says of one utterance."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from asr_jax.core.processes import gathered


@dataclass(frozen=True, slots=True)
class Utterance:
    """One utterance as a manifest has it; its signal has not been opened."""

    id: str
    """Names the utterance in messages, transcripts and rejected.jsonl; unique within what was read together."""
    location: str
    """Where its audio or its features lie, as `data.locations.Location` writes it."""
    text: str = ""
    duration_s: float = math.nan
    """NaN where the manifest has none."""
    speaker: str = ""
    source: str = ""
    labels: tuple[int, ...] | None = None
    """Token ids, where the manifest brings them."""
    num_frames: int = 0
    """Of ready features; 0 for audio."""
    num_values: int = 0
    """Values of a frame of ready features; 0 for audio."""


Stage = Literal["manifest", "filter", "audio", "result"]
"""manifest: the entry cannot be read. filter: outside of a limit. audio: audio or features cannot be read. result: no
transcript or alignment."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """An utterance that is not used, and the reason."""

    id: str
    location: str
    """Audio or features, or the file with its line, row or member."""
    reason: str
    stage: Stage = "manifest"
    value: float | str | None = None
    """The value that is outside of the limit."""
    limit: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A line of rejected.jsonl."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def rejected_everywhere(rejected: Iterable[Rejected]) -> list[Rejected]:
    """The rejected utterances of all processes, in the order of the processes; every process must call it."""
    return [Rejected(**each) for of_process in gathered([each.to_json() for each in rejected]) for each in of_process]

"""What a manifest says of one utterance."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """One utterance as a manifest has it; its signal has not been opened."""

    id: str
    """Names the record in messages, transcripts and skipped.jsonl; unique within what was read together."""
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


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry of a manifest that no record can be made of."""

    id: str
    location: str
    """File and line, row or member."""
    reason: str

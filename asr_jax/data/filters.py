"""Which records are used: rules that name and count what they drop."""

import math
from dataclasses import dataclass, field
from typing import Any

from asr_jax.audio.io import AudioError, probe
from asr_jax.data.manifest import Record

# Longer ones are durations in milliseconds; their samples would not fit 32 bits either.
LONGEST_S = 86_400.0


@dataclass(frozen=True)
class Filters:
    """Which records are used. Durations are those of the manifest, before any change of speed."""

    min_duration_s: float = 0.1
    """Shorter records are dropped, seconds."""
    max_duration_s: float = 30.0
    """Longer records are dropped, seconds."""
    min_chars_per_s: float = 0.0
    """Records with fewer characters of text per second are dropped: the text is not all that is said."""
    max_chars_per_s: float = 60.0
    """Records with more characters of text per second are dropped: nobody speaks that fast."""

    def __post_init__(self) -> None:
        for low, high in (("min_duration_s", "max_duration_s"), ("min_chars_per_s", "max_chars_per_s")):
            if not 0 <= getattr(self, low) < getattr(self, high):
                raise ValueError(f"{low} {getattr(self, low)} and {high} {getattr(self, high)}: expected 0 ≤ min < max")
        if self.max_duration_s > LONGEST_S:
            raise ValueError(f"max_duration_s {self.max_duration_s}: expected at most a day, {LONGEST_S:g} s")

    @classmethod
    def none(cls) -> "Filters":
        """Nothing up to a day long is dropped for its duration or text: for evaluation."""
        return cls(min_duration_s=0.0, max_duration_s=LONGEST_S, max_chars_per_s=math.inf)


@dataclass
class Dropped:
    """What the rules dropped: every record by name, and how many and how much by reason."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    """`{id, audio_path, reason, value, limit}`: the rows of skipped.jsonl; both numbers may be None."""
    records: dict[str, int] = field(default_factory=dict)
    hours: dict[str, float] = field(default_factory=dict)

    def add(self, record: Record, reason: str, value: float | str | None, limit: float | None) -> None:
        self.entries.append(
            {"id": record.id, "audio_path": record.audio_path, "reason": reason, "value": value, "limit": limit}
        )
        hours = record.duration_s / 3600 if math.isfinite(record.duration_s) else 0.0
        self.records[reason] = self.records.get(reason, 0) + 1
        self.hours[reason] = self.hours.get(reason, 0.0) + hours

    def lines(self) -> list[str]:
        """One line per reason for a person: count, reason, hours."""
        return [f"{num} {reason} ({self.hours[reason]:.2f} h)" for reason, num in self.records.items()]


def broken_rule(record: Record, filters: Filters) -> tuple[str, float | None, float | None] | None:
    """Reason, value and limit of the first rule that the record breaks."""
    duration_s = record.duration_s
    if math.isnan(duration_s):
        return f"no duration in the manifest, and the audio: {_why_unreadable(record)}", None, None
    if duration_s <= 0 or duration_s < filters.min_duration_s:
        return "too short", duration_s, filters.min_duration_s
    if duration_s > filters.max_duration_s:
        return "too long", duration_s, filters.max_duration_s
    chars_per_s = len(record.text) / duration_s
    if chars_per_s < filters.min_chars_per_s:
        return "too few characters per second", chars_per_s, filters.min_chars_per_s
    if chars_per_s > filters.max_chars_per_s:
        return "too many characters per second", chars_per_s, filters.max_chars_per_s
    return None


def _why_unreadable(record: Record) -> str:
    try:
        probe(record.audio_path)
    except AudioError as error:
        return error.reason
    return "could not be read"

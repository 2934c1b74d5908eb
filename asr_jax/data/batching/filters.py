"""Which records are used: rules that name and count what they drop."""

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int

# Longer ones are durations in milliseconds; their samples would not fit 32 bits either.
LONGEST_S = 86_400.0


@dataclass(frozen=True)
class Filters:
    """Which records are used. Durations are those of the manifest, before any change of speed."""

    min_duration_s: float = 0.1
    """Shorter records are dropped, seconds."""
    max_duration_s: float = 30.0
    """Longer records are dropped, seconds."""
    min_chars: int = 0
    """Records with fewer characters of text are dropped."""
    max_chars: int = 100_000
    """Records with more characters of text are dropped."""
    min_chars_per_s: float = 0.0
    """Records with fewer characters of text per second are dropped: the text is not all that is said."""
    max_chars_per_s: float = 60.0
    """Records with more characters of text per second are dropped: nobody speaks that fast."""

    def __post_init__(self) -> None:
        for what in ("duration_s", "chars", "chars_per_s"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if not 0 <= low < high:
                raise ValueError(f"min_{what} {low} and max_{what} {high}: expected 0 ≤ min < max")
        if self.max_duration_s > LONGEST_S:
            raise ValueError(f"max_duration_s {self.max_duration_s}: expected at most a day, {LONGEST_S:g} s")

    @classmethod
    def none(cls) -> "Filters":
        """Nothing up to a day long is dropped for its duration or text: for evaluation."""
        return cls(min_duration_s=0.0, max_duration_s=LONGEST_S, max_chars=1 << 31, max_chars_per_s=math.inf)

    def of_audio(self) -> "Filters":
        """The rules about durations alone."""
        return replace(Filters.none(), min_duration_s=self.min_duration_s, max_duration_s=self.max_duration_s)


@dataclass(frozen=True)
class Broken:
    """One rule, and the rows that break it."""

    reason: str
    places: Int[np.ndarray, " K"]
    values: Float64[np.ndarray, " K"]
    limit: float


def broken_rules(
    duration_s: Float64[np.ndarray, " R"], num_chars: Int[np.ndarray, " R"], filters: Filters
) -> list[Broken]:
    """Each row at most once: by the first rule that it breaks."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = num_chars / duration_s
    rules = (
        ("too short", duration_s, (duration_s <= 0) | (duration_s < filters.min_duration_s), filters.min_duration_s),
        ("too long", duration_s, duration_s > filters.max_duration_s, filters.max_duration_s),
        ("too few characters", num_chars, num_chars < filters.min_chars, filters.min_chars),
        ("too many characters", num_chars, num_chars > filters.max_chars, filters.max_chars),
        ("too few characters per second", rate, rate < filters.min_chars_per_s, filters.min_chars_per_s),
        ("too many characters per second", rate, rate > filters.max_chars_per_s, filters.max_chars_per_s),
    )
    broken, passed = [], np.ones(len(duration_s), bool)
    for reason, values, breaks, limit in rules:
        places = np.flatnonzero(breaks & passed)
        passed[places] = False
        if len(places):
            broken.append(Broken(reason, places, np.asarray(values[places], np.float64), limit))
    return broken


def kind_of(reason: str) -> str:
    """What a reason is counted under: what is wrong, without what it is wrong with."""
    clause = reason.rpartition("and the audio: ")[2].partition(";")[0].partition(":")[0].partition("(")[0]
    return re.sub(r"\d[\d.,]*", "N", re.sub(r"\".*?\"|'.*?'", "…", clause)).strip()[:60]


@dataclass
class Dropped:
    """What is left out: every record by name, and how many and how much by reason."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    """`{id, location, reason, value, limit}`: the rows of skipped.jsonl; both numbers may be None."""
    records: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    """Id of the first one by reason."""
    hours: dict[str, float] = field(default_factory=dict)

    def add(
        self,
        reason: str,
        *,
        name: str,
        location: str,
        duration_s: float = math.nan,
        value: float | str | None = None,
        limit: float | None = None,
        kind: str = "",
    ) -> None:
        """`kind`: what the reason is counted under, where it differs from record to record."""
        self.entries.append({"id": name, "location": location, "reason": reason, "value": value, "limit": limit})
        kind = kind or reason
        self.records[kind] = self.records.get(kind, 0) + 1
        self.examples.setdefault(kind, name)
        self.hours[kind] = self.hours.get(kind, 0.0) + (duration_s / 3600 if math.isfinite(duration_s) else 0.0)

    def merge(self, other: "Dropped") -> None:
        self.entries += other.entries
        for kind, number in other.records.items():
            self.records[kind] = self.records.get(kind, 0) + number
            self.hours[kind] = self.hours.get(kind, 0.0) + other.hours[kind]
            self.examples.setdefault(kind, other.examples[kind])

    def lines(self) -> list[str]:
        """One line per reason for a person: count, reason, hours."""
        return [f"{num} {reason} ({self.hours[reason]:.2f} h)" for reason, num in self.records.items()]

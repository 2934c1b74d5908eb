"""Filters: limits that utterances must satisfy, and counts of the rejected ones."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float64, Int

from asr_jax.core.settings import settings
from asr_jax.data.manifests.utterances import Rejected

# A longer duration is one in milliseconds by mistake. Its number of samples would also overflow 32 bits.
LONGEST_S = 86_400.0


@settings
class Filters:
    """Limits that utterances must satisfy. Durations are those of the manifest, before any change of speed."""

    min_duration_s: float = 0.1
    """Minimum duration in seconds."""
    max_duration_s: float = 30.0
    """Maximum duration in seconds."""
    min_chars: int = 0
    """Minimum number of characters of the text."""
    max_chars: int = 100_000
    """Maximum number of characters of the text."""
    min_chars_per_s: float = 0.0
    """Minimum number of characters per second. A lower rate means that the text is incomplete."""
    max_chars_per_s: float = 60.0
    """Maximum number of characters per second. A higher rate is faster than human speech."""

    def problems(self) -> Iterator[str]:
        """Yields a message for each limit that does not fit the others."""
        for what in ("duration_s", "chars", "chars_per_s"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if not 0 <= low < high:
                yield f"min_{what} is {low} and max_{what} is {high}: expected 0 ≤ min < max"
        if self.max_duration_s > LONGEST_S:
            yield f"max_duration_s is {self.max_duration_s}: expected at most a day, {LONGEST_S:g} s"

    @classmethod
    def none(cls) -> "Filters":
        """Filters for evaluation, which reject nothing up to a day long for its duration or text."""
        return cls(min_duration_s=0.0, max_duration_s=LONGEST_S, max_chars=1 << 31, max_chars_per_s=math.inf)

    def of_audio(self) -> "Filters":
        """The limits on durations only."""
        return replace(Filters.none(), min_duration_s=self.min_duration_s, max_duration_s=self.max_duration_s)


@dataclass(frozen=True)
class Violations:
    """Utterances whose values are outside of one limit."""

    reason: str
    places: Int[np.ndarray, " K"]
    """Positions of the utterances."""
    values: Float64[np.ndarray, " K"]
    """Values that are outside of the limit."""
    limit: float


def violations(
    duration_s: Float64[np.ndarray, " R"], num_chars: Int[np.ndarray, " R"], filters: Filters
) -> list[Violations]:
    """Utterances that violate limits. Each counts only for the first limit that it violates.

    Args:
        duration_s: Duration of each utterance in seconds [R].
        num_chars: Number of characters of each text [R].
    """
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
    found, passed = [], np.ones(len(duration_s), bool)
    for reason, values, breaks, limit in rules:
        places = np.flatnonzero(breaks & passed)
        passed[places] = False
        if len(places):
            found.append(Violations(reason, places, np.asarray(values[places], np.float64), limit))
    return found


def kind_of(reason: str) -> str:
    """Category that a reason is counted under: its first clause, with numbers and quoted values replaced.

    The names of fields, as in `"duration" is …` and `no "text"`, are kept.
    """
    text = reason.rpartition("and the audio: ")[2]
    text = re.sub(r"'[^']*'", "…", text)
    text = re.sub(r"(no )?\"[^\"]*\"( is )?", lambda found: found[0] if found[1] or found[2] else "…", text)
    clause = re.split(r"[;(]|:(?!/)", text, maxsplit=1)[0]
    return re.sub(r"(?<!\w)-?\d[\d.,]*", "N", clause).strip()[:60]


@dataclass
class Rejections:
    """Rejected utterances, with their number and hours by reason."""

    entries: list[Rejected] = field(default_factory=list)
    utterances: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """Id of the first utterance, by reason."""
    hours: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, rejected: Rejected, *, duration_s: float = math.nan, kind: str = "") -> None:
        """Adds a rejected utterance.

        Args:
            duration_s: Its duration in seconds. NaN: counted as 0 hours.
            kind: Category to count it under, for reasons that differ between utterances. Empty: its reason.
        """
        self.entries.append(rejected)
        kind = kind or rejected.reason
        self.utterances[kind] += 1
        self.examples.setdefault(kind, rejected.id)
        self.hours[kind] += duration_s / 3600 if math.isfinite(duration_s) else 0.0

    def merge(self, other: "Rejections") -> None:
        self.entries += other.entries
        self.utterances.update(other.utterances)
        self.examples = other.examples | self.examples
        for kind, hours in other.hours.items():
            self.hours[kind] += hours

    def lines(self) -> list[str]:
        """Summary with one line per reason: number of utterances, reason and hours."""
        return [f"{num} {reason} ({self.hours[reason]:.2f} h)" for reason, num in self.utterances.items()]

"""Names of the fields that select a part of a recording, in the spellings of many systems.

Capitals and separators do not matter: `start_time`, `startTime` and `Start Time` are one spelling.
"""

import re
from functools import lru_cache
from typing import Literal, NamedTuple

Role = Literal["start", "end", "duration", "channel", "part", "other"]
"""Meaning of a field. part: start and end in one value. other: a time or a channel, but not certainly of the part."""
Unit = Literal["", "s", "ms", "us", "samples", "frames", "any"]
"""Unit that a name has. Empty: none, which usually is seconds. any: a length in an unknown unit."""


class Spelling(NamedTuple):
    """Name of a field, and what it says."""

    name: str
    role: Role
    unit: Unit = ""


_UNIT = r"(?:in)?(?P<unit>s|secs?|seconds?|ms|msecs?|millis|milliseconds?|us|usecs?|microseconds?|samples?|frames?)"
_PIECE = "segment|seg|utterance|utt|clip|chunk"
_OF = rf"(?:(?P<counted>sample|frame)|{_PIECE}|audio|speech|turn|time|t)?"
_AT = "(?:offset|timestamp|time|ts|position|pos|point|at)?"
_SPELLINGS: dict[Role, re.Pattern[str]] = {
    "start": re.compile(rf"(?:{_OF}(?:start|beginning|begin|beg|onset|offset){_AT}|[tx]min|t0|from(?!s$)){_UNIT}?"),
    "end": re.compile(rf"(?:{_OF}(?:end|stop|finish){_AT}|[tx]max|t1|to(?!s$)){_UNIT}?"),
    "duration": re.compile(
        rf"(?:{_PIECE})?(?:(?:duration|dur)(?:time)?|(?:length|len)(?!$)){_UNIT}?"
        rf"|(?:numberof|num|nb|n)?(?P<counted>samples|frames)(?:count)?|(?:{_PIECE})?(?P<any>length|len)"
    ),
    "channel": re.compile("(?:audio|wav|segment)?(?:channel|chan)(?:id|idx|index|selector)?|channels"),
    "part": re.compile(
        rf"(?:{_PIECE}|audio|speech)?(?:timestamps?|ts|times?|segment|(?:time)?(?:span|range|interval))"
    ),
    "other": re.compile("(?:audio|wav|speech|file|recording)(?:length|len)"),
}
"""Names in small letters, without separators."""
_OF_TIMES = frozenset(
    (
        *("start", "begin", "onset", "offset", "end", "stop", "duration", "dur", "channel"),
        *("time", "times", "timestamp", "timestamps", "seconds", "secs", "sec", "msec", "ms", "samples", "frames"),
    )
)
"""Words of names that look like a time or a channel."""
_WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
WEAK = ("from", "to", "samples", "frames", "channels")
"""Names that often have other values than numbers (`from: en`), which then do not count."""


@lru_cache(4096)
def spellings(names: tuple[str, ...]) -> tuple[Spelling, ...]:
    """Spellings among the names of an utterance's fields. Most utterances of an input have equal names."""
    return tuple(found for name in names if (found := spelling(name)))


@lru_cache(4096)
def spelling(name: str) -> Spelling | None:
    """Spelling of a name. None: the name has nothing to do with a part of a recording."""
    plain = re.sub("[^a-z0-9]", "", name.lower())
    for role, pattern in _SPELLINGS.items():
        if found := pattern.fullmatch(plain):
            return Spelling(name, role, _unit(found.groupdict()))
    return Spelling(name, "other") if _OF_TIMES & {word.lower() for word in _WORD.findall(name)} else None


def is_stop(name: str) -> bool:
    """Whether a name is `stop`, which is in samples in SpeechBrain, where a name has no unit."""
    return "stop" in name.lower()


def _unit(found: dict[str, str | None]) -> Unit:
    if found.get("any"):
        return "any"
    word = found.get("unit") or found.get("counted") or ""
    if word.startswith(("sample", "frame")):
        return "samples" if word.startswith("sample") else "frames"
    if word.startswith(("ms", "milli")):
        return "ms"
    return "us" if word.startswith(("u", "micro")) else "s" if word else ""

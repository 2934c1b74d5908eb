"""Part of a recording that an utterance is, from the fields of a manifest. Every reader of fields uses `part_of`.

Fields have many names (`spellings`) and units: seconds, milliseconds, samples or frames. A field whose meaning is not
certain is an error that names it. A field that only looks like a time is counted, and the reading names it.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from asr_jax.audio.io import AudioError, NamedAudio, probe
from asr_jax.data.manifests.durations import TOLERATED_S, tolerated_s
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.fields import Fields, InvalidEntry
from asr_jax.data.manifests.readers.spellings import WEAK, Role, Spelling, Unit, is_stop, spelling, spellings

RATES_HZ = (1, 100, 1000, 8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000)
"""Units per second of times whose unit is not known: seconds, usual frames, milliseconds, and samples."""
RATE_SHARE = 0.02
"""Largest relative difference between a duration and that of a part at one of RATES_HZ."""
PER_S: dict[Unit, float] = {"s": 1, "ms": 1e3, "us": 1e6}
ROUNDING_S = 1e-6
_NUMBER = r"\s*(\d+(?:\.\d+)?)\s*s?\s*"
RANGE = re.compile(rf"[(\[]?{_NUMBER}(?:[-–—~;\s]|to|,(?=\s)){_NUMBER}[)\]]?")
"""Text of two numbers, such as `0.5-1.0`, `[0.5, 1.0]` and `0.5 s to 1.0 s`."""
EXPECTED = "expected start (or offset) and end or duration in seconds"


class Part(NamedTuple):
    """Part of a recording. Values that are not given are NaN and None."""

    start_s: float = math.nan
    """Start in seconds. NaN: the utterance is the whole recording, or its first `length_s` seconds."""
    length_s: float = math.nan
    channel: int | None = None


class _Given(NamedTuple):
    name: str
    number: float
    unit: Unit


def part_of(fields: Fields, options: ReadOptions) -> Part:
    """Part that the fields of an utterance select.

    A duration of 0 is unknown. An end without a start is a part from 0 s, or the duration before the end. Samples and
    frames need a sample rate among the fields, or a duration in seconds, from which the rate follows; so do `start` and
    `stop`, which are samples in SpeechBrain.

    Args:
        options: Options of reading, whose remarks get the fields that look like a time and are not used.

    Raises:
        InvalidEntry: If a value is no number, its unit is not known, or values contradict each other.
    """
    spelled = spellings(tuple(fields))
    if dict in map(type, fields.values()):
        _count_nested(fields, options)
    if part := _usual(spelled, fields):
        return part
    found, channels = dict[Role, list[_Given]](), list[Spelling]()
    for each in spelled:
        value = fields[each.name]
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        if each.role == "channel":
            channels.append(each)
        elif each.role in ("part", "other"):
            _check_unused(each, value, options)
        elif each.name.lower() not in WEAK or f.number(value) is not None:
            found.setdefault(each.role, []).append(_given(each, value))
    channel = _channel(fields, channels)
    if not found:
        return Part(channel=channel)
    return _span(found, fields, options)._replace(channel=channel)


def _usual(spelled: Sequence[Spelling], fields: Fields) -> Part | None:
    """Part by one start in seconds with a duration or an end, or only a duration, as in most manifests.

    None for other fields. The result is that of `part_of`, in a tenth of its time.
    """
    found = dict[Role, float]()
    for name, role, unit in spelled:
        number = f.number(fields[name])
        if number is None or not 0 <= number < f.LARGEST or unit not in ("", "s") or role in found or is_stop(name):
            return None
        found[role] = number
    start_s, length_s = found.get("start", math.nan), found.get("duration", math.nan)
    if found.keys() == {"start", "end"}:
        length_s = found["end"] - start_s
    elif not found.keys() <= {"start", "duration"}:
        return None
    return Part(start_s, length_s) if length_s > 0 or not found else None


def duration_of_whole(fields: Fields, options: ReadOptions) -> float:
    """Duration in seconds of ready features, which are used whole. NaN if there is none.

    Raises:
        InvalidEntry: If the fields select a part that begins later, or as `part_of`.
    """
    fields = {name: value for name, value in fields.items() if name not in f.ROWS}
    part = part_of(fields, options)
    if part.start_s > 0:
        names = [each.name for each in spellings(tuple(fields)) if each.role in ("start", "end")]
        given = " and ".join(f'"{name}" is {f.shown(fields[name])}' for name in names)
        raise InvalidEntry(f"{given}: ready features are used whole; expected features of the part, without the start")
    if part.channel is not None:
        _count_unused((each.name for each in spellings(tuple(fields)) if each.role == "channel"), options)
    return part.length_s


def without_origin(part: Part, audio: Location | bytes, fields: Fields, options: ReadOptions) -> Part:
    """Part without its start if the audio is already cut from the recording to which start and end belong.

    The audio is cut if it is as long as the part, and ends before the part does.

    Args:
        audio: Location or content of audio that belongs to one utterance, as in a table or a tar.
    """
    if not part.start_s > 0 or math.isnan(part.length_s):
        return part
    try:
        duration_s = _duration_s(audio) if isinstance(audio, Location) else probe(NamedAudio(audio, "")).duration_s
    except AudioError:
        return part  # named when it is read
    is_cut = abs(duration_s - part.length_s) <= tolerated_s(part.length_s)
    if not is_cut or part.start_s + part.length_s <= duration_s + ROUNDING_S:
        return part
    names = " and ".join(f'"{each.name}"' for each in spellings(tuple(fields)) if each.role in ("start", "end"))
    options.remarks[f"with audio as long as the part that {names} give: it is already cut, and is used whole"] += 1
    return part._replace(start_s=math.nan)


@lru_cache(1 << 12)
def _duration_s(audio: Location) -> float:
    """Duration of audio in seconds. It is remembered, because many parts of a file follow each other in a manifest."""
    return audio.info().duration_s


def placed(location: Location | str, part: Part) -> str:
    """Location of a part of the audio at a location.

    Raises:
        InvalidEntry: If the location is already a part of its file.
    """
    if part.channel is None and math.isnan(part.start_s):
        return str(location)
    where = Location.parse(location) if isinstance(location, str) else location
    if not math.isnan(part.start_s):
        if where.start_s or where.length_s is not None:
            raise InvalidEntry(f"{where} is a part of a file, and so are the fields: expected one of them; {EXPECTED}")
        where = replace(where, start_s=part.start_s, length_s=None if math.isnan(part.length_s) else part.length_s)
    return str(where if part.channel is None else replace(where, channel=part.channel))


def seconds(fields: Fields, name: str) -> float:
    """Number of seconds in a field; NaN if there is no value.

    Raises:
        InvalidEntry: If the value is not a finite number.
    """
    value = fields.get(name)
    return math.nan if value is None else _bounded(_given(Spelling(name, "duration"), value).number)


def _given(each: Spelling, value: Any) -> _Given:
    number = f.number(value)
    if number is None or not math.isfinite(number):
        what = each.unit if each.unit in ("samples", "frames") else "milliseconds" if each.unit == "ms" else "seconds"
        raise InvalidEntry(f'"{each.name}" is {f.shown(value)}; expected a finite number of {what}{f.if_comma(value)}')
    return _Given(each.name, number, each.unit or ("s" if each.role == "duration" else ""))


def _bounded(number: float) -> float:
    return max(min(number, f.LARGEST), -f.LARGEST)


def _span(found: Mapping[Role, Sequence[_Given]], fields: Fields, options: ReadOptions) -> Part:
    """Start and length from all values."""
    per_s = _scales(found, fields)
    unused = [each.name for each in found.get("duration", ()) if each.unit not in per_s]
    _count_unused(unused, options)
    starts, ends, lengths = (
        {each: _bounded(each.number / per_s[each.unit]) for each in values if each.unit in per_s}
        for values in (found.get("start", ()), found.get("end", ()), found.get("duration", ()))
    )
    lengths = {each: length_s for each, length_s in lengths.items() if length_s}
    start_s, end_s = (_agreed(seconds, TOLERATED_S) for seconds in (starts, ends))
    length_s = _agreed(lengths, tolerated_s(max(lengths.values(), default=0.0)))
    if not math.isnan(end_s):
        if math.isnan(start_s):
            start_s = 0.0 if math.isnan(length_s) else end_s - length_s
            start_s = 0.0 if abs(start_s) < ROUNDING_S else start_s
        if abs(end_s - start_s - length_s) > tolerated_s(length_s):  # not if the length is NaN
            raise InvalidEntry(f"{_named(found)}: the duration is not that from start to end; remove the wrong field")
        length_s = end_s - start_s
    if start_s < 0 or length_s < 0 or (start_s >= 0 and length_s == 0):
        raise InvalidEntry(f"{_named(found)}: expected an offset of 0 or more and a duration above 0")
    if unused and start_s >= 0 and math.isnan(length_s):
        raise InvalidEntry(f"{_named(found)}: the unit of the length is not known; {EXPECTED}")
    return Part(start_s, length_s)


def _scales(found: Mapping[Role, Sequence[_Given]], fields: Fields) -> dict[Unit, float]:
    """Units per second of each unit. A unit is missing if it is not known and only durations have it."""
    starts, ends, lengths = found.get("start", ()), found.get("end", ()), found.get("duration", ())
    units = {each.unit for each in (*starts, *ends, *lengths)}
    per_s = {unit: rate for unit, rate in PER_S.items() if unit in units}
    if "samples" in units and (rate_hz := f.count(fields, f.RATE)):
        per_s["samples"] = rate_hz
    length_s = next(
        (each.number / per_s[each.unit] for each in lengths if each.number and each.unit in per_s), math.nan
    )
    for unit in sorted(units - per_s.keys()):
        start, end, length = (
            next((each.number for each in values if each.unit == unit), math.nan) for values in (starts, ends, lengths)
        )
        span = length if math.isnan(end) else end - start
        has_stop = any(is_stop(each.name) for each in ends if each.unit == unit)
        is_other = abs(end - start - length_s) > tolerated_s(length_s)  # not if one of them is NaN
        if unit == "" and not has_stop and not is_other:
            per_s[unit] = 1
        elif rate := next((rate for rate in RATES_HZ if abs(span / rate - length_s) <= RATE_SHARE * length_s), None):
            per_s[unit] = rate
        elif is_other:
            raise InvalidEntry(
                f"{_named(found)}: the duration is not that from start to end, in seconds, milliseconds or samples; "
                f"{EXPECTED}; remove a duration of the whole file"
            )
        elif not math.isnan(start) or not math.isnan(end):
            fix = ", or a field sample_rate" if unit == "samples" else ""
            raise InvalidEntry(f"{_named(found)}: the unit is not known; {EXPECTED}{fix}")
    return per_s


def _agreed(seconds: Mapping[_Given, float], tolerated: float) -> float:
    """First of the times of fields, which may differ by rounding only. NaN if there are none."""
    if len(seconds) > 1 and max(seconds.values()) - min(seconds.values()) > tolerated:
        raise InvalidEntry(f"{_named({'start': list(seconds)})}: expected equal times; remove the wrong field")
    return next(iter(seconds.values()), math.nan)


def _channel(fields: Fields, channels: Sequence[Spelling]) -> int | None:
    """Channel, also from a list of one. A number of channels selects none."""
    found = dict[str, int | None]()
    for name, *_ in channels:
        value = fields[name]
        is_list = isinstance(value, list | tuple)
        if is_list and len(value) == 1:
            value = value[0]
        if is_list or name.lower() != "channels":
            found[name] = f.count({name: value}, (name,))
    if len(set(found.values())) > 1:
        names = " and ".join(f'"{name}" is {value}' for name, value in found.items())
        raise InvalidEntry(f"{names}: expected one channel; remove the wrong field")
    return next(iter(found.values()), None)


def _check_unused(each: Spelling, value: Any, options: ReadOptions) -> None:
    """Counts a field that looks like a time and is not used.

    Raises:
        InvalidEntry: If it is two numbers, also as text, or an object with a start or an end, and thus a part.
    """
    numbers = RANGE.fullmatch(value) if isinstance(value, str) else None
    if each.role == "part":
        is_pair = isinstance(value, list | tuple) and len(value) == 2 and all(f.number(v) is not None for v in value)
        is_pair = is_pair or (numbers is not None and float(numbers[1]) < float(numbers[2]))  # a date descends: 2024-05
        keys = {s.role for s in spellings(tuple(map(str, value)))} if isinstance(value, Mapping) else set()
        if is_pair or keys & {"start", "end"}:
            raise InvalidEntry(f'"{each.name}" is {f.shown(value)}; {EXPECTED}, each in a field of its own')
    is_text = numbers is not None or bool(f.if_comma(value)) or (isinstance(value, str) and ":" in value)
    if is_text or f.number(value) is not None or isinstance(value, list | tuple):
        _count_unused([each.name], options)


def _count_nested(fields: Fields, options: ReadOptions) -> None:
    """Counts starts and ends within objects, except those of the audio."""
    for name, value in fields.items():
        if type(value) is dict and name not in f.AUDIO:
            inner = [key for key in value if (s := spelling(str(key))) and s.role in ("start", "end")]
            _count_unused((f"{name}.{key}" for key in inner if f.number(value[key]) is not None), options)


def _count_unused(names: Iterable[str], options: ReadOptions) -> None:
    options.remarks.update(
        f'with a field "{name}", which looks like a time or a channel and is not used; if it selects a part of the '
        "audio, rename it to start, end, duration (in seconds) or channel"
        for name in names
    )


def _named(found: Mapping[Role, Sequence[_Given]]) -> str:
    """Fields with their values, for messages."""
    roles: tuple[Role, ...] = ("start", "end", "duration")
    return " and ".join(f'"{each.name}" is {each.number:.10g}' for role in roles for each in found.get(role, ()))

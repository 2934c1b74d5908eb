"""Field names of many systems, and conversions of their values that several readers share."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asr_jax.data.manifests.locations import Location

ID = ("id", "utt_id", "utterance_id", "key", "sample_id")
TEXT = ("text", "transcript", "transcription", "sentence", "normalized_text", "txt", "wrd", "words")
LABELS = ("tokens", "target", "targets", "labels", "label_ids")
AUDIO_PATH = (
    "audio_path",
    "audio_filepath",
    "path",
    "file",
    "file_path",
    "file_name",
    "filename",
    "wav_filename",
    "wav_path",
    "audio_file",
)
AUDIO = ("audio", "audio_bytes", "bytes", "wav", "audio_data", "audio.bytes", "speech")
FEATURES = ("features", "input_features", "feature", "fbank", "filterbank")
FEATURES_PATH = ("features_path",)
ROWS = ("rows", "num_frames", "frames", "feature_rows")
COLS = ("cols", "feature_dim", "num_features")
DURATION = ("duration", "duration_s", "duration_sec", "duration_seconds")
DURATION_MS = ("duration_ms",)
OFFSET = ("offset",)
START = ("start",)
END = ("end",)
STOP = ("stop",)
"""End of a part in samples, as in SpeechBrain. START is then in samples too."""
CHANNEL = ("channel",)
SPEAKER = ("speaker", "speaker_id", "spk_id", "client_id", "speaker_name")
SOURCE = ("source",)
KNOWN = frozenset(
    {
        *ID,
        *TEXT,
        *LABELS,
        *AUDIO_PATH,
        *AUDIO,
        *FEATURES,
        *FEATURES_PATH,
        *ROWS,
        *COLS,
        *DURATION,
        *DURATION_MS,
        *OFFSET,
        *START,
        *END,
        *STOP,
        *CHANNEL,
        *SPEAKER,
        *SOURCE,
    }
)
USED = (
    ID,
    AUDIO_PATH + AUDIO,
    FEATURES + FEATURES_PATH,
    TEXT,
    LABELS,
    DURATION + DURATION_MS,
    OFFSET + START,
    SPEAKER,
)
"""Names of each field, of which the first one that has a value is used."""
EXAMPLE = '{"audio_path": "a.flac", "text": "hello", "duration": 1.5}'
# Largest count or id: columns have 32 bits.
LARGEST = 2**31 - 1

Fields = Mapping[str, Any]


class InvalidEntry(ValueError):
    """Error: a line, row or file is not a valid utterance. The message has the reason and what was expected."""


def first(fields: Fields, names: Sequence[str]) -> Any:
    """Value of the first of the names that has one. None if none has."""
    for name in names:
        if (value := fields.get(name)) is not None:
            return value
    return None


def string(fields: Fields, names: Sequence[str], default: str = "") -> str:
    """String of the first of the names that has a value. For ids and speakers, a whole number is converted.

    Args:
        fields: Values by field name.
        names: Field names in order of preference.
        default: Result if there is no value.

    Raises:
        InvalidEntry: If the value is not a string.
    """
    value = first(fields, names)
    if value is None:
        return default
    if not isinstance(value, str):
        if isinstance(value, int) and not isinstance(value, bool) and names in (ID, SPEAKER):
            return str(value)
        raise InvalidEntry(f'"{_named(fields, names)}" is {shown(value)}; expected a string')
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            message = f'"{_named(fields, names)}" is {shown(value)}, which has an unpaired surrogate'
            raise InvalidEntry(message) from None
    return value


def seconds(fields: Fields, names: Sequence[str]) -> float:
    """Number of seconds, also from a string. NaN if there is no value.

    Raises:
        InvalidEntry: If the value is not a finite number.
    """
    value = first(fields, names)
    if value is None:
        return math.nan
    number = _number(value)
    if number is None or not abs(number) < math.inf:
        comma = isinstance(value, str) and re.fullmatch(r"\s*-?\d+,\d+\s*", value)
        expected = ", with a decimal point instead of the comma" if comma else ""
        raise InvalidEntry(
            f'"{_named(fields, names)}" is {shown(value)}; expected a finite number of seconds{expected}'
        )
    return float(max(min(number, LARGEST), -LARGEST))


def duration_s(fields: Fields) -> float:
    """Duration in seconds. NaN if there is none, or if it is 0, which stands for an unknown duration."""
    value = seconds(fields, DURATION)
    value = seconds(fields, DURATION_MS) / 1000 if math.isnan(value) else value
    return value or math.nan


def count(fields: Fields, names: Sequence[str]) -> int | None:
    """Whole number, also from a float or a string (tables have `2.0`). None if there is no value.

    Raises:
        InvalidEntry: If the value is not a whole number.
    """
    value = first(fields, names)
    if value is None:
        return None
    if (whole := _whole(value)) is None:
        raise InvalidEntry(f'"{_named(fields, names)}" is {shown(value)}; expected a whole number')
    return whole


def _number(value: Any) -> int | float | None:
    """Number, also from a string. None for other values."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    """Whole number from 0 to LARGEST. None for other values."""
    if type(value) is int:  # fast path for nearly all values
        return value if 0 <= value <= LARGEST else None
    number = _number(value.item() if isinstance(value, np.generic) else value)
    return int(number) if number is not None and 0 <= number <= LARGEST and number == int(number) else None


def label_ids(value: Any) -> tuple[int, ...] | None:
    """Token ids from a list, or from a string of numbers separated by spaces or commas. None for None.

    Raises:
        InvalidEntry: If the value is not a list or string of whole numbers.
    """
    if value is None:
        return None
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if isinstance(words, Iterable):
        numbers = tuple(map(_whole, words))
        if None not in numbers:
            return numbers  # type: ignore[return-value]
    raise InvalidEntry(f'tokens are {shown(value)}; expected ids, whole numbers from 0: [1, 2, 3] or "1 2 3"')


def objects(fields: Fields, name: str) -> list[Fields]:
    """Field with a list of one or more objects.

    Raises:
        InvalidEntry: If the value is not such a list.
    """
    value = fields.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise InvalidEntry(f'"{name}" is {shown(value)}; expected a list of objects, at least one')
    return value


def feature_file(path: str, rows: int | None, cols: int | None) -> Location:
    """Location of features in a file of their own.

    Args:
        rows: Number of frames.
        cols: Number of values per frame.

    Raises:
        InvalidEntry: If the shape is not known.
    """
    if not rows or not cols:
        raise InvalidEntry(f"features in a file ({path}) need their shape: expected rows and cols above 0")
    form = {".npy": "npy", ".f32": "f32"}.get(os.path.splitext(path)[1], "text")
    location = Location.parse(path)
    return location if location.shape else Location(path, shape=(rows, cols), form=form)


def base_name(path: str) -> str:
    """Name of a file without folder and ending, which is the id if there is no better one."""
    return os.path.splitext(os.path.basename(path))[0]


def shown(value: Any) -> str:
    """Value as JSON for messages, cut after 80 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def used(names: Iterable[str]) -> str:
    """Names that are used, for messages."""
    there = set(names)
    return ", ".join(filter(None, (next((name for name in of if name in there), "") for of in USED)))


def _named(fields: Fields, names: Sequence[str]) -> str:
    """First of the names that has a value, for messages."""
    return next((name for name in names if fields.get(name) is not None), names[0])

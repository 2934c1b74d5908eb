"""Field names of many systems, and conversions of their values that several readers share."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asr_jax.core.paths import is_utf8
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.spellings import WEAK, spelling
from asr_jax.data.manifests.utterances import Stage

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
RATE = ("sample_rate", "sampling_rate", "sampleRate", "samplerate", "sample_rate_hz", "sr")
"""Sample rate in Hz."""
SKIP = "_skipme"
"""Name of NeMo's mark of utterances that are left out."""
SPEAKER = ("speaker", "speaker_id", "spk_id", "client_id", "speaker_name")
SOURCE = ("source",)
KNOWN = frozenset(
    {*ID, *TEXT, *LABELS, *AUDIO_PATH, *AUDIO, *FEATURES, *FEATURES_PATH, *ROWS, *COLS, *RATE, SKIP, *SPEAKER, *SOURCE}
)
USED = (ID, AUDIO_PATH + AUDIO, FEATURES + FEATURES_PATH, TEXT, LABELS)
"""Names of each field, of which the first one that has a value is used."""
EXAMPLE = '{"audio_path": "a.flac", "text": "hello", "duration": 1.5}'
# Largest count or id: columns have 32 bits.
LARGEST = 2**31 - 1

Fields = Mapping[str, Any]


class InvalidEntry(ValueError):
    """Error: a line, row or file is not a valid utterance. The message has the reason and what was expected."""

    stage: Stage = "manifest"


class Skipped(InvalidEntry):
    """A mark among the fields leaves the utterance out."""

    stage: Stage = "filter"


def is_known(name: str) -> bool:
    """Whether a field of this name is used, or looks like a time; a remark then names it."""
    return name in KNOWN or spelling(name) is not None


def check_not_skipped(fields: Fields) -> None:
    """Checks NeMo's mark of utterances that are left out.

    Raises:
        Skipped: If the mark is set.
        InvalidEntry: If the mark is neither true nor false.
    """
    mark = fields.get(SKIP)
    if isinstance(mark, str):
        mark = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}.get(
            mark.strip().lower(), mark
        )
    if isinstance(mark, str | list | dict):
        raise InvalidEntry(f'"{SKIP}" is {shown(mark)}; expected true or false')
    if mark and mark == mark:  # tables have NaN for no value
        raise Skipped(f'"{SKIP}" is {shown(mark)}')


def first(fields: Fields, names: Sequence[str]) -> Any:
    """Value of the first of the names that has one. None if none has."""
    for name in names:
        if (value := fields.get(name)) is not None:
            return value
    return None


def string(fields: Fields, names: Sequence[str], default: str = "") -> str:
    """String of the first of the names that has a value. For ids and speakers, a whole number is converted.

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
    if not is_utf8(value):
        raise InvalidEntry(f'"{_named(fields, names)}" is {shown(value)}, which has an unpaired surrogate')
    return value


def if_comma(value: Any) -> str:
    """Expected form of a number with a decimal comma, for messages. Empty for other values."""
    is_comma = isinstance(value, str) and re.fullmatch(r"\s*-?\d+,\d+\s*", value)
    return ", with a decimal point instead of the comma" if is_comma else ""


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


def number(value: Any) -> float | None:
    """Number, also from a string. None for other values; infinite if it is too large."""
    if isinstance(value, str):
        value = value if "_" not in value else None  # Python reads 1_5 as 15
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (ValueError, TypeError):
        return None


def _whole(value: Any) -> int | None:
    """Whole number from 0 to LARGEST. None for other values."""
    if type(value) is int:  # fast path for nearly all values
        return value if 0 <= value <= LARGEST else None
    real = number(value.item() if isinstance(value, np.generic) else value)
    return int(real) if real is not None and 0 <= real <= LARGEST and real == int(real) else None


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
    there = list(names)
    fields = [next((name for name in of if name in there), "") for of in USED]
    parts = [name for name in there if _is_of_part(name)]
    return ", ".join(filter(None, (*fields, *parts, next((name for name in SPEAKER if name in there), ""))))


def _is_of_part(name: str) -> bool:
    """Whether a field of this name selects a part of a recording in every manifest."""
    found = spelling(name)
    is_count = found is not None and found.role == "duration" and found.unit in ("samples", "frames", "any")
    return found is not None and found.role not in ("part", "other") and not is_count and name not in WEAK


def num_names(values: Iterable[str]) -> int:
    """Number of different names of used fields among values, by which header lines are recognised."""
    return len({value for value in values if value in KNOWN or _is_of_part(value)})


def _named(fields: Fields, names: Sequence[str]) -> str:
    """First of the names that has a value, for messages."""
    return next((name for name in names if fields.get(name) is not None), names[0])

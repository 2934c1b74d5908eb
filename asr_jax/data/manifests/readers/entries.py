"""Utterances from named values: objects of JSON and rows of tables."""

import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import soundfile
from jaxtyping import Float32, Num

from asr_jax.audio.mono import MAX_PEAK
from asr_jax.core.errors import nearest
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.fields import Fields, InvalidEntry
from asr_jax.data.manifests.readers.parts import duration_of_whole, part_of, placed, without_origin
from asr_jax.data.manifests.utterances import Utterance

ROOT = re.compile(r"^(\{\w+\}|\$\{?\w+\}?)/+")
"""Placeholder of the root folder in the paths of SpeechBrain, such as `{data_root}/` or `$data_root/`."""
SIGNALS = frozenset((*f.AUDIO, *f.AUDIO_PATH, *f.FEATURES, *f.FEATURES_PATH))
# Hop in seconds of features without a duration; nearly every front-end has it.
HOP_S = 0.01


def utterance(fields: Fields, options: ReadOptions, *, name: str) -> Utterance:
    """Utterance of audio or of ready features with these fields.

    Args:
        name: Id if the fields have none.

    Raises:
        InvalidEntry: If the fields are not a valid utterance; a Skipped if a mark leaves it out.
    """
    f.check_not_skipped(fields)
    if f.first(fields, f.FEATURES) is not None or f.first(fields, f.FEATURES_PATH) is not None:
        return _of_features(fields, options, name)
    return _of_audio(fields, options, name)


def with_audio(fields: Fields, audio: Location) -> Fields:
    """Fields of an utterance whose audio is in an archive: the audio in place of all paths, audio and features."""
    return {name: value for name, value in fields.items() if name not in SIGNALS} | {"audio": audio}


def features_duration_s(num_frames: int, length_s: float = math.nan) -> float:
    """Duration of ready features in seconds: `length_s`, or the number of frames times the usual hop if it is NaN."""
    return round(num_frames * HOP_S, 6) if math.isnan(length_s) else length_s


def _of_audio(fields: Fields, options: ReadOptions, name: str) -> Utterance:
    embedded, audio_path = _embedded(fields, name)
    audio_path = ROOT.sub("", audio_path)
    if embedded is None and not audio_path and isinstance(value := f.first(fields, f.AUDIO), Mapping):
        raise InvalidEntry(
            f'audio is {f.shown(value)[:60]}; expected a path, {{"array": …, "sampling_rate": …}} or, in a table, '
            '{"bytes": …, "path": …}'
        )
    if embedded is None and not audio_path:
        raise InvalidEntry(_lacking(fields, "audio_path", (*f.AUDIO_PATH, *f.AUDIO, *f.FEATURES)))
    nested = f.first(fields, f.AUDIO)
    given = {**fields, **nested} if isinstance(nested, Mapping) else fields
    part = part_of(given, options)
    if embedded is not None:
        part = without_origin(part, embedded, given, options)
    if isinstance(embedded, bytes):
        embedded = options.unpacked.add(embedded, os.path.basename(audio_path))
    location = placed(audio_path if embedded is None else embedded, part)
    return _utterance(fields, options, location, audio_path, part.length_s)


def _embedded(fields: Fields, name: str) -> tuple[bytes | Location | None, str]:
    """Audio in the fields, as bytes or their location (None if there is none), and its path or name."""
    value = f.first(fields, f.AUDIO)
    if isinstance(value, Mapping) and "file" in value:  # SpeechBrain: {"file": …, "start": …, "stop": …}
        return None, f.string(value, ("file",))
    path = f.string(fields, f.AUDIO_PATH)
    if isinstance(value, str):
        return None, path or value
    if isinstance(value, Mapping):  # Hugging Face's Audio: {"bytes": …, "path": …}, or "array" and "sampling_rate"
        path = f.string(value, ("path",)) or path
        fields = {**fields, **value}
        value = value["array"] if value.get("bytes") is None and "array" in value else value.get("bytes")
    if isinstance(value, list | np.ndarray):
        if not (rate_hz := f.count(fields, f.RATE)):
            raise InvalidEntry(
                f"audio is {len(value)} values without a rate; expected the rate in Hz in sample_rate, or the bytes or "
                "path of an audio file"
            )
        return wav("audio", value, rate_hz), path or name
    if isinstance(value, bytes | Location):
        return value, path or name
    return None, path


def wav(name: str, values: Sequence[float] | Num[np.ndarray, "..."], rate_hz: int) -> bytes:
    """WAV file of the samples in a field.

    Args:
        values: 16-bit integers, or floats from -1 to 1.

    Raises:
        InvalidEntry: If they are not samples of one channel.
    """
    try:
        samples = np.asarray(values)
        if samples.dtype.kind in "iu" and (samples == samples.astype(np.int16)).all() and samples.ndim == 1:
            samples, subtype = samples.astype(np.int16), "PCM_16"
        elif samples.dtype.kind == "f" and (np.abs(samples) <= MAX_PEAK).all() and samples.ndim == 1:
            samples, subtype = samples.astype(np.float32), "FLOAT"
        else:
            raise ValueError
    except (ValueError, OverflowError):
        raise InvalidEntry(
            f'"{name}" is {f.shown(list(values[:8]))[:60]}; expected samples of 16 bits, or floats from -1 to 1, of '
            "one channel"
        ) from None
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format="WAV", subtype=subtype)
    return file.getvalue()


def _of_features(fields: Fields, options: ReadOptions, name: str) -> Utterance:
    rows, cols = f.count(fields, f.ROWS), f.count(fields, f.COLS)
    values = f.first(fields, f.FEATURES)
    if values is None:
        name = f.string(fields, f.FEATURES_PATH)
        location = f.feature_file(name, rows, cols)
    else:
        location = options.unpacked.add_features(_matrix(values, rows, cols))
    assert location.shape is not None
    length_s = features_duration_s(location.shape[0], duration_of_whole(fields, options))
    return _utterance(fields, options, str(location), name, length_s, location.shape)


def _matrix(values: Any, rows: int | None, cols: int | None) -> Float32[np.ndarray, "T F"]:
    """Features from a list of lists, or from a flat list and its shape."""
    if isinstance(values, str):
        raise InvalidEntry(f"features are {f.shown(values)}; expected numbers, or the path of a file in features_path")
    try:
        matrix = np.asarray(values, np.float32)
    except (ValueError, TypeError, OverflowError):
        raise InvalidEntry("ragged features: expected a list of frames with the same number of values each") from None
    if not matrix.size:
        raise InvalidEntry("empty features: expected frames × values, at least one of each")
    if matrix.ndim == 1:
        if rows is None or cols is None:
            raise InvalidEntry("flat features: expected the fields rows and cols as well")
        if matrix.size != rows * cols:
            raise InvalidEntry(f"{matrix.size} feature values; expected rows {rows} × cols {cols} = {rows * cols}")
        matrix = matrix.reshape(rows, cols)
    if matrix.ndim != 2:
        raise InvalidEntry(f"features of shape {matrix.shape}: expected frames × values")
    if not np.isfinite(matrix).all():
        raise InvalidEntry(f"{int((~np.isfinite(matrix)).sum())} feature values are NaN or infinite")
    return matrix


def _utterance(
    fields: Fields, options: ReadOptions, location: str, name: str, length_s: float, shape: tuple[int, int] = (0, 0)
) -> Utterance:
    labels = f.label_ids(f.first(fields, f.LABELS))
    text = f.string(fields, f.TEXT)
    if not text and labels is None and f.first(fields, f.TEXT) is None and not options.texts_may_lack:
        raise InvalidEntry(_lacking(fields, "text", (*f.TEXT, *f.LABELS)))
    return Utterance(
        id=f.string(fields, f.ID, name),
        location=location,
        text=text,
        duration_s=length_s,
        speaker=f.string(fields, f.SPEAKER),
        source=f.string(fields, f.SOURCE),
        labels=labels,
        num_frames=shape[0],
        num_values=shape[1],
    )


def _lacking(fields: Fields, name: str, others: Sequence[str]) -> str:
    if name in fields:
        return f'"{name}" is {f.shown(fields[name])}; expected {f.EXAMPLE}'
    there = ", ".join(map(repr, fields)) or "none"
    unknown = [field for field in fields if not f.is_known(field)]  # a known field has a meaning of its own
    found = next((hint for hint in (nearest(other, unknown) for other in (name, *others)) if hint), "").rstrip("?")
    return f'no "{name}" among its fields ({there}){found}; expected {f.EXAMPLE}'

"""Readers of JSONL and JSON: our own manifests, those of NeMo, lhotse and QuartzNet, and ready features.

Our own lines are `{"audio_path": "a.flac", "text": "hello", "duration": 1.5}`, optionally with `id speaker source
offset channel tokens`, or with `features_path rows cols` instead of `audio_path`.
"""

import glob
import gzip
import json
import os
import zlib
from functools import partial
from typing import Any

from asr_jax.core.text_files import MARK
from asr_jax.data.manifests.readers import entries, lhotse, quartznet
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions
from asr_jax.data.manifests.readers.fields import InvalidEntry
from asr_jax.data.manifests.readers.json_values import objects, values_of
from asr_jax.data.manifests.readers.tars import Tars, nemo_utterance
from asr_jax.data.manifests.utterances import Rejected

ENDINGS = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".manifest")


def is_json(path: str) -> bool:
    if path.lower().endswith(".list") and os.path.isfile(path):  # WeNet's; other lists have a path per line
        with open(path, "rb") as file:
            return file.read(1) == b"{"
    return path.lower().endswith(ENDINGS) and not os.path.isdir(path)


def files(path: str, options: ReadOptions) -> list[str]:
    """The file, and supervisions and tars of lhotse or tars of NeMo that belong to it."""
    folder, name = os.path.split(path)
    supervisions = os.path.join(folder, name.replace("recordings", "supervisions"))
    tars = sorted(glob.glob(os.path.join(glob.escape(folder), "audio_*.tar"))) if "tarred" in name else []
    beside = {supervisions, lhotse.tar_of(path)} - {path}
    return [path, *sorted(filter(os.path.isfile, beside)), *tars]


def read_json(path: str, options: ReadOptions, *, once: bool = False) -> Entries:
    """Reads a file with one object per line, or with one array of objects; with gzip if its name ends in .gz.

    Args:
        once: Whether an utterance that exists at several speeds is read only at its original speed.

    Raises:
        UserError: If the file cannot be read.
    """
    of_recordings: dict[str, list[f.Fields]] = {}
    tars = Tars()
    for number, value in objects(path):
        place = f"{path}:{number}"
        try:
            if isinstance(value, InvalidEntry):
                raise value
            if not isinstance(value, dict):
                raise InvalidEntry(f"a JSON {type(value).__name__}; expected an object: {f.EXAMPLE}")
            f.check_not_skipped(value)
            if "recording_id" in value and "start" in value:
                raise InvalidEntry("a supervision of lhotse without its recording: expected the recordings beside it")
            if "sources" in value and "sampling_rate" in value:
                of_recordings = of_recordings or lhotse.supervisions_beside(path)
                for cut in lhotse.cuts_of(value, of_recordings):
                    yield from lhotse.utterances(cut, path, tars, options)
            elif "shard_id" in value:
                yield nemo_utterance(value, path, tars, options)
            elif "supervisions" in value or "tracks" in value or value.get("type") in lhotse.CUTS:
                yield from lhotse.utterances(value, path, tars, options)
            elif "files" in value and "transcript" in value:
                yield from quartznet.utterances(value, options, once=once)
            else:
                yield entries.utterance(value, options, name=_name(value, place))
        except InvalidEntry as error:
            name = f.first(value, f.ID) if isinstance(value, dict) else None
            yield Rejected(name if isinstance(name, str) else place, place, str(error), error.stage)


def details(path: str) -> str:
    """System whose JSON a file has, by its first object, and the fields that are used. Empty if it has none."""
    try:
        with gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb") as file:
            start = file.read(PEEKED).removeprefix(MARK).decode(errors="ignore").lstrip().removeprefix("[").lstrip()
        value, _ = json.JSONDecoder().raw_decode(start)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        return ""
    if not isinstance(value, dict) or not value:
        return ""
    if all(isinstance(each, dict) for each in value.values()):
        return f"JSON of SpeechBrain ({f.used(next(iter(value.values())))})"
    name = next((name for name, keys in SYSTEMS.items() if keys <= value.keys()), "JSON")
    used = f.used(value)
    return f"{name} ({used})" if used and not name.startswith("lhotse") else name


PEEKED = 1 << 20
"""Number of bytes in which the first object is looked for."""
SYSTEMS = {
    "lhotse's recordings and supervisions": {"sources", "sampling_rate"},
    "lhotse's cuts": {"supervisions", "recording"},
    "NeMo's tarred manifest": {"shard_id"},
    "JSON of NVIDIA, with a file for each speed": {"files", "transcript"},
    "WeNet's list": {"key", "wav"},
    "JSON of NeMo": {"audio_filepath"},
}
"""Fields by which the JSON of a system is recognised."""
JSON = Reader("JSON", is_json, files, read_json, details=details)
JSON_ONCE = Reader("JSON at one speed", is_json, files, partial(read_json, once=True), details=details)
"""Reader for validation and evaluation, which count an utterance once."""


def looks_like_manifest(path: str) -> bool:
    """Whether a JSON file begins with an array, or with a line that is an object with a known field."""
    with open(path, "rb") as file:
        line = file.readline().removeprefix(MARK).strip()
    value = None if line.startswith(b"[") else values_of(line)[0]
    return value is None or (isinstance(value, dict) and bool(value.keys() & (f.KNOWN | {"files", "supervisions"})))


def _name(fields: dict[str, Any], place: str) -> str:
    path = f.first(fields, f.AUDIO_PATH)
    return path if isinstance(path, str) and path else place

"""Writing of our own manifests: one JSON object per line, which `data.manifests.readers.json_lines` reads."""

import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr_jax.core.files import temporary_path
from asr_jax.core.text_files import json_line, open_text
from asr_jax.data.manifests import pipes
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Utterance

PathLike = str | os.PathLike[str]


def write_manifest(path: PathLike, utterances: Iterable[Utterance]) -> None:
    """Writes a manifest atomically.

    Paths under the manifest's folder, or under its parent folder, are written relative to the manifest.
    """
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    partial = temporary_path(Path(path), f"{os.path.basename(path)}.partial")
    with open_text(partial) as file:
        for utterance in utterances:
            file.write(json_line(manifest_fields(utterance, folder)))
    os.replace(partial, path)


def manifest_fields(utterance: Utterance, folder: str) -> dict[str, Any]:
    """Fields of an utterance's line in a manifest in this folder."""
    location = Location.parse(utterance.location)
    relative = os.path.relpath(location.path, folder)
    path = location.path if relative.startswith(os.path.join("..", "..")) else relative
    if location.command:
        path = pipes.written(location.command, location.path)
    where = Location(path, location.first_byte, location.num_bytes, location.name)
    if location.may_overshoot:  # manifests have no field for it; the path has it
        where = replace(where, start_s=location.start_s, length_s=location.length_s, may_overshoot=True)
    fields: dict[str, Any] = {"id": utterance.id}
    if location.shape is None:
        fields["audio_path"] = str(where)
        if not location.may_overshoot and (location.start_s or location.length_s is not None):
            fields["offset"] = location.start_s
        if location.channel is not None:
            fields["channel"] = location.channel
    else:
        form = Location(path, location.first_byte, location.num_bytes, shape=location.shape, form=location.form)
        fields |= {"features_path": str(form), "rows": location.shape[0], "cols": location.shape[1]}
    fields["text"] = utterance.text
    if math.isfinite(utterance.duration_s):
        fields["duration"] = utterance.duration_s
    if utterance.labels is not None:
        fields["tokens"] = utterance.labels
    optional = {"speaker": utterance.speaker, "source": utterance.source}
    return fields | {name: value for name, value in optional.items() if value}

"""Lines of manifests in which utterances are described, for messages."""

import gzip
import os
from collections.abc import Iterable, Mapping, Sequence

from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Rejected

WAV_SCP = "wav.scp"
TEXT_FILES = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".json.gz", ".tsv", ".csv", ".list", ".manifest", WAV_SCP)

Lines = Mapping[str, Sequence[str]]
"""Lines by file."""


def lines_of(paths: Iterable[str]) -> Lines:
    """Lines of the manifests that are text files, and of wav.scp in folders."""
    found: dict[str, list[str]] = {}
    for path in paths:
        name = os.path.join(path, WAV_SCP) if os.path.isdir(path) else path
        if name.lower().endswith(TEXT_FILES) and os.path.isfile(name):
            with gzip.open(name, "rb") if name.endswith(".gz") else open(name, "rb") as file:
                found[name] = [line.decode(errors="replace") for line in file]
    return found


def place_in(lines: Lines, rejected: Rejected) -> str:
    """Manifest and line of an utterance, such as `train.jsonl:12: `. Empty if no line has the name of its file.

    The line is the first one that has the name of the file (with or without its ending) and, if there is one with both,
    the id.
    """
    name = os.path.basename(Location.parse(rejected.location).path)
    for wanted in (name, os.path.splitext(name)[0]):
        for path, of_path in lines.items():
            if found := [number for number, line in enumerate(of_path, 1) if wanted in line]:
                with_id = next((number for number in found if rejected.id in of_path[number - 1]), 0)
                return f"{path}:{with_id or found[0]}: "
    return ""

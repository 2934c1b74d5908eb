"""Written manifests: read again as the same utterances, and complete or absent."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import read

from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "set" / "manifests" / "m.jsonl"
    places = ["set/manifests/a.flac", "set/audio/b.flac", "elsewhere/audio/c.flac"]
    utterances = [
        Utterance(str(i), str(tmp_path / place), "naïve text", 1 / 3, "s" * i, "t" * i)
        for i, place in enumerate(places)
    ]
    write_manifest(path, utterances)
    assert list(read(tmp_path, path)) == utterances
    written = [json.loads(line)["audio_path"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert written == ["a.flac", "../audio/b.flac", str(tmp_path / places[2])]
    assert [file.name for file in path.parent.iterdir()] == ["m.jsonl"]


@pytest.mark.parametrize(
    "utterance",
    [
        Utterance("a", "a.flac#seconds=0.1+0.7", "x", 0.7),
        Utterance("a", "a.flac#channel=1&seconds=1e-05+2.5", "", 2.5, labels=(3, 1)),
        Utterance("a", "shard.tar#bytes=512+99&name=x%26y.m4a", "x", 1.0),
        Utterance("a", "shard.tar#bytes=512+99&name=x.wav&channel=0&seconds=0.25+0.5", "x", 0.5),
        Utterance("a", "f.bytes#bytes=24+48&features=3x4.f32", "x", 0.03, num_frames=3, num_values=4),
        Utterance("a", "f.txt#features=3x4.text", "", 0.04, "s", "t", (), 3, 4),
        Utterance("a", "f.npy#features=3x4.npy", "x", 0.04, num_frames=3, num_values=4),
    ],
)
def test_every_kind_of_location(tmp_path: Path, utterance: Utterance) -> None:
    placed = replace(utterance, location=f"{tmp_path}/{utterance.location}")
    write_manifest(tmp_path / "m.jsonl", [placed])
    assert list(read(tmp_path, tmp_path / "m.jsonl")) == [placed]


def test_an_unfinished_write_leaves_the_old_manifest(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    utterance = Utterance("1", str(tmp_path / "a.flac"), "one", 1.0)
    write_manifest(path, [utterance])

    def failing() -> Any:
        yield utterance
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_manifest(path, failing())
    assert list(read(tmp_path, path)) == [utterance]


def test_unknown_durations_are_left_out(tmp_path: Path) -> None:
    write_manifest(tmp_path / "m.jsonl", [Utterance("1", "/a.flac", "one", np.nan)])
    assert "duration" not in json.loads((tmp_path / "m.jsonl").read_text())

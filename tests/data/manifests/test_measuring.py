"""Measurements of audio: repeated for changed files, and only for these."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import RATE, check_signals, jsonl, noise, read, write

from asr_jax.data.manifests import locations, measuring


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Files that are probed, decoded, or whose state is taken."""
    seen: dict[str, list[str]] = {"probe": [], "read_audio": [], "state_of": []}

    def counted(module: Any, name: str) -> None:
        function = getattr(module, name)

        def counting(path: Any, **options: Any) -> Any:
            seen[name].append(os.path.basename(str(path)))
            return function(path, **options)

        monkeypatch.setattr(module, name, counting)

    counted(locations, "probe")
    counted(locations, "read_audio")
    counted(measuring, "state_of")
    return seen


def forget(calls: dict[str, list[str]]) -> None:
    for names in calls.values():
        names.clear()


def manifest(folder: Path, num: int = 12, **fields: Any) -> Path:
    for i in range(num):
        write(folder / f"{i}.flac", noise(i, RATE))
    return jsonl(folder / "m.jsonl", *[{"audio_path": f"{i}.flac", "text": "a"} | fields for i in range(num)])


def test_only_audio_that_is_another_is_probed_again(tmp_path: Path, calls: dict[str, list[str]]) -> None:
    path = manifest(tmp_path)
    assert [utterance.duration_s for utterance in read(tmp_path, path)] == [1.0] * 12
    write(tmp_path / "3.flac", noise(3, 3 * RATE))
    forget(calls)
    utterances = read(tmp_path, path)
    assert [utterance.duration_s for utterance in utterances] == [1.0] * 3 + [3.0] + [1.0] * 8
    assert calls["probe"] == ["3.flac"]
    forget(calls)
    assert list(read(tmp_path, path)) == list(utterances)
    assert (calls["probe"], sorted(calls["state_of"])) == ([], sorted(f"{i}.flac" for i in range(12)))


def test_a_time_alone_counts_and_so_does_a_file_that_went(tmp_path: Path, calls: dict[str, list[str]]) -> None:
    path = manifest(tmp_path)
    first = read(tmp_path, path)
    os.utime(tmp_path / "5.flac", ns=(1, 1))
    (tmp_path / "7.flac").unlink()
    forget(calls)
    utterances = read(tmp_path, path)
    assert [entry.id for entry in utterances.rejected] == ["7.flac"]
    assert list(utterances) == [utterance for utterance in first if utterance.id != "7.flac"]
    assert sorted(calls["probe"]) == ["5.flac", "7.flac"]


def test_silence_is_looked_for_again(tmp_path: Path, calls: dict[str, list[str]]) -> None:
    quiet = np.concatenate([np.zeros(RATE, np.int16), noise(1, RATE), np.zeros(RATE, np.int16)])
    path = manifest(tmp_path, 3, duration=1.0)
    write(tmp_path / "1.flac", quiet)
    (before,) = [utterance for utterance in read(tmp_path, path, trim_db=60.0) if utterance.id == "1.flac"]
    assert "#seconds=" in before.location
    assert 1 <= before.duration_s < 1.3
    write(tmp_path / "1.flac", noise(2, RATE))
    write(tmp_path / "2.flac", quiet)
    forget(calls)
    utterances = read(tmp_path, path, trim_db=60.0)
    assert [Path(utterance.location).name for utterance in utterances][:2] == ["0.flac", "1.flac"]
    assert [utterance.duration_s for utterance in utterances] == [1.0, 1.0, before.duration_s]
    assert sorted(calls["read_audio"]) == ["1.flac", "2.flac"]
    forget(calls)
    write(tmp_path / "0.flac", noise(0, RATE + 1))
    again = read(tmp_path, path, trim_db=60.0)
    assert list(again) == list(utterances)
    assert calls["read_audio"] == ["0.flac"]


def test_durations_of_the_manifest_stay_its_own(tmp_path: Path) -> None:
    """Two utterances of one file have different durations in the manifest, and trimming finds no silence."""
    write(tmp_path / "a.flac", noise(1))
    write(tmp_path / "b.flac", noise(2))
    lines = [{"id": str(i), "audio_path": "a.flac", "text": "a"} for i in range(3)]
    path = jsonl(tmp_path / "m.jsonl", lines[0] | {"duration": 0.5}, lines[1], lines[2] | {"duration": 0.7},
                 {"audio_path": "b.flac", "text": "b"})  # fmt: skip
    first = [utterance.duration_s for utterance in read(tmp_path, path, trim_db=60.0)]
    assert first == [0.5, 3000 / RATE, 0.7, 3000 / RATE]
    write(tmp_path / "b.flac", noise(2, 4000))
    assert [utterance.duration_s for utterance in read(tmp_path, path, trim_db=60.0)] == [*first[:3], 4000 / RATE]


def test_audio_whose_manifest_tells_all_is_not_looked_at(tmp_path: Path, calls: dict[str, list[str]]) -> None:
    path = manifest(tmp_path, duration=1.5)
    for _ in range(2):
        read(tmp_path, path)
    assert calls == {"probe": [], "read_audio": [], "state_of": []}


def test_audio_in_a_folder_is_looked_at_once(tmp_path: Path, calls: dict[str, list[str]]) -> None:
    """Files of the folder are its manifest: their times are in the name of the cache."""
    for i in range(4):
        write(tmp_path / "set" / f"{i}.wav", noise(i)).with_suffix(".txt").write_text("a")
    read(tmp_path, tmp_path / "set")
    forget(calls)
    write(tmp_path / "set" / "2.wav", noise(2, 5000))
    utterances = read(tmp_path, tmp_path / "set")
    assert utterances[2].duration_s == 5000 / RATE
    check_signals(utterances, [noise(i, 5000 if i == 2 else 3000) for i in range(4)])
    forget(calls)
    read(tmp_path, tmp_path / "set")
    assert calls == {"probe": [], "read_audio": [], "state_of": []}

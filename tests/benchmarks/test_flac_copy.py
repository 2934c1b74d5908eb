"""The copy of speech in FLAC: manifests and samples."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks.flac_copy import RATE_HZ, copied


@pytest.mark.parametrize(("share", "kept"), [(1.0, [0, 1, 2, 3]), (0.5, [1, 3])])
def test_a_share_of_each_set_is_copied_with_equal_samples(share: float, kept: list[int], tmp_path: Path) -> None:
    rng, entries = np.random.default_rng(0), []
    (tmp_path / "manifests").mkdir()
    for number in range(4):
        samples = rng.integers(-900, 900, 1600).astype(np.int16)
        soundfile.write(tmp_path / f"{number}.wav", samples, RATE_HZ, subtype="PCM_16")
        entries.append({"audio_path": f"{number}.wav", "text": "ab", "duration": 0.1})
    (tmp_path / "manifests/train.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in entries))
    copied(tmp_path / "manifests", tmp_path / "out", share=share)
    lines = (tmp_path / "out/manifests/train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        entries[number] | {"audio_path": f"audio/train/{number}.flac"} for number in kept
    ]
    for number in kept:
        found, rate = soundfile.read(tmp_path / f"out/audio/train/{number}.flac", dtype="int16")
        expected, _ = soundfile.read(tmp_path / f"{number}.wav", dtype="int16")
        assert rate == RATE_HZ
        assert np.array_equal(found, expected)

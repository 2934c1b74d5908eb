"""Silence at both ends, compared with librosa's trim, which the original recipe uses."""

from pathlib import Path

import librosa
import numpy as np
import pytest
from recordings import RATE, jsonl, noise, read, signal, write

from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.measuring import sounding_part, trimmed
from asr_jax.data.manifests.utterances import Utterance


def spoken(seed: int, before: int, num: int, after: int) -> np.ndarray:
    """Noise that swells and fades, with quieter noise before and after."""
    rng = np.random.default_rng(seed)
    loud = rng.normal(size=num) * 8000 * np.hanning(num + 2)[1:-1]
    quiet = rng.normal(size=before + num + after) * 3
    quiet[before : before + num] += loud
    return np.clip(np.rint(quiet), -32768, 32767).astype(np.int16)


@pytest.mark.parametrize("below_db", [20.0, 40.0, 60.0])
@pytest.mark.parametrize(
    ("before", "num", "after"), [(0, 5000, 0), (9000, 16000, 5000), (1, 700, 9001), (30000, 2048, 0), (0, 100, 20000)]
)
def test_as_librosa(below_db: float, before: int, num: int, after: int) -> None:
    samples = spoken(before + num, before, num, after)
    _, expected = librosa.effects.trim(samples / 32768, top_db=below_db)
    assert sounding_part(samples, below_db) == tuple(expected.tolist())


@pytest.mark.parametrize("samples", [np.zeros(5000, np.int16), noise(1, 3)])
def test_all_silent_or_short_is_left_whole(samples: np.ndarray) -> None:
    assert sounding_part(samples, 60.0) == (0, len(samples))


def test_records_are_trimmed_as_they_are_read(tmp_path: Path) -> None:
    samples = spoken(1, 9000, 16000, 5000)
    write(tmp_path / "a.wav", samples)
    stereo = np.stack([np.zeros(30000, np.int16), samples], axis=1)
    write(tmp_path / "b.wav", stereo)
    (tmp_path / "f.txt").write_text("1 2")
    line = {"text": "a", "duration": 30000 / RATE}
    path = jsonl(
        tmp_path / "m.jsonl",
        line | {"audio_path": "a.wav"},
        line | {"audio_path": "a.wav", "offset": 0.125, "duration": 1.5},
        line | {"audio_path": "b.wav", "channel": 1},
        line | {"audio_path": "b.wav", "channel": 0},
        {"features_path": "f.txt", "rows": 1, "cols": 2, "text": "a"},
        line | {"audio_path": "gone.wav"},
    )
    utterances = read(tmp_path, path, trim_db=40.0)
    _, (first, end) = librosa.effects.trim(samples / 32768, top_db=40.0)
    part = samples[2000:26000]
    _, (part_first, part_end) = librosa.effects.trim(part / 32768, top_db=40.0)
    expected = [samples[first:end], part[part_first:part_end], samples[first:end], stereo[:, 0]]
    for utterance, trimmed_samples in zip(utterances, expected, strict=False):
        np.testing.assert_array_equal(signal(utterance), trimmed_samples)
        assert utterance.duration_s == len(trimmed_samples) / RATE
    assert utterances[5].location == str(tmp_path / "gone.wav")
    assert [utterance.duration_s for utterance in read(tmp_path, path)][:2] == [30000 / RATE, 1.5]


def test_other_rates_are_trimmed_by_their_seconds(tmp_path: Path) -> None:
    samples = spoken(1, 9000, 16000, 5000)
    write(tmp_path / "a.wav", np.repeat(samples, 3), 48000)
    utterance = trimmed(Utterance("a", str(tmp_path / "a.wav"), "a", 30000 / RATE), 40.0)
    location = Location.parse(utterance.location)
    assert location.length_s == utterance.duration_s
    assert abs(len(location.audio(rate_hz=RATE)) - utterance.duration_s * RATE) <= 1

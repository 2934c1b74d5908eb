"""Durations of manifests that differ from those of the audio: tolerated, named or rejected, and used up to them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from recordings import RATE, noise, write

from asr_jax.audio.io import AudioError
from asr_jax.audio.mono import SILENT
from asr_jax.data.manifests import durations
from asr_jax.data.manifests.durations import UtteranceBlocks, difference, is_silent, without_durations
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Rejected, Utterance

LONGER, SHORTER = "longer than its manifest says: {} s, of which", "shorter than its manifest says: {} s of"


@pytest.mark.parametrize(
    ("there_s", "duration_s", "place", "reason"),
    [
        (1.0, 1.0, "a.wav", ""),
        (1.049, 1.0, "a.wav", ""),
        (1.06, 1.0, "a.wav", LONGER.format("1.06")),
        (0.951, 1.0, "a.wav", ""),
        (0.94, 1.0, "a.wav", SHORTER.format("0.94")),
        (100.9, 100.0, "a.wav", ""),  # 1 %
        (101.1, 100.0, "a.wav", LONGER.format("101.10")),
        (98.9, 100.0, "a.wav", SHORTER.format("98.90")),
        (0.9, 1.0, "a.mp3", ""),  # padding of the codec
        (0.8, 1.0, "a.MP3", SHORTER.format("0.80")),
        (0.7, 1.0, "a.wav#seconds=0+1.0~", ""),
    ],
)
def test_differences(there_s: float, duration_s: float, place: str, reason: str) -> None:
    found = difference(there_s, duration_s, Location.parse(place))
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_audio_of_which_a_part_is_missing() -> None:
    assert difference(0.6, 1.0, Location("a.wav"))
    assert difference(18.1, 20.0, Location("a.wav"))
    for there_s, duration_s in ((0.4, 1.0), (17.9, 20.0)):
        with pytest.raises(AudioError, match=r"shorter than its manifest says: .* may be truncated"):
            difference(there_s, duration_s, Location("a.wav"))


@pytest.mark.parametrize(
    ("duration_s", "used", "reason"),
    [
        (float("nan"), 25 * RATE, ""),
        (25.0, 25 * RATE, ""),
        (24.9, 25 * RATE, ""),  # rounded
        (25.2, 25 * RATE, ""),
        (24.0, 24 * RATE, LONGER.format("25.00")),
        (10.0, 10 * RATE, LONGER.format("25.00")),  # the end of a block
        (9.99, 159_840, LONGER.format("25.00")),
        (26.0, 25 * RATE, SHORTER.format("25.00")),
    ],
)
def test_blocks_end_at_the_duration(tmp_path: Path, duration_s: float, used: int, reason: str) -> None:
    samples = noise(0, 25 * RATE)
    path = write(tmp_path / "a.wav", samples)
    blocks = UtteranceBlocks(Utterance("u", str(path), duration_s=duration_s), RATE)
    np.testing.assert_array_equal(np.concatenate(list(blocks)), samples[:used])
    assert blocks.num_samples == used
    assert (blocks.differing.reason if blocks.differing else "").startswith(reason)
    assert bool(blocks.differing) == bool(reason)


def test_blocks_of_audio_of_which_a_part_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", noise(0, RATE))
    with pytest.raises(AudioError, match=durations.THAN_IN_MANIFEST):
        list(UtteranceBlocks(Utterance("u", str(path), duration_s=2.0), RATE))


@pytest.mark.parametrize("duration_s", [2.0, float("nan")])
def test_silent_blocks_are_a_remark_without_a_text_and_an_error_with_one(tmp_path: Path, duration_s: float) -> None:
    path = write(tmp_path / "a.wav", np.full(2 * RATE, 7, np.int16))
    utterance = Utterance("u", str(path), duration_s=duration_s)
    blocks = UtteranceBlocks(utterance, RATE)
    assert sum(map(len, blocks)) == 2 * RATE
    assert blocks.differing == Rejected("u", str(path), SILENT, "used")
    assert is_silent(blocks.differing)
    for labelled in (replace(utterance, text="ab"), replace(utterance, labels=(1,))):
        with pytest.raises(AudioError, match="silent: all samples are equal, but the utterance has a text"):
            list(UtteranceBlocks(labelled, RATE))


def test_remarks_are_joined_and_those_on_durations_can_be_left_out(tmp_path: Path) -> None:
    values = (noise(0, 2 * RATE) / 32768).astype(np.float32)
    values[5] = 1.5
    path = write(tmp_path / "a.wav", values, subtype="FLOAT")
    blocks = UtteranceBlocks(Utterance("u", str(path), "ab", duration_s=1.0), RATE)
    list(blocks)
    assert blocks.differing
    clipped = "above full scale: the peak is 1.5, full scale is 1; 1 samples are clipped"
    assert blocks.differing.reason == f"{clipped}; longer than its manifest says: 2.00 s, of which 1.00 s are used"
    assert not is_silent(blocks.differing)
    without = without_durations(blocks.differing)
    assert without
    assert without.reason == clipped
    assert without_durations(replace(blocks.differing, reason="longer than its manifest says: 2 s")) is None
    assert not is_silent(None)

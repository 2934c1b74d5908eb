"""Emission times of words and their latency as in CAIMAN-ASR.

scripts/goldens/caiman_latency.py writes the cases: random words, and what CAIMAN-ASR's own code computes with them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import approx, assert_close

from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.metrics.latency import TimedWord, latencies, latency_report, num_words
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.transcripts.words import Writer

GOLDEN = json.loads((Path(__file__).parent / "caiman_latency/cases.json").read_text())
SYMBOLS = (" ", *"abcdefghijklmnopqrstuvwxyz", None)


def recognised(recording: dict[str, Any]) -> list[TimedWord]:
    """Words of a recording, of which each character is emitted in its frame. Labels can stay for more frames."""
    times = FrameTimes(shift=round(GOLDEN["frame_s"] * 16000), first=0.0, rate_hz=16000)
    writer = Writer(CharacterTokenizer(symbols=SYMBOLS, normaliser="none"), times=times)
    frames = recording["frames"]
    tokens, ends = tuple(map(SYMBOLS.index, recording["text"])), tuple(frame + 3 for frame in frames)
    sequence = TokenSequence(tokens, tuple(frames), ends, (0.0,) * len(frames), 0.0)
    words = writer.transcript([sequence]).words
    assert all(word.emitted_s is not None for word in words)
    return [TimedWord(word.text, word.start_s, word.emitted_s or 0.0) for word in words]


@pytest.mark.golden
@pytest.mark.parametrize("name", GOLDEN["cases"])
def test_latencies_are_the_peers(name: str) -> None:
    case, found = GOLDEN["cases"][name], []
    for recording, expected in zip(case["recordings"], case["words"], strict=True):
        words = recognised(recording)
        assert [word.text for word in words] == [text for text, *_ in expected]
        assert_close([word[1:] for word in words], [times for _, *times in expected], atol=1e-9)
        spoken = [TimedWord(*word) for word in recording["spoken"]]
        found.append((latencies(spoken, words, "none"), num_words(spoken, "none")))
    counted = [latency for of_row, _ in found for latency in of_row]
    assert len(counted) == len(case["tails"])
    report = latency_report(counted, frame_s=GOLDEN["frame_s"])
    assert len(counted) / sum(num for _, num in found) == approx(case["usage"])
    if not counted:
        assert report["emission"] is None
        assert case["metrics"] == {}
        return
    assert_close([latency.tail_s for latency in counted], case["tails"], atol=1e-9)
    peer = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
    assert report["emission"] == approx({key: case["metrics"][f"{peer[key]}-emission-latency"] for key in peer})
    assert report["head"]["p50"] == approx(case["timestamps"]["optimal_head_offset"])
    assert report["tail"]["p50"] == approx(case["timestamps"]["optimal_tail_offset"])
    heads = np.mean([abs(latency.head_s) for latency in counted])
    assert (heads + np.mean(np.abs(case["tails"]))) / 2 == approx(case["timestamps"]["raw_AAS"])

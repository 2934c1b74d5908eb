"""Streams by segments: where utterances end, and that each word is found once."""

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from asr_jax.inference.endpoints import Endpoints
from asr_jax.serving.segments import SegmentStream
from asr_jax.transcripts.transcript import Transcript, Word

RATE = 100
NEVER = Endpoints(silence_s=0.0, pause_s=0.0, longest_s=0.0)


async def recognise(samples):
    """A recogniser whose words are stretches of equal positive samples, which must be whole to be right."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], samples, [0]])))
    words = [
        Word(str(samples[first]), first / RATE, end / RATE, 1.0) for first, end in pairwise(edges) if samples[first] > 0
    ]
    return Transcript(tuple(words), 0.0)


def audio_of(*words):
    """Samples of words, given as number, start and end."""
    samples = np.zeros(round(words[-1][2] * RATE) + 50, np.int16)
    for number, start_s, end_s in words:
        samples[round(start_s * RATE) : round(end_s * RATE)] = number
    return samples


def results(samples, size, *, longest_s=4.0, endpoints=NEVER):
    async def run():
        stream = SegmentStream(recognise, rate_hz=RATE, longest_s=longest_s, endpoints=endpoints)
        found = []
        for first in range(0, len(samples), size):
            found += await stream.feed(samples[first : first + size])
        return found + await stream.feed(samples[:0], is_last=True)

    return asyncio.run(run())


def finals(found):
    transcripts = [each.transcript for each in found if each.is_final]
    return [[(word.text, round(word.start_s, 6), round(word.end_s, 6)) for word in each.words] for each in transcripts]


@pytest.mark.parametrize("size", [7, 100, 5000])
def test_each_word_is_found_once(size):
    words = [(10 + number, 0.1 + 0.6 * number, 0.5 + 0.6 * number) for number in range(20)]
    found = results(audio_of(*words), size)
    utterances = finals(found)
    assert len(utterances) > 3
    flat = [word for utterance in utterances for word in utterance]
    assert [word[0] for word in flat] == [str(number) for number, _, _ in words]
    assert [word[1:] for word in flat] == [(round(start_s, 6), round(end_s, 6)) for _, start_s, end_s in words]
    assert all(utterance[-1][2] - utterance[0][1] <= 4.0 for utterance in utterances)


def test_partial_results():
    found = results(audio_of((10, 0.1, 0.5), (11, 1.3, 1.7), (12, 2.2, 2.6)), 10)
    assert [(each.transcript.text, each.is_final) for each in found] == [
        ("10", False), ("10 11", False), ("10 11 12", False), ("10 11 12", True)
    ]  # fmt: skip
    assert [each.num_settled for each in found] == [0, 0, 0, 8]


def test_pauses_and_silence():
    samples = audio_of((10, 0.1, 0.5), (11, 3.1, 3.5), (12, 3.6, 3.9))
    endpoints = Endpoints(silence_s=0.5, pause_s=0.5, longest_s=0.0)
    assert finals(results(samples, 10, endpoints=endpoints)) == [
        [("10", 0.1, 0.5)], [("11", 3.1, 3.5), ("12", 3.6, 3.9)]
    ]  # fmt: skip
    assert not results(np.zeros(2000, np.int16), 10, endpoints=endpoints)


def test_words_without_gaps():
    """An utterance ends between two of them."""
    found = finals(results((50 + np.arange(1000) % 7).astype(np.int16), 100, longest_s=2.0))
    assert len(found) >= 5
    assert sum(map(len, found)) == 1000
    assert found[-1][-1][2] == 10.0

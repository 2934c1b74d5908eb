"""Streams of models that do not stream: the audio since the last final result is recognised again and again."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
from jaxtyping import Int16

from asr_jax.audio.mono import SILENT_STEPS
from asr_jax.inference.endpoints import Endpoints
from asr_jax.inference.streaming import StreamResult
from asr_jax.transcripts.transcript import Transcript, Word

PARTIAL_S = 1.0
"""Seconds of new audio between partial results."""
KEPT_S = 1.0
"""Seconds of silence that are kept before an utterance."""


class SegmentStream:
    """A stream whose utterances are recognised as recordings, at most as long as the model computes at once.

    An utterance ends at a pause. If there is none in time, it ends at the longest gap between two words of its second
    half, and the audio after the gap belongs to the next utterance.
    """

    def __init__(
        self,
        recognise: Callable[[Int16[np.ndarray, " S"]], Awaitable[Transcript]],
        *,
        rate_hz: int,
        longest_s: float,
        endpoints: Endpoints,
    ) -> None:
        """Starts a stream of samples at `rate_hz`.

        Args:
            recognise: Returns the transcript of samples, at most `longest_s` seconds.
            endpoints: Rules by which utterances end.
        """
        self._recognise, self._rate_hz, self._endpoints = recognise, rate_hz, endpoints
        self._longest = int(min(longest_s, endpoints.longest_s or math.inf) * rate_hz)
        self._held, self._first, self._next = np.zeros(0, np.int16), 0, 0
        self._shown = ""

    async def feed(self, samples: Int16[np.ndarray, " S"], *, is_last: bool = False) -> list[StreamResult]:
        """Adds samples, and returns the new results."""
        self._held = np.concatenate([self._held, samples])
        results = list[StreamResult]()
        while len(self._held) >= self._longest:
            results += await self._results(self._held[: self._longest])
        if is_last:
            transcript = await self._transcript(self._held)
            return results + self._final(transcript, transcript.words, len(self._held))
        if len(self._held) >= self._next:
            results += await self._results(self._held)
        return results

    async def _transcript(self, samples: Int16[np.ndarray, " S"]) -> Transcript:
        if not len(samples) or np.ptp(samples.astype(np.int32)) <= SILENT_STEPS:
            return Transcript((), 0.0)
        return await self._recognise(samples)

    async def _results(self, samples: Int16[np.ndarray, " S"]) -> list[StreamResult]:
        """Recognises the utterance so far, and ends it if a rule says so."""
        transcript, seconds = await self._transcript(samples), len(samples) / self._rate_hz
        words, is_full = transcript.words, len(samples) >= self._longest
        self._next = len(samples) + round(PARTIAL_S * self._rate_hz)
        silence_s = seconds - (words[-1].end_s if words else 0.0)
        if self._endpoints.reached(has_text=bool(words), silence_s=silence_s, duration_s=0.0):
            kept_s = silence_s / 2 if words else KEPT_S
            return self._final(transcript, words, len(samples) - round(kept_s * self._rate_hz))
        if is_full:
            gaps = [(after.start_s - word.end_s, place) for place, (word, after) in enumerate(pairwise(words), 1)]
            late = [gap for gap in gaps if words[gap[1]].start_s > seconds / 2]
            if not late:
                return self._final(transcript, words, len(samples))
            place = max(late)[1]
            cut_s = (words[place - 1].end_s + words[place].start_s) / 2
            return self._final(transcript, words[:place], round(cut_s * self._rate_hz))
        if transcript.text == self._shown:
            return []
        self._shown = transcript.text
        return [StreamResult(0, self._moved(transcript, words), is_final=False, num_settled=0)]

    def _final(self, transcript: Transcript, words: tuple[Word, ...], num_samples: int) -> list[StreamResult]:
        """Ends the utterance after some words and samples; returns its result if it has or had a text."""
        final = self._moved(transcript, words)
        has_text = bool(words or self._shown)
        self._held, self._first = self._held[num_samples:], self._first + num_samples
        self._next, self._shown = round(PARTIAL_S * self._rate_hz), ""
        return [StreamResult(0, final, is_final=True, num_settled=len(final.text))] if has_text else []

    def _moved(self, transcript: Transcript, words: tuple[Word, ...]) -> Transcript:
        """Returns some first words of a transcript with times since the beginning of the stream.

        Scores and n-best lists describe all words; they are left out if words are missing.
        """
        first_s = self._first / self._rate_hz
        moved = tuple(
            replace(
                word,
                start_s=word.start_s + first_s,
                end_s=word.end_s + first_s,
                emitted_s=None if word.emitted_s is None else word.emitted_s + first_s,
            )
            for word in words
        )
        if len(words) == len(transcript.words):
            return replace(transcript, words=moved)
        return Transcript(moved, math.nan)

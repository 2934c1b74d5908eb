"""Converts token sequences to words with times and confidence."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.metrics.confidence import Calibration
from asr_jax.text.segmentation import split
from asr_jax.text.spelling import Spelling
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.transcripts.transcript import ScoredText, Token, Transcript, Word


class _WordFrames(NamedTuple):
    """A word with its frames."""

    text: str
    space: bool
    start: float
    """First frame; a fraction within a label of several words."""
    end: float
    """Frame after the last one."""
    emitted: int
    """Frame after the first frame of the last label."""
    log_prob: float
    """Mean log-probability of the labels."""


class Writer:
    """Converts the token sequences of a head to transcripts."""

    def __init__(self, tokenizer: Tokenizer, *, times: FrameTimes, calibration: Calibration | None = None) -> None:
        """Initialises the writer.

        Args:
            tokenizer: Tokenizer of the head's labels.
            times: Times of the frames that the head reads.
            calibration: Calibration of word confidences. None: none is applied.
        """
        self.spelling, self.times, self.calibration = Spelling.of(tokenizer), times, calibration
        # Labels that are parts of characters have no text of their own.
        self._decode = tokenizer.decode if self.spelling.has_bytes else None

    def text(self, sequence: TokenSequence) -> str:
        """Returns the text of a sequence, with single spaces."""
        return " ".join(self._texts(sequence))

    def transcript(
        self, hypotheses: Sequence[TokenSequence], *, lists_n_best: bool = False, first_frame: int = 0
    ) -> Transcript:
        """Returns the transcript of an n-best list.

        A word's confidence is the geometric mean of its tokens' probabilities, calibrated. A token that is a part of
        several words counts for each of them, and its frames are divided among its characters.

        Args:
            hypotheses: N-best list, best first.
            lists_n_best: Whether the transcript contains all hypotheses.
            first_frame: Frame of the recording in which the search began.
        """
        best = hypotheses[0]
        ranges = self.spelling.word_ranges(best.tokens)
        found = [
            word
            for text, labels in zip(self._texts(best), ranges, strict=True)
            for word in self._divided(text, best, *labels)
        ]
        logps = np.array([word.log_prob for word in found], np.float64)
        confidences = np.minimum(np.nan_to_num(np.exp(logps)), 1.0)
        if self.calibration:
            confidences = self.calibration(confidences)
        words = tuple(
            Word(
                word.text,
                self.times.seconds(first_frame + word.start),
                self.times.seconds(first_frame + word.end),
                confidence,
                word.space,
                self.times.seconds(first_frame + word.emitted),
            )
            for word, confidence in zip(found, confidences.tolist(), strict=True)
        )
        listed = hypotheses if lists_n_best else ()
        n_best = tuple(ScoredText(self.text(each), each.score) for each in listed)
        return Transcript(words, best.score, n_best, best.tokens, best.log_probs)

    def tokens(self, sequence: TokenSequence) -> tuple[Token, ...]:
        """Returns all tokens with their times, spelt as for language models of labels."""
        symbols, seconds = self.spelling.symbols, self.times.seconds
        rows = zip(sequence.tokens, sequence.starts, sequence.ends, sequence.log_probs, strict=True)
        return tuple(Token(symbols[token], seconds(start), seconds(end), logp) for token, start, end, logp in rows)

    def _texts(self, sequence: TokenSequence) -> Sequence[str]:
        """Returns the texts between spaces, one for each of `Spelling.word_ranges`."""
        finished, part = self.spelling.words(sequence.tokens)
        texts = (*finished, part) if part else finished
        if self._decode and len(whole := self._decode(sequence.tokens).split()) == len(texts):
            return whole
        return texts

    def _divided(self, text: str, sequence: TokenSequence, first: int, end: int) -> Iterator[_WordFrames]:
        """Yields the words of a text between spaces, which has the labels `first` to `end` (exclusive)."""
        words = split(text)
        if len(words) == 1:
            mean = float(np.mean(sequence.log_probs[first:end], dtype=np.float64))
            emitted = sequence.starts[end - 1] + 1
            yield _WordFrames(text, True, sequence.starts[first], sequence.ends[end - 1], emitted, mean)
            return
        runs = list(self._runs(sequence.tokens, first, end))
        if "".join(run for run, _, _ in runs) != text:
            runs = [(text, first, end)]
        frames, owners = list[tuple[float, float]](), list[tuple[int, int]]()  # of each character
        for run, begin, stop in runs:
            edges = np.linspace(sequence.starts[begin], sequence.ends[stop - 1], len(run) + 1).tolist()
            frames += pairwise(edges)
            owners += [(begin, stop)] * len(run)
        at = 0
        for word in words:
            last = at + len(word.text) - 1
            logps = sequence.log_probs[owners[at][0] : owners[last][1]]
            mean = float(np.mean(logps, dtype=np.float64))
            emitted = sequence.starts[owners[last][1] - 1] + 1
            yield _WordFrames(word.text, word.space, frames[at][0], frames[last][1], emitted, mean)
            at = last + 1

    def _runs(self, tokens: Sequence[int], first: int, end: int) -> Iterator[tuple[str, int, int]]:
        """Yields the shortest runs of labels that have a whole text: the text, the first label, and the one after it.

        A run is one label, unless labels are bytes of characters.
        """
        begin = first
        for stop in range(first + 1, end + 1):
            text = self.spelling.texts[tokens[begin]]
            if self._decode and stop - begin > 1:
                text = self._decode(tokens[begin:stop]).strip()
            if "\ufffd" not in text or stop == end:
                yield text, begin, stop
                begin = stop

"""Converts token sequences to words with times and confidence."""

from collections.abc import Sequence

import numpy as np

from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.metrics.confidence import Calibration
from asr_jax.text.spelling import Spelling
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.transcripts.transcript import ScoredText, Token, Transcript, Word


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
        """Returns the words of a sequence, separated by single spaces."""
        return " ".join(self._texts(sequence, len(self.spelling.word_ranges(sequence.tokens))))

    def transcript(
        self, hypotheses: Sequence[TokenSequence], *, lists_n_best: bool = False, first_frame: int = 0
    ) -> Transcript:
        """Returns the transcript of an n-best list.

        A word's confidence is the geometric mean of its tokens' probabilities, calibrated.

        Args:
            hypotheses: N-best list, best first.
            lists_n_best: Whether the transcript contains all hypotheses.
            first_frame: Frame of the recording in which the search began.
        """
        best = hypotheses[0]
        ranges = self.spelling.word_ranges(best.tokens)
        logps = [np.mean(best.log_probs[first:end], dtype=np.float64) for first, end in ranges]
        confidences = np.minimum(np.nan_to_num(np.exp(np.array(logps, np.float64))), 1.0)
        if self.calibration:
            confidences = self.calibration(confidences)
        words = tuple(
            Word(
                text,
                self.times.seconds(first_frame + best.starts[first]),
                self.times.seconds(first_frame + best.ends[end - 1]),
                confidence,
            )
            for text, (first, end), confidence in zip(
                self._texts(best, len(ranges)),
                ranges,
                confidences.tolist(),
                strict=True,
            )
        )
        n_best = tuple(ScoredText(self.text(each), each.score) for each in hypotheses)
        return Transcript(words, best.score, n_best if lists_n_best else (), best.tokens, best.log_probs)

    def tokens(self, sequence: TokenSequence) -> tuple[Token, ...]:
        """Returns all tokens with their times, spelt as for language models of labels."""
        symbols, seconds = self.spelling.symbols, self.times.seconds
        rows = zip(sequence.tokens, sequence.starts, sequence.ends, sequence.log_probs, strict=True)
        return tuple(Token(symbols[token], seconds(start), seconds(end), logp) for token, start, end, logp in rows)

    def _texts(self, sequence: TokenSequence, num_words: int) -> Sequence[str]:
        """Returns the texts of `num_words` words."""
        finished, part = self.spelling.words(sequence.tokens)
        texts = (*finished, part) if part else finished
        if self._decode and len(whole := self._decode(sequence.tokens).split()) == num_words:
            return whole
        return texts

"""Words of token sequences: which tokens spell a word, when it is said, and how sure the model is of it."""

from collections.abc import Sequence

import numpy as np

from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.metrics.confidence import Calibration
from asr_jax.text.spelling import Spelling
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.transcripts.transcript import Alternative, Token, Transcript, Word


class Writer:
    """Makes transcripts of the token sequences of a head."""

    def __init__(self, tokenizer: Tokenizer, *, times: FrameTimes, calibration: Calibration | None = None) -> None:
        """Args:
            times: of the frames that the head reads.
            calibration: of the words' confidence; None: as the model gives it.
        """
        self.spelling, self.times, self.calibration = Spelling.of(tokenizer), times, calibration
        # Labels that are parts of characters spell nothing one by one.
        self._decode = tokenizer.decode if self.spelling.has_bytes else None

    def text(self, sequence: TokenSequence) -> str:
        """The words, parted by single spaces."""
        return " ".join(self._texts(sequence, len(self.spelling.word_ranges(sequence.tokens))))

    def transcript(
        self, hypotheses: Sequence[TokenSequence], *, lists_alternatives: bool = False, first_frame: int = 0
    ) -> Transcript:
        """The transcript of an n-best list, best first.

        A word's confidence is the geometric mean of its tokens' probabilities, calibrated.

        Args:
            lists_alternatives: whether the transcript lists all hypotheses.
            first_frame: the frame of the recording in which the search began.
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
        alternatives = tuple(Alternative(self.text(each), each.score) for each in hypotheses)
        return Transcript(words, best.score, alternatives if lists_alternatives else ())

    def tokens(self, sequence: TokenSequence) -> tuple[Token, ...]:
        """Every token with its time, written as language models of labels have it."""
        symbols, seconds = self.spelling.symbols, self.times.seconds
        rows = zip(sequence.tokens, sequence.starts, sequence.ends, sequence.log_probs, strict=True)
        return tuple(Token(symbols[token], seconds(start), seconds(end), logp) for token, start, end, logp in rows)

    def _texts(self, sequence: TokenSequence, num_words: int) -> Sequence[str]:
        """As many texts as there are words."""
        finished, part = self.spelling.words(sequence.tokens)
        texts = (*finished, part) if part else finished
        if self._decode and len(whole := self._decode(sequence.tokens).split()) == num_words:
            return whole
        return texts

"""Random segmentations of words into pieces, for training.

A word's segmentation has the probability p(segmentation) ∝ exp(alpha · Σ scores of its pieces). Small values of alpha
make all segmentations similarly likely.

Source: Kudo 2018 (arXiv:1804.10959); the words are drawn one by one, as in CAIMAN-ASR's data/tokenizer.py at version
1.14. SentencePiece samples from the same distribution, but its random numbers depend on all earlier calls.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.text.base import Tokenizer
from asr_jax.text.normalise import normalise
from asr_jax.text.sentencepiece import SentencePieceTokenizer

ALPHA = 0.1
"""Default of `SampledPieces.alpha`, as in SentencePiece's documentation."""


@dataclass(frozen=True)
class SampledPieces:
    """Draws segmentations with the pieces of a unigram model.

    Raises:
        UserError: If the tokenizer has no unigram model.
    """

    tokenizer: SentencePieceTokenizer
    probability: float
    """Probability that a word is segmented at random instead of in the best way, from 0 to 1."""
    alpha: float
    """Factor of the scores of pieces, above 0."""
    seed: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, probability: float, seed: int, alpha: float = ALPHA) -> "SampledPieces | None":
        """Returns the sampler of a training set; None if nothing is sampled.

        Args:
            probability: Probability that a word is segmented at random.
            alpha: Factor of the scores of pieces.

        Raises:
            UserError: If the tokenizer has no unigram model of SentencePiece.
        """
        if not probability:
            return None
        if not isinstance(tokenizer, SentencePieceTokenizer) or not tokenizer.is_unigram:
            raise UserError(
                f"data.tokenizer.sampling is {probability:g}: expected 0, or a tokenizer of the kind sentencepiece "
                "with unigram pieces, whose scores are needed"
            )
        return cls(tokenizer, probability, alpha, seed)

    def __call__(self, text: str, *, position: int, row: int, most: int) -> list[int] | None:
        """Returns the labels of a text, which depend on the seed and the arguments alone.

        Args:
            position: Position of the batch in the plan.
            row: Row of the utterance in the index.
            most: Largest number of labels.

        Returns:
            The labels; None if every word has its best segmentation, or if there would be more than `most` labels.
        """
        random = np.random.default_rng((self.seed, position, row))
        words = normalise(text, self.tokenizer.normaliser).split()
        drawn = random.random(len(words)) < self.probability
        if not drawn.any():
            return None
        labels: list[int] = []
        for word, is_drawn in zip(words, drawn, strict=True):
            sampled = self._segmented(word, random) if is_drawn else None
            labels += self.tokenizer.encode(word) if sampled is None else sampled
        return labels if len(labels) <= most else None

    def _segmented(self, word: str, random: np.random.Generator) -> list[int] | None:
        """Draws a segmentation: sums from the left, and pieces from the right. None if the pieces cannot spell it."""
        pieces, longest = self._pieces
        spelt = self.tokenizer.spaced(word)
        sums = [0.0, *[-math.inf] * len(spelt)]  # log Σ exp(alpha · scores) over the segmentations of each prefix
        for end in range(1, len(spelt) + 1):
            parts = [sums[begin] + score for begin, _, score in self._ending(spelt, end, pieces, longest)]
            sums[end] = float(np.logaddexp.reduce(parts)) if parts else -math.inf
        if not math.isfinite(sums[-1]):
            return None
        labels, end = [], len(spelt)
        while end:
            choices = self._ending(spelt, end, pieces, longest)
            weights = np.exp([sums[begin] + score - sums[end] for begin, _, score in choices])
            begin, label, _ = choices[int(random.choice(len(choices), p=weights / weights.sum()))]
            labels.append(label)
            end = begin
        return labels[::-1]

    def _ending(
        self, spelt: str, end: int, pieces: dict[str, tuple[int, float]], longest: int
    ) -> list[tuple[int, int, float]]:
        """Returns begin, label and weighted score of each piece that ends at a place of a word."""
        begins = range(max(end - longest, 0), end)
        return [(begin, *pieces[spelt[begin:end]]) for begin in begins if spelt[begin:end] in pieces]

    @functools.cached_property
    def _pieces(self) -> tuple[dict[str, tuple[int, float]], int]:
        """Label and weighted score of each piece, and the length of the longest one."""
        found = {piece: (label, self.alpha * score) for piece, label, score in self.tokenizer.scored_pieces()}
        return found, max(map(len, found))

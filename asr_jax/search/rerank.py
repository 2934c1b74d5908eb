"""N-best lists in the order that a language model gives them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from asr_jax.core.errors import check_numbers
from asr_jax.search.hypotheses import Hypothesis
from asr_jax.search.language_model import load_kenlm
from asr_jax.search.word_scores import LN10


@dataclass(frozen=True)
class Reranking:
    """ctc score + lm_weight · ln 10 · log10 of the language model + word_bonus · number of words.

    Source: RustedBytes/w2v-bert-uk at commit adec09e, src/ctc.rs; its document calls it shallow fusion.
    """

    kenlm: str = ""
    """An n-gram model of words that KenLM reads; empty: none."""
    lm_weight: float = 0.45
    word_bonus: float = 0.0
    bos: bool = True
    """Whether the language model sees the begin of the sentence."""
    eos: bool = True
    """Whether it scores the end of the sentence."""

    def __post_init__(self) -> None:
        check_numbers(self, "lm_weight", "word_bonus")

    def build(self) -> "Reranker | None":
        """None where nothing is put in another order.

        Raises: UserError where the language model cannot be read.
        """
        return Reranker(self) if self.kenlm else None


class Reranker:
    """Puts n-best lists in another order."""

    def __init__(self, settings: Reranking) -> None:
        self._settings, self._model = settings, load_kenlm(settings.kenlm)

    def __call__(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        """The same texts and CTC scores with the language model's instead of what was fused; the best first, equal ones
        in the order that they had.
        """
        return sorted(map(self._scored, hypotheses), key=lambda hypothesis: -hypothesis.score)

    def _scored(self, hypothesis: Hypothesis) -> Hypothesis:
        settings = self._settings
        log10 = self._model.score(hypothesis.text, bos=settings.bos, eos=settings.eos)
        bonus = settings.word_bonus * len(hypothesis.words)
        return replace(hypothesis, lm_score=settings.lm_weight * LN10 * log10 + bonus)

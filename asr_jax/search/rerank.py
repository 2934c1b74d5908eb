"""Re-ranking of n-best lists with a language model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from asr_jax.core.settings import settings
from asr_jax.search.hypotheses import Hypothesis
from asr_jax.search.language_model import LanguageModel, load_kenlm, words_of_model
from asr_jax.search.word_scores import LN10


@settings
class Reranking(LanguageModel):
    """Settings of re-ranking.

    The score is `log-probability + lm_weight · ln 10 · log10(LM probability) + word_bonus · number of words`.

    Source: RustedBytes/w2v-bert-uk at commit adec09e, src/ctc.rs; its documentation calls it shallow fusion.
    """

    lm_weight = 0.45

    def build(self) -> Callable[[Sequence[Hypothesis]], list[Hypothesis]] | None:
        """Returns a function that sorts a list by the new scores, best first; None if there is no language model.

        Hypotheses with equal scores keep their order. Texts and log-probabilities are unchanged. The scores
        of this language model replace the scores of fusion.

        Raises:
            UserError: If the language model cannot be read.
        """
        if not self.kenlm:
            return None
        model = load_kenlm(self.kenlm)
        return lambda hypotheses: sorted((self._scored(each, model) for each in hypotheses), key=lambda one: -one.score)

    def _scored(self, hypothesis: Hypothesis, model: Any) -> Hypothesis:
        words = [each for word in hypothesis.words for each in words_of_model(word.text, model.__contains__)]
        log10 = model.score(" ".join(words), bos=self.bos, eos=self.eos)
        bonus = self.word_bonus * len(words)
        return replace(hypothesis, lm_score=self.lm_weight * LN10 * log10 + bonus)

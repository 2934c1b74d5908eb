"""Re-ranking of n-best lists with a language model."""

from collections.abc import Sequence
from dataclasses import replace

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

    def build(self) -> "Reranker | None":
        """Returns the re-ranker; None if there is no language model.

        Raises:
            UserError: If the language model cannot be read.
        """
        return Reranker(self) if self.kenlm else None


class Reranker:
    """Re-ranks n-best lists."""

    def __init__(self, settings: Reranking) -> None:
        self._settings, self._model = settings, load_kenlm(settings.kenlm)

    def __call__(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Returns the list sorted by the new scores, best first; hypotheses with equal scores keep their order.

        Texts and log-probabilities are unchanged. The language model's scores replace those of fusion.
        """
        return sorted(map(self._scored, hypotheses), key=lambda hypothesis: -hypothesis.score)

    def _scored(self, hypothesis: Hypothesis) -> Hypothesis:
        settings = self._settings
        words = [each for word in hypothesis.words for each in words_of_model(word.text, self._model.__contains__)]
        log10 = self._model.score(" ".join(words), bos=settings.bos, eos=settings.eos)
        bonus = settings.word_bonus * len(words)
        return replace(hypothesis, lm_score=settings.lm_weight * LN10 * log10 + bonus)

"""Searches of a CTC head: greedy search on the device, and prefix beam search as a stage on the host."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.settings import settings
from asr_jax.core.timed_tokens import TimedTokens
from asr_jax.search.beam_stage import BeamDecoding, BeamStage
from asr_jax.search.ctc_beam import CTCBeamSearch
from asr_jax.search.hypotheses import Search
from asr_jax.text.tokenizers import Tokenizer


@settings
class CTCDecoding(BeamDecoding):
    """Settings of the search in the output of a CTC head. With kind `beam`, it is prefix beam search."""

    search: Search = Search()
    """Settings of the beam search."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.fusion.unit == "labels":
            yield "fusion.unit is 'labels': expected 'words', the only unit that the search supports"

    def __str__(self) -> str:
        return "greedy" if self.kind == "greedy" else ", ".join([f"beam {self.search.beam_width}", *self._fused()])

    def host_stage(self, tokenizer: Tokenizer, *, num_shares: int = 1) -> "PrefixBeamSearch | None":
        return PrefixBeamSearch(self, tokenizer, num_shares=num_shares) if self.kind == "beam" else None


class PrefixBeamSearch(BeamStage):
    """Prefix beam search over log-probabilities, with language model, hot words, lexicon and re-ranking."""

    name = "prefix beam search"
    takes_frames = True

    def __init__(self, settings: CTCDecoding, tokenizer: Tokenizer, *, num_shares: int = 1) -> None:
        """Builds the search.

        Args:
            settings: Settings with kind `beam`.
            tokenizer: Tokenizer of the head's labels.
            num_shares: Number of processes that share the rows of a batch.

        Raises:
            UserError: If a file cannot be read or does not fit the vocabulary, or if labels are parts of characters.
        """
        super().__init__(settings, tokenizer, num_shares=num_shares)
        if self.spelling.has_bytes:
            raise UserError("the vocabulary has bytes of characters, which beam search does not support: use greedy")
        self._search = CTCBeamSearch(self.spelling, search=settings.search, scores=self.scores)

    def prepare(self, given: Frames) -> None:
        whole = jnp.zeros(given.values.shape, given.values.dtype)
        values, *_ = self.share(whole, np.zeros(len(whole), np.int32), [])
        with self.one_at_a_time:
            self._search.prepare(*values.shape[:2])

    def __call__(self, given: Frames, rows: Sequence[int]) -> TimedTokens:
        values, lengths = (array.addressable_data(0) for array in (given.values, given.lengths))
        values, lengths, rows = self.share(values, np.asarray(lengths), rows)
        with self.one_at_a_time:
            found = self._search(values, lengths)
        return self.listed(found, rows)

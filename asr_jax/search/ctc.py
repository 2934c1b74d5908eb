"""Searches of a CTC head: greedy search on the device, and prefix beam search as a stage on the host."""

import functools
from collections.abc import Iterator

from asr_jax.core.errors import UserError
from asr_jax.core.settings import settings
from asr_jax.search.base import HostStage, StreamSearch
from asr_jax.search.beam_stage import BeamDecoding, BeamStage
from asr_jax.search.ctc_beam import CTCBeamSearch
from asr_jax.search.ctc_beam_streams import CTCBeamStreams
from asr_jax.search.ctc_greedy import GreedyStreams
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

    def streams(self, stage: HostStage | None, *, num_rows: int, blank_id: int) -> StreamSearch:
        if stage is None:
            return GreedyStreams(num_rows, blank_id=blank_id)
        assert isinstance(stage, PrefixBeamSearch), stage
        return stage.streams(num_rows)


class PrefixBeamSearch(BeamStage):
    """Prefix beam search over log-probabilities, with language model, hot words, lexicon and re-ranking."""

    name = "prefix beam search"
    takes_frames = True

    def __init__(self, settings: CTCDecoding, tokenizer: Tokenizer, *, num_shares: int = 1) -> None:
        """Builds the search. Raises a UserError as `BeamStage`, or if labels are parts of characters."""
        super().__init__(settings, tokenizer, num_shares=num_shares)
        if self.spelling.has_bytes:
            raise UserError("the vocabulary has bytes of characters, which beam search does not support: use greedy")
        search = CTCBeamSearch(self.spelling, search=settings.search, scores=self.scores)
        self.search = lambda given: search(given.values, given.lengths)
        self.search_streams = functools.partial(CTCBeamStreams, search)

"""Searches of a transducer: greedy search on the device, and beam search as a stage on the host."""

import functools

from asr_jax.core.errors import UserError
from asr_jax.core.settings import Finite, PositiveFloat, PositiveInt, settings
from asr_jax.search.base import HostStage, StreamSearch
from asr_jax.search.beam_stage import BeamDecoding, BeamStage
from asr_jax.search.transducer_beam import TransducerBeamSearch, TransducerSearch
from asr_jax.search.transducer_beam_streams import TransducerBeamStreams
from asr_jax.search.transducer_greedy import GreedyTransducerStreams
from asr_jax.text.tokenizers import Tokenizer


@settings
class TransducerDecoding(BeamDecoding):
    """Settings of the search of a transducer. With kind `beam`, lists have several hypotheses."""

    max_symbols: PositiveInt = 10
    """Largest number of labels of one frame. 1: a label leaves no blank to its frame, as in icefall's modified beam
    search, which extends all hypotheses of a frame at once and is faster."""
    blank_penalty: Finite = 0.0
    """Number that is subtracted from the logits of the blank."""
    temperature: PositiveFloat = 1.0
    """Divisor of the logits. CAIMAN-ASR's beam search uses 1.4."""
    search: TransducerSearch = TransducerSearch()
    """Settings of the beam search."""

    def __str__(self) -> str:
        parts = ["greedy"] if self.kind == "greedy" else [f"beam {self.search.beam_width}"]
        if self.max_symbols != 10:
            parts.append(f"at most {self.max_symbols} label{'s' * (self.max_symbols > 1)} per frame")
        if self.blank_penalty:
            parts.append(f"blank penalty {self.blank_penalty:g}")
        if self.temperature != 1:
            parts.append(f"temperature {self.temperature:g}")
        return ", ".join([*parts, *self._fused()])

    def digest(self) -> str:
        if self.kind == "greedy":
            return f"transducer greedy {self.max_symbols} {self.blank_penalty:g}"
        return f"transducer {super().digest()}"

    def host_stage(self, tokenizer: Tokenizer, *, num_shares: int = 1) -> "TransducerBeamStage | None":
        return TransducerBeamStage(self, tokenizer, num_shares=num_shares) if self.kind == "beam" else None

    def streams(self, stage: HostStage | None, *, num_rows: int, blank_id: int) -> StreamSearch:
        if stage is None:
            return GreedyTransducerStreams(num_rows)
        assert isinstance(stage, TransducerBeamStage), stage
        return stage.streams(num_rows)


class TransducerBeamStage(BeamStage):
    """Beam search over projected frames, with language model, hot words, lexicon and re-ranking."""

    name = "beam search"

    def __init__(self, settings: TransducerDecoding, tokenizer: Tokenizer, *, num_shares: int = 1) -> None:
        """Builds the search. Raises a UserError as `BeamStage`, or if labels do not fit texts that are needed."""
        super().__init__(settings, tokenizer, num_shares=num_shares)
        if self.spelling.has_bytes and (self.scores or settings.reranking.kenlm or settings.search.same == "texts"):
            raise UserError(
                "the vocabulary has bytes of characters, which beam search does not support with fusion, re-ranking or "
                "search.same texts: leave them out, or use greedy"
            )
        if self.spelling.ends and settings.search.same == "texts":
            raise UserError(
                "the vocabulary has word boundaries that depend on two labels, which beam search does not support with "
                "search.same texts: use labels"
            )
        search = TransducerBeamSearch(
            self.spelling,
            search=settings.search,
            max_symbols=settings.max_symbols,
            temperature=settings.temperature,
            blank_penalty=settings.blank_penalty,
            scores=self.scores,
        )
        self.search = search
        self.search_streams = functools.partial(TransducerBeamStreams, search)

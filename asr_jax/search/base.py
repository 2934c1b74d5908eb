"""Interfaces that the searches of all heads share: their settings, and the stage of a search that runs on the host."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Int

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree
from asr_jax.core.settings import PositiveInt, settings
from asr_jax.core.timed_tokens import TimedTokens, TokenSequence
from asr_jax.text.tokenizers import Tokenizer


@settings
class Decoding:
    """Settings of a head's search. `str` returns its name for tables and results."""

    def digest(self) -> str:
        """Returns a text that is equal for two decodings if both find the same best texts."""
        raise NotImplementedError

    @property
    def gives_n_best(self) -> bool:
        """Whether results list the n-best hypotheses."""
        return False

    def host_stage(self, tokenizer: Tokenizer, *, num_shares: int = 1) -> "HostStage | None":
        """Returns the stage of the search that runs on the host; None if the whole search runs on the device.

        Args:
            tokenizer: Tokenizer of the head's labels.
            num_shares: Number of processes that share the rows of a batch. Each calls the stage with its own rows.

        Raises:
            UserError: If a language model or a lexicon cannot be read or does not fit the vocabulary.
        """
        return None

    def streams(self, stage: "HostStage | None", *, num_rows: int, blank_id: int) -> "StreamSearch":
        """Returns the search of streams, to which the outputs of `Head.search` are given.

        Args:
            stage: Result of `host_stage`.
            num_rows: Number of streams, which is that of the rows of `Head.search`.

        Raises:
            UserError: If the search cannot continue over windows of a stream.
        """
        raise UserError(
            f"the search {self} cannot recognise a stream, because it reads whole recordings: expected a CTC or a "
            "transducer head"
        )


class StreamSearch:
    """Search of several streams over windows of frames, as a stage on the host.

    Each row has a stream, which is a sequence of utterances. Frame numbers begin with the utterance.
    """

    variables: Tree = None
    """Variables of the head, for searches that apply its networks. They are set before the first window."""

    def take(self, found: Any, lengths: Int[np.ndarray, " B"], begins: Bool[np.ndarray, " B"]) -> None:
        """Searches the next window of each row.

        Args:
            found: Output of `Head.search` for the window.
            lengths: Number of frames of each row. 0: the row has no window.
            begins: Whether a row begins an utterance with this window.
        """
        raise NotImplementedError

    def hypotheses(self, row: int) -> list[TokenSequence]:
        """Returns the n-best list of the utterance of a row so far, best first, with one sequence at least."""
        raise NotImplementedError

    def final(self, row: int) -> list[TokenSequence]:
        """Returns the n-best list of an utterance that has ended."""
        return self.hypotheses(row)

    def num_settled(self, row: int) -> int:
        """Returns the number of first tokens of the best hypothesis that no further window changes."""
        raise NotImplementedError


@settings
class GreedyOrBeam(Decoding):
    """Settings of a search that is greedy or has a beam."""

    kind: Literal["greedy", "beam"] = "greedy"
    """greedy: the most likely label at each step; beam: beam search with n-best lists."""

    @property
    def gives_n_best(self) -> bool:
        return self.kind == "beam"


@settings
class BeamSize:
    """Settings of all beam searches."""

    beam_width: PositiveInt = 10
    """Number of hypotheses that continue to the next step."""
    num_best: PositiveInt = 10
    """Largest number of hypotheses in an n-best list."""


class HostStage:
    """Last stage of a search, for operations that a device cannot do, such as look-ups in an n-gram model."""

    name: str
    """Name of the stage in profiles."""
    takes_frames: ClassVar[bool] = False
    """Whether the stage takes log-probabilities of CTC as `Frames`.

    Long audio is computed in windows. By default, the stage runs on each window, and the token sequences are joined. A
    stage that takes frames runs on the joined frames of all windows, cut at pauses.
    """

    def prepare(self, given: Any) -> None:
        """Compiles the stage for outputs of `Head.search` with the shapes of `given`."""

    def __call__(self, given: Any, rows: Sequence[int]) -> TimedTokens:
        """Returns the n-best lists of some rows of a batch.

        Args:
            given: Output of `Head.search`, replicated on every device.
            rows: Row numbers; at most the rows of the batch divided by the number of shares, rounded up.
        """
        raise NotImplementedError

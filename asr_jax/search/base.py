"""What the searches of all heads have in common: their settings, and the part of a search that runs on the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asr_jax.core.timed_tokens import TimedTokens
from asr_jax.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Decoding:
    """Settings of a head's search. `str` of it is its name in tables and results."""

    def digest(self) -> str:
        """A text that is equal for two decodings if they find the same best texts."""
        raise NotImplementedError

    @property
    def gives_alternatives(self) -> bool:
        """Whether results list the n-best hypotheses."""
        return False

    def host_stage(self, tokenizer: Tokenizer, *, num_shares: int = 1) -> "HostStage | None":
        """The part of the search that runs on the host; None if all of it runs on the device.

        Args:
            num_shares: number of processes that share the rows of a batch, each calling the stage with its own.

        Raises: UserError if a language model or a lexicon cannot be read, or does not fit the vocabulary.
        """
        return None


class HostStage:
    """The last part of a search, for what a device cannot do, such as look-ups in an n-gram model."""

    name: str
    """In profiles."""

    def prepare(self, given: Any) -> None:
        """Compiles the stage for outputs of `Head.search` of these shapes."""

    def __call__(self, given: Any, rows: Sequence[int]) -> TimedTokens:
        """The n-best lists of some rows of a batch, at most a share of them, rounded up.

        Args:
            given: what `Head.search` returned, replicated on every device.
        """
        raise NotImplementedError

"""What a head is: it turns an encoder's output into loss terms, and into what decoding needs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import OUTPUT, Batch, Encoded
from asr_jax.core.pytrees import Tree
from asr_jax.core.sums import Sums
from asr_jax.search.base import Decoding


class Head(nn.Module):
    """A head's parameter names are part of the checkpoint's format."""

    recognises: ClassVar[bool] = False
    """Whether `search` finds token sequences."""
    aligns: ClassVar[bool] = False
    """Whether `log_probs` gives log-probabilities of CTC, by which texts are aligned."""
    needs_mask: ClassVar[bool] = False
    """Whether it is of the frames that the encoder hides: they are hidden in evaluation as well then."""

    @property
    def tap(self) -> str:
        """What it reads: one of the encoder's taps, or its output."""
        return OUTPUT

    def __call__(self, encoded: Encoded, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        """Loss terms and metrics by name, as sums over the batch. A term's weight is the one that `weight` gives."""
        raise NotImplementedError

    def denominators(
        self, lengths: Mapping[str, Int[Array, " B"]], batch: Batch, *, mask: Bool[Array, "B T"] | None
    ) -> dict[str, Float[Array, ""]]:
        """The weight of each loss term, from lengths, labels and masks alone: known before any gradient. `lengths`: how
        many frames each row has in the encoder's output, by the name `core.batch.OUTPUT`, and in each of its taps;
        `mask`: the frames that the encoder hides, where it does.

        Names that `__call__` gives and this does not are metrics: they are logged and send no gradient.
        """
        raise NotImplementedError

    def search(self, encoded: Encoded, decoding: Decoding, state: Tree = None) -> tuple[Any, Tree]:
        """Token sequences of each row, as `TimedTokens`, or what the decoding's stage on the host takes to find them.
        It is called with the head's own parameters bound, and shapes are static.

        Args:
            decoding: of the class that the head's settings have.
            state: what the call for the frames before returned; None at the beginning of an utterance.

        Returns:
            What was found, and the state for the next frames; None if the search keeps none.
        """
        raise NotImplementedError

    def emit(self, encoded: Encoded) -> Any:
        """What the head computes of each frame, such as log-probabilities; for tools that look at frames."""
        raise NotImplementedError


@dataclass(frozen=True)
class HeadSettings:
    """Settings of a head; `build` makes its module."""

    recognises: ClassVar[bool] = False
    """Whether it learns from labels, and texts are found by it."""
    aligns: ClassVar[bool] = False
    """Whether texts are aligned by it: it gives log-probabilities of CTC."""

    scale: float = 1.0
    """Weight of the head's terms in the sum of all heads' losses."""

    def __post_init__(self) -> None:
        if self.scale < 0:
            raise ValueError(f"scale is {self.scale}: expected 0 or more")

    def check(self, *, taps: Collection[str], views: int) -> None:
        """Raises: ValueError where the head needs what the model does not have. `taps`: of its encoder; `views`: of
        each utterance while training.
        """

    @property
    def search_settings(self) -> Decoding | None:
        """How texts are found; None for a head that finds none. A subclass with a field `decoding` returns it."""
        return getattr(self, "decoding", None)

    def frames_needed(self, num_labels: Any, num_repeats: Any) -> Any:
        """The least number of frames in which the head can find so many labels, of which so many equal the label
        before; for ints and arrays. Utterances with fewer frames are dropped from training by name.
        """
        return 0 * num_labels

    def chance(self) -> dict[str, float]:
        """Of some of its metrics, by name, what they are where nothing is learned."""
        return {}

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> Head:
        """The module for a vocabulary of `vocab_size` labels, blank included."""
        raise NotImplementedError

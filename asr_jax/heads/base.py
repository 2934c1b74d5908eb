"""What a head is: it turns an encoder's output into loss terms, and into what decoding needs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import OUTPUT, Batch, Encoded
from asr_jax.core.sums import Sums


class Head(nn.Module):
    """A head's parameter names are part of the checkpoint's format."""

    needs_mask: ClassVar[bool] = False
    """Whether it is of the frames that the encoder hides: they are hidden in evaluation as well then."""

    @property
    def tap(self) -> str:
        """What it reads: one of the encoder's taps, or its output."""
        return OUTPUT

    def __call__(self, encoded: Encoded, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        """Loss terms and metrics by name, as sums over the batch. A term's weight is the one that `weight` gives."""
        raise NotImplementedError

    def weight(
        self, lengths: Mapping[str, Int[Array, " B"]], batch: Batch, *, mask: Bool[Array, "B T"] | None
    ) -> dict[str, Float[Array, ""]]:
        """The weight of each loss term, from lengths, labels and masks alone: known before any gradient. `lengths`: how
        many frames each row has in the encoder's output, by the name `core.batch.OUTPUT`, and in each of its taps;
        `mask`: the frames that the encoder hides, where it does.

        Names that `__call__` gives and this does not are metrics: they are logged and send no gradient.
        """
        raise NotImplementedError

    def emit(self, encoded: Encoded) -> Any:
        """What the head's decoder needs."""
        raise NotImplementedError


@dataclass(frozen=True)
class HeadSettings:
    """Settings of a head; `build` makes its module."""

    recognises: ClassVar[bool] = False
    """Whether it learns from labels, and texts are found by it."""

    scale: float = 1.0
    """Weight of the head's terms in the sum of all heads' losses."""

    def __post_init__(self) -> None:
        if self.scale < 0:
            raise ValueError(f"scale is {self.scale}: expected 0 or more")

    def check(self, *, taps: Collection[str], views: int) -> None:
        """Raises: ValueError where the head needs what the model does not have. `taps`: of its encoder; `views`: of
        each utterance while training."""

    def chance(self) -> dict[str, float]:
        """Of some of its metrics, by name, what they are where nothing is learned."""
        return {}

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> Head:
        """The module for a vocabulary of `vocab_size` labels, blank included."""
        raise NotImplementedError

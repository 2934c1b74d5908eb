"""What an encoder is, and the Recogniser that joins front-end, encoder and heads."""

from dataclasses import dataclass
from typing import Any, overload

from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from asr_jax.core.batch import Encoded, Frames


class Encoder(nn.Module):
    """Frames in, frames out. A subclass's parameter names are part of the checkpoint's format."""

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        """`step`: updates applied so far when training (schedules read it), None when evaluating."""
        raise NotImplementedError

    @overload
    def output_length(self, num_frames: int) -> int: ...
    @overload
    def output_length(self, num_frames: Any) -> Any: ...
    def output_length(self, num_frames: Any) -> Any:
        """Frames out for frames in, for ints and arrays; never negative."""
        raise NotImplementedError


@dataclass(frozen=True)
class EncoderSettings:
    """Sizes and rates of an encoder; `build` makes its module."""

    def build(self, *, dtype: DTypeLike) -> Encoder:
        """The module, computing in `dtype` with float32 parameters."""
        raise NotImplementedError

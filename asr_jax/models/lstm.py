"""LSTM encoder of RNN-T, with stacking of frames between its layers.

Source: He et al. 2018 (arXiv:1811.06621); MLPerf's RNN-T reference; CAIMAN-ASR's rnnt/model.py at version 1.14.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Encoded, Frames, zero_padding
from asr_jax.core.errors import check_numbers
from asr_jax.models.base import Encoder, EncoderOfMels
from asr_jax.nn.recurrent.lstm import LSTM
from asr_jax.nn.recurrent.lstm_cudnn import Implementation
from asr_jax.nn.schedules import Step


@dataclass(frozen=True)
class LSTMEncoder(EncoderOfMels):
    """Settings of an LSTM encoder. The defaults are those of CAIMAN-ASR's base model."""

    num_mels: int = 240
    """Number of values of an input frame. CAIMAN-ASR stacks three frames of 80 mel bins."""
    dim: int = 1024
    """Width of the layers."""
    layers_before: int = 2
    """Number of layers before frames are stacked."""
    layers_after: int = 6
    """Number of layers after frames are stacked."""
    stack: int = 2
    """Number of frames that are stacked into one. The frame rate falls by this factor."""
    mask_padding: bool = True
    """Whether frames beyond the end of a row are zeros where frames are stacked. False, as in CAIMAN-ASR and MLPerf:
    the last output frame of a row depends on its padding if its length is not a multiple of `stack`."""
    dropout: float = 0.1
    """Dropout rate of the output of each layer."""
    batch_norm: bool = False
    """Whether the output of each layer is normalised with the statistics of the batch."""
    forget_bias: float | None = 1.0
    """Initial bias of the forget gates. None: uniform, as other biases."""
    weight_scale: float = 0.5
    """Factor of all other initial values."""
    implementation: Implementation = "auto"
    """Implementation of the LSTM: scan, a loop of JAX, or cudnn, cuDNN's in training on NVIDIA GPUs. auto: the scan."""

    def __post_init__(self) -> None:
        check_numbers(self, "layers_before", "layers_after", "stack", "dim", least=1)
        check_numbers(self, "weight_scale", above=0)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: expected at least 0 and less than 1")

    @classmethod
    def testing(cls) -> "LSTMEncoder":
        """CAIMAN-ASR's testing model."""
        return cls(layers_after=3)

    @classmethod
    def base(cls) -> "LSTMEncoder":
        """CAIMAN-ASR's base model."""
        return cls()

    @classmethod
    def large(cls) -> "LSTMEncoder":
        """CAIMAN-ASR's large model."""
        return cls(dim=1536)

    def depths(self, path: str) -> tuple[int, ...]:
        part, layer = path.split("/")[:2]
        number = int(layer.removeprefix("layer_").removeprefix("norm_"))
        return (number + (self.layers_before if part == "after" else 0),)

    def num_depths(self) -> int:
        return self.layers_before + self.layers_after

    def build(self, *, dtype: DTypeLike) -> "LSTMEncoderModule":
        return LSTMEncoderModule(self, dtype)


class LSTMEncoderModule(Encoder):
    """LSTM encoder, [B T num_mels] to [B ⌈T/stack⌉ dim]."""

    settings: LSTMEncoder
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        settings, lengths = self.settings, frames.lengths
        settings.check_frames(frames.values)
        x = self._layers("before", settings.layers_before, frames.values, lengths, step)
        x = stacked(zero_padding(x, lengths) if settings.mask_padding else x, settings.stack)
        lengths = self.output_length(lengths)
        x = self._layers("after", settings.layers_after, x, lengths, step)
        return Encoded(Frames(x, lengths))

    def _layers(
        self, name: str, num_layers: int, x: Float[Array, "B T D"], lengths: Int[Array, " B"], step: Step
    ) -> Float[Array, "B T E"]:
        settings = self.settings
        module = LSTM(
            settings.dim, num_layers, settings.dropout, settings.forget_bias, settings.weight_scale,
            settings.batch_norm, self.dtype, settings.implementation, name=name,
        )  # fmt: skip
        return module(x, lengths, step=step, passed_after=lengths)[0]

    def output_length(self, num_frames: Any) -> Any:
        return -(-num_frames // self.settings.stack)


def stacked(x: Float[Array, "B T D"], num: int) -> Float[Array, "B S E"]:
    """Concatenates each `num` successive frames. Missing frames at the end are zeros."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % num), (0, 0)))
    return x.reshape(len(x), -1, num * x.shape[2])

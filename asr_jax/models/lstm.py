"""LSTM encoder of RNN-T, with stacking of frames between its layers.

Source: He et al. 2018 (arXiv:1811.06621); MLPerf's RNN-T reference; CAIMAN-ASR's rnnt/model.py at version 1.14.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Encoded, Frames, zero_padding
from asr_jax.core.settings import PositiveInt, settings
from asr_jax.models.encoder import Encoder, EncoderOfMels, StreamWindow
from asr_jax.nn.recurrent.lstm import LSTM, LSTMSettings, LSTMState, state_at
from asr_jax.nn.schedules import Step

STREAM_OUTPUTS = 4
"""Number of output frames of a window of a stream. Results do not depend on it: fewer frames cost time for each window,
and more frames delay results. Four frames of CAIMAN-ASR's models are 240 ms."""
States = dict[str, LSTMState]
"""State of the layers before and after frames are stacked, with arrays [B L H]."""


@settings
class LSTMEncoder(LSTMSettings, EncoderOfMels):
    """Settings of an LSTM encoder. The defaults are those of CAIMAN-ASR's base model."""

    dropout = 0.1
    num_mels = 240
    dim: PositiveInt = 1024
    """Width of the layers."""
    layers_before: PositiveInt = 2
    """Number of layers before frames are stacked."""
    layers_after: PositiveInt = 6
    """Number of layers after frames are stacked."""
    stack: PositiveInt = 2
    """Number of frames that are stacked into one. The frame rate falls by this factor."""

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

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        return Encoded(self._encoded(frames, None, step)[1])

    def output_length(self, num_frames: Any) -> Any:
        return -(-num_frames // self.settings.stack)

    @property
    def stream_window(self) -> StreamWindow:
        size = STREAM_OUTPUTS * self.settings.stack
        return StreamWindow(size=size, shift=size, outputs=STREAM_OUTPUTS)

    def initial_state(self, num_rows: int) -> States:
        settings = self.settings

        def zeros(num_layers: int) -> LSTMState:
            values = jnp.zeros((num_rows, num_layers, settings.dim), self.dtype)
            return LSTMState(values, values)

        return {"before": zeros(settings.layers_before), "after": zeros(settings.layers_after)}

    def stream(self, state: States, frames: Frames) -> tuple[States, Frames]:
        return self._encoded(frames, state, None)

    @nn.compact
    def _encoded(self, frames: Frames, state: States | None, step: Step) -> tuple[States, Frames]:
        """Returns the state after the frames, which is empty without a state before them, and the output frames."""
        settings, lengths = self.settings, frames.lengths
        settings.check_frames(frames.values)
        after: States = {}

        def layers(name: str, num_layers: int, x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Array:
            module = LSTM(settings.dim, num_layers, settings, self.dtype, name=name)
            before = None if state is None else LSTMState(*(values.swapaxes(0, 1) for values in state[name]))
            x, states = module(x, lengths, before, step=step, passed_after=lengths)
            if before is not None and states is not None:
                is_new, last = lengths[None, :, None] > 0, state_at(states, lengths)
                pairs = zip(last, before, strict=True)
                after[name] = LSTMState(*(jnp.where(is_new, new, old).swapaxes(0, 1) for new, old in pairs))
            return x

        x = layers("before", settings.layers_before, frames.values, lengths)
        x = stacked(zero_padding(x, lengths) if settings.mask_padding else x, settings.stack)
        lengths = self.output_length(lengths)
        return after, Frames(layers("after", settings.layers_after, x, lengths), lengths)


def stacked(x: Float[Array, "B T D"], num: int) -> Float[Array, "B S E"]:
    """Concatenates each `num` successive frames. Missing frames at the end are zeros."""
    rows, num_frames, width = x.shape
    num_stacked = -(-num_frames // num)
    x = jnp.pad(x, ((0, 0), (0, num_stacked * num - num_frames), (0, 0)))
    return x.reshape(rows, num_stacked, num * width)

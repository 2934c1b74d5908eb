"""SAN-M, the encoder of FunASR's Paraformer: layers of self-attention with memory and of feed-forward modules.

Source: Gao et al. 2020 (arXiv:2006.01713); `SANMEncoder` in FunASR's funasr/models/sanm/encoder.py at commit 3c58cb56.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.audio.features import FrontEnd
from asr_jax.core.batch import Encoded, Frames, length_mask
from asr_jax.core.errors import check_numbers
from asr_jax.models.base import Encoder, EncoderSettings
from asr_jax.nn.decoders.sanm import NORM_EPS, MemoryAttention, positions_from_one
from asr_jax.nn.layer_stack import LayerInputs, layer_stack
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import layer_norm, normed
from asr_jax.nn.remat import Remat
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout


@dataclass(frozen=True)
class SANM(EncoderSettings):
    """Settings of SAN-M. The defaults are the encoder of FunASR's large Paraformer.

    The encoder does not change the frame rate: `audio.presets.funasr` stacks frames to 16.7 Hz.
    """

    input_dim: int = 560
    """Number of values of an input frame. Must be even."""
    dim: int = 512
    """Width of the layers and of the output. Must be a multiple of num_heads."""
    num_layers: int = 50
    """Number of layers. The first one maps input_dim values to dim values."""
    num_heads: int = 4
    """Number of attention heads."""
    feedforward_dim: int = 2048
    """Hidden width of the feed-forward modules."""
    kernel_size: int = 11
    """Taps of the memory blocks."""
    memory_shift: int = 0
    """Number of taps by which the memory blocks are shifted to the past (FunASR's sanm_shfit)."""
    norm_first: bool = True
    """Whether norms precede the modules of a layer. Otherwise they follow the residual sums, and there is no last
    norm."""
    dropout: float = 0.1
    """Dropout rate within the feed-forward modules and after each module of a layer."""
    attention_dropout: float = 0.1
    """Dropout rate of the attention weights and of the memory."""
    remat: Remat = "elementwise"
    """Rematerialisation policy of the layers (see `nn.remat`): none, elementwise, products or layers, in the order of
    decreasing memory."""
    taps: tuple[str, ...] = ()
    """Inner outputs for heads, with the last norm: "layer_0", "layer_1", ... With any, the outputs of all layers are
    stored."""

    def __post_init__(self) -> None:
        check_numbers(self, "input_dim", "dim", "num_layers", "num_heads", "feedforward_dim", "kernel_size", least=1)
        check_numbers(self, "memory_shift", least=0)
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: expected at least 0 and less than 1")
        if self.input_dim % 2 or self.input_dim < 4:
            raise ValueError(f"input_dim is {self.input_dim}: expected an even number of 4 or more")
        if self.dim % self.num_heads:
            raise ValueError(f"dim is {self.dim}: expected a multiple of num_heads, {self.num_heads}")
        known = {f"layer_{number}" for number in range(self.num_layers)}
        if not known >= set(self.taps):
            raise ValueError(f"taps is {self.taps}: expected names from layer_0 to layer_{self.num_layers - 1}")

    @classmethod
    def tiny(cls, **changes: Any) -> "SANM":
        """Four layers with 1.1 M parameters for frames of 560 values, for two CPU cores; not published."""
        return cls(**{"dim": 128, "num_layers": 4, "num_heads": 4, "feedforward_dim": 384, **changes})

    def check(self, front_end: FrontEnd) -> None:
        if front_end.num_features != self.input_dim:
            raise ValueError(
                f"encoder.input_dim is {self.input_dim}, but frames of the front-end have {front_end.num_features} "
                "values: set both to the same number (audio.presets.funasr has 560)"
            )

    def depths(self, path: str) -> tuple[int, ...]:
        """Depths: 0 for the first layer, 1 to num_layers - 1 for the others, and that of the last one for its norm."""
        if path.startswith("layers/"):
            return tuple(range(1, self.num_layers))
        return (0,) if path.startswith("first/") else (self.num_layers - 1,)

    def num_depths(self) -> int:
        return self.num_layers

    def build(self, *, dtype: DTypeLike) -> "SANMEncoder":
        return SANMEncoder(self, dtype)


class SANMEncoder(Encoder):
    """SAN-M encoder, [B T input_dim] to [B T dim]."""

    settings: SANM
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        settings, values, lengths = self.settings, frames.values, frames.lengths
        if values.shape[-1] != settings.input_dim:
            raise ValueError(f"frames have {values.shape[-1]} values: expected input_dim, {settings.input_dim}")
        positions = jnp.asarray(positions_from_one(values.shape[1], settings.input_dim))
        x = (values * settings.dim**0.5 + positions[None]).astype(self.dtype)
        inputs = LayerInputs(length_mask(lengths, x.shape[1])[:, None], lengths, step)
        x, inner = SANMLayer(settings, self.dtype, name="first")(x, inputs)
        outputs = [] if inner is None else [inner[None]]
        if settings.num_layers > 1:
            layers = layer_stack(SANMLayer, settings.num_layers - 1, settings.remat)(
                settings, self.dtype, name="layers"
            )
            x, inner = layers(x, inputs)
            outputs += [] if inner is None else [inner]
        norm = layer_norm(NORM_EPS, name="norm") if settings.norm_first else lambda x: x
        inners = jnp.concatenate(outputs) if outputs else x[None]
        taps = {
            name: Frames(norm(inners[int(name.removeprefix("layer_"))]).astype(self.dtype), lengths)
            for name in settings.taps
        }
        return Encoded(frames=Frames(norm(x).astype(self.dtype), lengths), taps=taps)

    def output_length(self, num_frames: Any) -> Any:
        return num_frames

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        return dict.fromkeys(self.settings.taps, num_frames)


class SANMLayer(nn.Module):
    """SAN-M layer: attention with memory, and a feed-forward module.

    If the width changes, attention has no residual connection. The signature is that of a body of `nn.scan`. With taps,
    the layer also returns its output for the scan to collect.
    """

    settings: SANM
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T E"], inputs: LayerInputs
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"] | None]:
        settings, step = self.settings, inputs.step
        attention = MemoryAttention(
            settings.dim, settings.num_heads, settings.kernel_size, settings.memory_shift, settings.attention_dropout,
            self.dtype, name="attention",
        )  # fmt: skip
        y = normed("attention_norm", x, NORM_EPS) if settings.norm_first else x
        y = self._dropout(attention(y, inputs.allowed, inputs.lengths, step=step), step)
        x = x + y if x.shape[-1] == settings.dim else y
        x = x if settings.norm_first else normed("attention_norm", x, NORM_EPS)
        y = normed("norm", x, NORM_EPS) if settings.norm_first else x
        y = nn.relu(Linear(settings.feedforward_dim, dtype=self.dtype, name="in")(y))
        y = Linear(settings.dim, dtype=self.dtype, name="out")(self._dropout(y, step))
        x += self._dropout(y, step)
        x = x if settings.norm_first else normed("norm", x, NORM_EPS)
        return x, x if settings.taps else None

    def _dropout(self, x: Float[Array, "B T D"], step: Step) -> Float[Array, "B T D"]:
        return Dropout(self.settings.dropout)(x, step=step)

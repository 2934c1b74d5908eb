"""SAN-M, the encoder of FunASR's Paraformer: layers of self-attention with memory and of feed-forward modules.

Source: Gao et al. 2020 (arXiv:2006.01713); `SANMEncoder` in FunASR's funasr/models/sanm/encoder.py at commit 3c58cb56.
"""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Encoded, Frames, length_mask
from asr_jax.core.settings import NonNegativeInt, PositiveInt, settings
from asr_jax.models.encoder import AttentionEncoder, Encoder, EncoderOfMels
from asr_jax.nn.decoders.sanm import NORM_EPS, MemoryAttention, positions_from_one
from asr_jax.nn.layer_stack import LayerInputs, layer_stack
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import layer_norm, normed
from asr_jax.nn.stochastic import Dropout


@settings
class SANM(AttentionEncoder, EncoderOfMels):
    """Settings of SAN-M. The defaults are the encoder of FunASR's large Paraformer.

    The encoder does not change the frame rate: `audio.presets.funasr` stacks frames to 16.7 Hz.
    """

    num_mels = 560
    num_layers = 50
    num_heads = 4
    feedforward_dim = 2048
    kernel_size: PositiveInt = 11
    """Taps of the memory blocks."""
    memory_shift: NonNegativeInt = 0
    """Number of taps by which the memory blocks are shifted to the past (FunASR's sanm_shfit)."""
    norm_first: bool = True
    """Whether norms precede the modules of a layer. Otherwise they follow the residual sums, and there is no last
    norm."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.num_mels % 2 or self.num_mels < 4:
            yield f"num_mels is {self.num_mels}: expected an even number of 4 or more"

    @classmethod
    def tiny(cls, **changes: Any) -> "SANM":
        """Four layers with 1.1 M parameters for frames of 560 values, for two CPU cores; not published."""
        return cls(**{"dim": 128, "num_layers": 4, "num_heads": 4, "feedforward_dim": 384, **changes})

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
    """SAN-M encoder, [B T num_mels] to [B T dim]."""

    settings: SANM
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        settings, values, lengths = self.settings, frames.values, frames.lengths
        settings.check_frames(values)
        positions = jnp.asarray(positions_from_one(values.shape[1], settings.num_mels))
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
            settings.dim,
            settings.num_heads,
            settings.kernel_size,
            settings.memory_shift,
            settings.attention_dropout,
            self.dtype,
            name="attention",
        )
        y = normed("attention_norm", x, NORM_EPS) if settings.norm_first else x
        y = Dropout(settings.dropout)(attention(y, inputs.allowed, inputs.lengths, step=step), step=step)
        x = x + y if x.shape[-1] == settings.dim else y
        x = x if settings.norm_first else normed("attention_norm", x, NORM_EPS)
        y = normed("norm", x, NORM_EPS) if settings.norm_first else x
        y = nn.relu(Linear(settings.hidden_dim, dtype=self.dtype, name="in")(y))
        y = Linear(settings.dim, dtype=self.dtype, name="out")(Dropout(settings.dropout)(y, step=step))
        x += Dropout(settings.dropout)(y, step=step)
        x = x if settings.norm_first else normed("norm", x, NORM_EPS)
        return x, x if settings.taps else None

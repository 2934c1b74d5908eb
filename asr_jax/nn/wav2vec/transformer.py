"""Position embedding and attention of wav2vec 2.0, and shortening of the frames between its layers (Hourglass)."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from asr_jax.core.devices import traced_for
from asr_jax.core.shapes import DimSize
from asr_jax.kernels.grouped_conv.api import grouped_conv
from asr_jax.nn.activations import gelu
from asr_jax.nn.attention import attention_weights
from asr_jax.nn.linear import Linear, per_channel
from asr_jax.nn.positions import rotated
from asr_jax.nn.remat import saved
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout

INITIAL_DEVIATION = 0.02
"""Standard deviation of the initial weights of all projections, as in BERT."""
Resample = Literal["naive", "linear"]
"""Method of shortening and lengthening. naive: averages and repeats frames. linear: projects concatenated frames."""


class PositionalConv(nn.Module):
    """Grouped convolution with a large kernel, and a GELU. It computes in float32, since the sums have many terms.

    Weight normalisation (Salimans and Kingma 2016, arXiv:1602.07868) has one gain per tap. With an even number of taps,
    the left context has one frame more than the right context.

    Source: `make_conv_pos` in fairseq/models/wav2vec/wav2vec2.py at commit 3d262bb2.
    """

    kernel_size: int
    groups: int

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Computes the position embedding of `x`, which must be 0 beyond each row's length."""
        width, taps = x.shape[-1], self.kernel_size
        shape = (taps, width // self.groups, width)
        deviation = (4.0 / (taps * width)) ** 0.5
        direction = self.param("direction", nn.initializers.normal(deviation), shape)
        norm = jnp.sqrt(jnp.sum(direction**2, axis=(1, 2)))
        gain = self.param("gain", lambda _: norm)
        bias = self.param("bias", nn.initializers.zeros, (width,))
        kernel = direction * (gain / norm)[:, None, None]
        y = saved(grouped_conv(x.astype(jnp.float32), kernel))
        return gelu(y + per_channel(bias, y)).astype(x.dtype)


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention with biases in all projections.

    Rotary positions rotate the whole width of queries and keys instead of each head, as in NVIDIA's wav2vec 2.0.

    Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2; DeepLearningExamples at commit 729963dd,
    common/fairseq/modules/multihead_attention.py.
    """

    num_heads: int
    dropout: float
    """Dropout rate of the attention weights."""
    rotary: bool
    """Whether queries and keys have rotary positions."""
    fused: bool = False
    """Whether `jax.nn.dot_product_attention` computes attention, without dropout. On NVIDIA's GPUs in half precision it
    uses cuDNN, which does not store the scores in memory."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], allowed: Bool[Array, "B 1 T"], *, step: Step) -> Float[Array, "B T D"]:
        """Applies attention to `x`."""
        query, key, value = (
            Linear(x.shape[-1], deviation=INITIAL_DEVIATION, dtype=self.dtype, name=name)(x)
            for name in ("query", "key", "value")
        )
        if self.rotary:
            query, key = (rotated(each[:, :, None], 10000)[:, :, 0] for each in (query, key))
        query, key, value = (each.reshape(*x.shape[:2], self.num_heads, -1) for each in (query, key, value))
        if self.fused:
            mixed = fused_attention(query, key, value, allowed)
        else:
            weights = Dropout(self.dropout)(attention_weights(query, key, allowed), step=step)
            mixed = jnp.einsum("bhts,bshc->bthc", weights, value)
        mixed = mixed.reshape(x.shape)
        return Linear(x.shape[-1], deviation=INITIAL_DEVIATION, dtype=self.dtype, name="out")(mixed)


def fused_attention(
    query: Float[Array, "B T H C"],
    key: Float[Array, "B T H C"],
    value: Float[Array, "B T H C"],
    allowed: Bool[Array, "B 1 T"],
) -> Float[Array, "B T H C"]:
    """Attention by `jax.nn.dot_product_attention`: by cuDNN on GPUs in half precision, otherwise by XLA.

    Args:
        allowed: Keys (last axis) that queries may attend to: the first keys of each row. A row without allowed keys is
            padding; its first key is used to keep its output finite.
    """
    lengths = jnp.maximum(allowed.sum(axis=(1, 2)), 1).astype(jnp.int32)
    has_kernel = traced_for().platform == "gpu" and query.dtype in (jnp.float16, jnp.bfloat16)
    return jax.nn.dot_product_attention(
        query, key, value, key_value_seq_lengths=lengths, implementation="cudnn" if has_kernel else "xla"
    )


class Shorten(nn.Module):
    """Shortens each `factor` frames to one. The last group of frames is padded with zeros."""

    factor: int
    resample: Resample
    """Method: naive averages the frames, and linear projects their concatenation."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B S D"]:
        rows, num_frames, width = x.shape
        num_groups = -(-num_frames // self.factor)
        x = jnp.pad(x, ((0, 0), (0, num_groups * self.factor - num_frames), (0, 0)))
        if self.resample == "naive":
            return x.reshape(rows, num_groups, self.factor, width).mean(axis=2)
        side_by_side = x.reshape(rows, num_groups, self.factor * width)
        return Linear(width, deviation=INITIAL_DEVIATION, dtype=self.dtype, name="project")(side_by_side)


class Lengthen(nn.Module):
    """Lengthens each frame to `factor` frames, and truncates the result to `num_frames` frames."""

    factor: int
    resample: Resample
    """Method: naive repeats each frame, and linear projects it to `factor` frames."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B S D"], num_frames: DimSize) -> Float[Array, "B T D"]:
        rows, _, width = x.shape
        if self.resample == "linear":
            x = Linear(self.factor * width, deviation=INITIAL_DEVIATION, dtype=self.dtype, name="project")(x)
            x = x.reshape(rows, -1, width)
        else:
            x = jnp.repeat(x, self.factor, axis=1)
        return x[:, :num_frames]

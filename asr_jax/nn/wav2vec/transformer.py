"""BERT-style Transformer layers of wav2vec 2.0, and shortening of the frames between them (Hourglass)."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.core.devices import traced_for
from asr_jax.nn.activations import ACTIVATIONS, ActivationName
from asr_jax.nn.attention import attention_weights
from asr_jax.nn.layer_stack import LayerInputs, layer_stack
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import normed
from asr_jax.nn.positions import rotated
from asr_jax.nn.remat import Remat
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout, unless_left_out

INITIAL_DEVIATION = 0.02
"""Standard deviation of the initial weights of all projections, as in BERT."""
Resample = Literal["naive", "linear"]
"""Method of shortening and lengthening. naive: averages and repeats frames. linear: projects concatenated frames."""


class TransformerSizes(NamedTuple):
    """Sizes and behaviour of a layer."""

    num_heads: int
    feedforward_dim: int
    norm_first: bool
    """Whether norms precede attention and the feed-forward module. Otherwise they follow the residual sums."""
    dropout: float
    attention_dropout: float
    activation_dropout: float
    layer_drop: float
    rotary: bool
    fused_attention: bool
    remat: Remat
    gives_taps: bool
    dtype: DTypeLike
    activation: ActivationName = "gelu"
    """Activation of the feed-forward module."""


class Transformer(nn.Module):
    """Stack of Transformer layers."""

    sizes: TransformerSizes
    num_layers: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, step: Step
    ) -> tuple[Float[Array, "B T D"], Float[Array, "L B T D"] | None]:
        """Returns the output of the last layer, and those of all layers (None without `sizes.gives_taps`)."""
        layers = layer_stack(TransformerLayer, self.num_layers, self.sizes.remat)(self.sizes, name="layers")
        x, inner = layers(x, LayerInputs(length_mask(lengths, x.shape[1])[:, None], lengths, step))
        return x, inner


class TransformerLayer(nn.Module):
    """Transformer layer: attention and a feed-forward module, each with a norm and a residual connection.

    Training skips the layer in some calls (LayerDrop). The signature is that of a body of `nn.scan`.

    Source: `TransformerSentenceEncoderLayer` in fairseq/models/wav2vec/wav2vec2.py at commit 3d262bb2.
    """

    sizes: TransformerSizes

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], inputs: LayerInputs
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"] | None]:
        x = unless_left_out(
            self, lambda layer, x: layer.transformed(x, inputs), x, rate=self.sizes.layer_drop, step=inputs.step
        )
        return x, x if self.sizes.gives_taps else None

    @nn.nowrap
    def transformed(self, x: Float[Array, "B T D"], inputs: LayerInputs) -> Float[Array, "B T D"]:
        """Computes the layer's output without LayerDrop."""
        sizes, step = self.sizes, inputs.step
        attention = MultiHeadAttention(
            sizes.num_heads, sizes.attention_dropout, sizes.rotary, sizes.fused_attention, sizes.dtype, name="attention"
        )
        y = normed("attention_norm", x) if sizes.norm_first else x
        x += Dropout(sizes.dropout)(attention(y, inputs.allowed, step=step), step=step)
        x = x if sizes.norm_first else normed("attention_norm", x)
        y = normed("norm", x) if sizes.norm_first else x
        y = ACTIVATIONS[sizes.activation](self._linear("in", sizes.feedforward_dim, y))
        y = self._linear("out", x.shape[-1], Dropout(sizes.activation_dropout)(y, step=step))
        x += Dropout(sizes.dropout)(y, step=step)
        return x if sizes.norm_first else normed("norm", x)

    def _linear(self, name: str, width: int, x: Float[Array, "B T D"]) -> Float[Array, "B T _"]:
        return Linear(width, deviation=INITIAL_DEVIATION, dtype=self.sizes.dtype, name=name)(x)


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
        """Applies attention to `x`.

        Args:
            x: Input frames.
            allowed: Keys (last axis) that queries may attend to.
            step: Step of the schedules while training; None in evaluation, without dropout.

        Returns:
            Output frames.
        """
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

    Returns:
        Weighted means of the values.
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
        width = x.shape[-1]
        x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % self.factor), (0, 0)))
        if self.resample == "naive":
            return x.reshape(len(x), -1, self.factor, width).mean(axis=2)
        side_by_side = x.reshape(len(x), -1, self.factor * width)
        return Linear(width, deviation=INITIAL_DEVIATION, dtype=self.dtype, name="project")(side_by_side)


class Lengthen(nn.Module):
    """Lengthens each frame to `factor` frames, and truncates the result to `num_frames` frames."""

    factor: int
    resample: Resample
    """Method: naive repeats each frame, and linear projects it to `factor` frames."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B S D"], num_frames: int) -> Float[Array, "B T D"]:
        rows, _, width = x.shape
        if self.resample == "linear":
            x = Linear(self.factor * width, deviation=INITIAL_DEVIATION, dtype=self.dtype, name="project")(x)
            x = x.reshape(rows, -1, width)
        else:
            x = jnp.repeat(x, self.factor, axis=1)
        return x[:, :num_frames]


def shortened(num_frames: Any, factor: int) -> Any:
    """Number of output frames of `Shorten`, ⌈num_frames / factor⌉; for ints and arrays."""
    return -(-num_frames // factor)

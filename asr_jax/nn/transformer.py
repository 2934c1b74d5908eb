"""Transformer layers as BERT's, which wav2vec 2.0 stacks, and their shortening in the middle (Hourglass)."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.nn.activations import gelu
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import layer_norm
from asr_jax.nn.positions import rotated
from asr_jax.nn.remat import Remat, rematerialised
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import unless_left_out

MASKED_SCORE = -1e10
INITIAL_DEVIATION = 0.02
"""Of all projections, as BERT's."""
Resample = Literal["naive", "linear"]
"""naive: the mean of frames, and each repeated; linear: projections of frames beside each other."""


class LayerSizes(NamedTuple):
    """What a layer is made of."""

    num_heads: int
    feedforward_dim: int
    norm_first: bool
    """Norms before attention and feed-forward module; without it, after their sums."""
    dropout: float
    attention_dropout: float
    activation_dropout: float
    layer_drop: float
    rotary: bool
    fused_attention: bool
    remat: Remat
    gives_taps: bool
    dtype: DTypeLike


@struct.dataclass
class Shared:
    """What all layers of a stack get."""

    allowed: Bool[Array, "B 1 T"]
    """Keys (last axis) that queries may see."""
    step: Step


class Transformer(nn.Module):
    """So many layers."""

    sizes: LayerSizes
    num_layers: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, step: Step
    ) -> tuple[Float[Array, "B T D"], Float[Array, "L B T D"] | None]:
        """The output of the last layer, and where the sizes give taps those of all."""
        layers = nn.scan(
            rematerialised(TransformerLayer, self.sizes.remat),
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=self.num_layers,
            check_constancy_invariants=False,  # would trace the layer once more
        )(self.sizes, name="layers")
        x, inner = layers(x, Shared(length_mask(lengths, x.shape[1])[:, None], step))
        return x, inner


class TransformerLayer(nn.Module):
    """Attention and a feed-forward module, each with a norm and its input added. While training, the layer is left out
    in some calls. It has the signature that `nn.scan` asks for.

    Source: `TransformerSentenceEncoderLayer` in fairseq/models/wav2vec/wav2vec2.py at commit 3d262bb2.
    """

    sizes: LayerSizes

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"] | None]:
        x = unless_left_out(
            self, lambda layer, x: layer.transformed(x, shared), x, rate=self.sizes.layer_drop, step=shared.step
        )
        return x, x if self.sizes.gives_taps else None

    @nn.nowrap
    def transformed(self, x: Float[Array, "B T D"], shared: Shared) -> Float[Array, "B T D"]:
        """The layer's output."""
        sizes = self.sizes
        attention = MultiHeadAttention(
            sizes.num_heads, sizes.attention_dropout, sizes.rotary, sizes.fused_attention, sizes.dtype, name="attention"
        )
        y = self._norm("attention_norm", x) if sizes.norm_first else x
        x += self._dropout(attention(y, shared.allowed, step=shared.step), sizes.dropout, shared.step)
        x = x if sizes.norm_first else self._norm("attention_norm", x)
        y = self._norm("norm", x) if sizes.norm_first else x
        y = gelu(self._linear("in", sizes.feedforward_dim, y))
        y = self._linear("out", x.shape[-1], self._dropout(y, sizes.activation_dropout, shared.step))
        x += self._dropout(y, sizes.dropout, shared.step)
        return x if sizes.norm_first else self._norm("norm", x)

    def _linear(self, name: str, width: int, x: Float[Array, "B T D"]) -> Float[Array, "B T _"]:
        return Linear(width, deviation=INITIAL_DEVIATION, dtype=self.sizes.dtype, name=name)(x)

    def _norm(self, name: str, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return layer_norm(1e-5, name=name)(x).astype(x.dtype)

    def _dropout(self, x: Float[Array, "B T D"], rate: float, step: Step) -> Float[Array, "B T D"]:
        return nn.Dropout(rate)(x, deterministic=step is None)


class MultiHeadAttention(nn.Module):
    """Self-attention with biases in all projections.

    Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2; rotary positions as NVIDIA's wav2vec 2.0
    (DeepLearningExamples at commit 729963dd, common/fairseq/modules/multihead_attention.py) turns the whole width of
    queries and keys, and not each head.
    """

    num_heads: int
    dropout: float
    """Of attention weights."""
    rotary: bool
    fused: bool = False
    """By `jax.nn.dot_product_attention`, whose scores never lie in memory where cuDNN computes it: on NVIDIA's GPUs, in
    half precision. It knows no dropout."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], allowed: Bool[Array, "B 1 T"], *, step: Step) -> Float[Array, "B T D"]:
        """`allowed`: which keys (last axis) queries may see."""
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
            # In float32: float16 would overflow, bfloat16 blur the softmax.
            scores = jnp.einsum("bthc,bshc->bhts", query, key, preferred_element_type=jnp.float32)
            scores = scores * query.shape[-1] ** -0.5 + jnp.where(allowed[:, None], 0.0, MASKED_SCORE)
            weights = jax.nn.softmax(scores, axis=-1).astype(self.dtype)
            weights = nn.Dropout(self.dropout)(weights, deterministic=step is None)
            mixed = jnp.einsum("bhts,bshc->bthc", weights, value)
        mixed = mixed.reshape(x.shape)
        return Linear(x.shape[-1], deviation=INITIAL_DEVIATION, dtype=self.dtype, name="out")(mixed)


def fused_attention(
    query: Float[Array, "B T H C"],
    key: Float[Array, "B T H C"],
    value: Float[Array, "B T H C"],
    allowed: Bool[Array, "B 1 T"],
) -> Float[Array, "B T H C"]:
    """Attention to the first keys of each row, as many as are allowed, by cuDNN where it is there and has a kernel for
    it, and by XLA elsewhere. A row without any is given its first, which keeps it finite: it is padding.
    """
    lengths = jnp.maximum(allowed.sum(axis=(1, 2)), 1).astype(jnp.int32)
    has_kernel = jax.default_backend() == "gpu" and query.dtype in (jnp.float16, jnp.bfloat16)
    return jax.nn.dot_product_attention(
        query, key, value, key_value_seq_lengths=lengths, implementation="cudnn" if has_kernel else "xla"
    )


class Shorten(nn.Module):
    """One frame of each `factor`, the last of which is filled up with zeros."""

    factor: int
    resample: Resample
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
    """`factor` frames of each, as many as `num_frames` in all."""

    factor: int
    resample: Resample
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
    """Frames that `Shorten` gives; for ints and arrays."""
    return -(-num_frames // factor)

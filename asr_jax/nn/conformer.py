"""What Conformer, Squeezeformer and W2V-BERT are made of: relative attention, convolution and feed-forward."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import zero_padding
from asr_jax.kernels.depthwise_conv.api import depthwise_conv
from asr_jax.nn.activations import ACTIVATIONS, ActivationName
from asr_jax.nn.linear import Linear, per_channel, uniform
from asr_jax.nn.normalization import BatchNorm, layer_norm
from asr_jax.nn.positions import clipped_distances, relative_shift
from asr_jax.nn.remat import saved
from asr_jax.nn.schedules import Step

# Added to masked scores: finite, so that a row without any key stays finite, exp of it is exactly zero, and so large
# that float32 rounds away what it is added to.
MASKED_SCORE = -1e10
ConvNorm = Literal["batch", "batch_padded", "layer"]
"""The norm within a convolution module. batch: over the valid frames; batch_padded: over all frames of the padded
batch, as PyTorch's trainers have it; layer: over the channels of a frame."""


class RelativeAttention(nn.Module):
    """Self-attention whose scores are (q + u) · k + (q + v) · W position, divided by √d of a head; or with `distances`
    q · k + q · a, a learned for each distance of key and query; or q · k alone.

    Source: Dai et al. 2019, "Transformer-XL" (arXiv:1901.02860), section 3.3, as in Conformer (arXiv:2005.08100); of
    `distances` Shaw et al. 2018 (arXiv:1803.02155), equation 4.
    """

    num_heads: int
    use_bias: bool = True
    dropout: float = 0.0
    """Of attention weights."""
    distances: tuple[int, int] | None = None
    """How many frames before and behind a query have learned keys of their own; all beyond have that of the last."""
    blind: Literal["mean", "zeros"] = "mean"
    """What a query takes that may see no key: the mean of all values, or zeros. It is padding, and matters to what
    looks at padding alone."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Float[Array, "R P"] | None,
        allowed: Bool[Array, "B #T T"],
        *,
        step: Step,
        biases: tuple[Float[Array, "H C"], Float[Array, "H C"]] | None = None,
        turned: Float[Array, "B T D"] | None = None,
    ) -> Float[Array, "B T D"]:
        """`positions`: encodings of the R = 2T - 1 offsets of keys from queries, rising; without them scores are those
        of `distances`. `allowed`: which keys (last axis) each query may see. `biases`: u and v where layers share
        them. `turned`: what queries and keys are made of instead of x, such as x with rotary positions.
        """
        width, looking = x.shape[-1], x if turned is None else turned
        query, key, value = (
            self._heads(Linear(width, use_bias=self.use_bias, dtype=self.dtype, name=name)(given))
            for name, given in (("query", looking), ("key", looking), ("value", x))
        )
        # The sums of scores are in float32, in which they stay: float16 would overflow, bfloat16 blur the softmax.
        in_float32 = partial(jnp.einsum, preferred_element_type=jnp.float32)
        if positions is None:
            scores = in_float32("bthc,bshc->bhts", query, key)
            if self.distances is not None:
                scores += self._by_distance(query, *self.distances)
        else:
            offsets = self._heads(Linear(width, use_bias=False, dtype=self.dtype, name="positions")(positions))
            by_content, by_position = self._biases(query.shape[-1]) if biases is None else biases
            scores = in_float32("bthc,bshc->bhts", query + per_head(by_content, query), key)
            by_offset = in_float32("bthc,rhc->bhtr", query + per_head(by_position, query), offsets)
            # The barrier keeps XLA from shifting the gradient anew for each of its uses.
            scores += relative_shift(jax.lax.optimization_barrier(by_offset))
        scores *= query.shape[-1] ** -0.5
        scores += jnp.where(allowed[:, None], 0.0, MASKED_SCORE)
        weights = jax.nn.softmax(scores, axis=-1).astype(self.dtype)
        if self.blind == "zeros":
            weights = jnp.where(allowed[:, None], weights, 0)
        weights = nn.Dropout(self.dropout)(weights, deterministic=step is None)
        mixed = jnp.einsum("bhts,bshc->bthc", weights, value).reshape(*x.shape[:2], width)
        return Linear(width, use_bias=self.use_bias, dtype=self.dtype, name="out")(mixed)

    def _by_distance(self, query: Float[Array, "B T H C"], left: int, right: int) -> Float[Array, "B H T T"]:
        """All queries times the keys of all distances, and of these products for each key that of its distance."""
        shape = (left + 1 + right, query.shape[-1])
        table = self.param("distance_embedding", nn.initializers.normal(0.02), shape).astype(query.dtype)
        scores = jnp.einsum("bthc,rc->bhtr", query, table, preferred_element_type=jnp.float32)
        return clipped_distances(jax.lax.optimization_barrier(scores), left)  # the barrier as above

    def _heads(self, x: Float[Array, "*rest D"]) -> Float[Array, "*rest H C"]:
        return x.reshape(*x.shape[:-1], self.num_heads, -1)

    def _biases(self, width: int) -> tuple[Float[Array, "H C"], Float[Array, "H C"]]:
        shape, zeros = (self.num_heads, width), nn.initializers.zeros
        return self.param("content_bias", zeros, shape), self.param("position_bias", zeros, shape)


class ConformerConvolution(nn.Module):
    """Projection, gate, depthwise convolution, norm, activation, projection. Padding enters no valid frame.

    Source: Gulati et al. 2020 (arXiv:2005.08100), figure 2; Kim et al. 2022, "Squeezeformer" (arXiv:2206.00888), for
    SiLU in the place of the gated linear unit.
    """

    kernel_size: int
    gated: bool = True
    """A gated linear unit after the first projection; without it SiLU, at twice the width from there on."""
    norm: ConvNorm = "batch"
    norm_eps: float = 1e-5
    norm_momentum: float = 0.1
    norm_ddof: int = 1
    """Of the running variance: see `BatchNorm`."""
    causal: bool = False
    """A frame sees itself and those before it."""
    activation: ActivationName = "silu"
    use_bias: bool = True
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, step: Step) -> Float[Array, "B T D"]:
        width, size = x.shape[-1], self.kernel_size
        hidden = Linear(2 * width, use_bias=self.use_bias, dtype=self.dtype, name="in")(x)
        hidden = nn.glu(hidden) if self.gated else nn.silu(hidden)
        hidden = zero_padding(hidden, lengths)
        kernel = self.param("kernel", uniform(size**-0.5), (size, hidden.shape[-1]))
        padding = (size - 1, 0) if self.causal else ((size - 1) // 2, size // 2)
        hidden = saved(depthwise_conv(hidden, kernel, padding=padding))
        if self.use_bias:
            hidden += per_channel(self.param("bias", uniform(size**-0.5), hidden.shape[-1:]), hidden)
        if self.norm == "layer":
            hidden = layer_norm(self.norm_eps, name="norm")(hidden).astype(hidden.dtype)
        else:
            padded = self.norm == "batch_padded"
            norm = BatchNorm(self.norm_momentum, self.norm_eps, padded, self.norm_ddof, name="norm")
            hidden = norm(hidden, lengths, use_running=step is None)
        hidden = ACTIVATIONS[self.activation](hidden)
        return Linear(width, use_bias=self.use_bias, dtype=self.dtype, name="out")(hidden)


class ConformerFeedForward(nn.Module):
    """Projection to `hidden_dim`, activation, dropout, projection."""

    hidden_dim: int
    dropout: float = 0.0
    use_bias: bool = True
    dtype: DTypeLike = jnp.float32
    activation: ActivationName = "silu"

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], *, step: Step) -> Float[Array, "B T D"]:
        hidden = Linear(self.hidden_dim, use_bias=self.use_bias, dtype=self.dtype, name="in")(x)
        hidden = ACTIVATIONS[self.activation](hidden)
        hidden = nn.Dropout(self.dropout)(hidden, deterministic=step is None)
        return Linear(x.shape[-1], use_bias=self.use_bias, dtype=self.dtype, name="out")(hidden)


def per_head(bias: Float[Array, "H C"], x: Any) -> Float[Array, "1 1 H C"]:
    """`bias` with the rank and the type of `x`."""
    return bias.astype(x.dtype)[None, None]

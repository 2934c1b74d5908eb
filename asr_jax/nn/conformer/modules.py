"""Modules of Conformer, Squeezeformer and W2V-BERT: relative attention, convolution and feed-forward."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.matmul_precision import float32_product
from asr_jax.core.shapes import is_static
from asr_jax.kernels.depthwise_conv.api import depthwise_conv
from asr_jax.kernels.glu.api import glu
from asr_jax.kernels.masking.api import mask_time
from asr_jax.kernels.relative_attention.api import Implementation, relative_attention
from asr_jax.kernels.relative_shift.api import relative_shift
from asr_jax.nn.activations import ACTIVATIONS, ActivationName
from asr_jax.nn.attention import MASKED_SCORE, attention_softmax
from asr_jax.nn.cache import Extend, unextended
from asr_jax.nn.layer_stack import tied_biases
from asr_jax.nn.linear import Linear, per_channel, uniform
from asr_jax.nn.normalization import BatchNorm, layer_norm
from asr_jax.nn.positions import clipped_distances
from asr_jax.nn.remat import saved
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout

ConvNorm = Literal["batch", "batch_padded", "layer"]
"""Norm of a convolution module.

batch: batch norm over the valid frames. batch_padded: batch norm over all frames of the padded batch, as in PyTorch's
trainers. layer: layer norm over the channels of a frame.
"""


class RelativeAttention(nn.Module):
    """Multi-head self-attention with relative positions.

    All scores are divided by √d, where d is the width of a head. With positions, the scores are
    (q + u) · k + (q + v) · W position. With `distances`, they are q · k + q · a, where a is a learned embedding of the
    distance between key and query. Otherwise they are q · k.

    Source: Dai et al. 2019, "Transformer-XL" (arXiv:1901.02860), section 3.3, as in Conformer (arXiv:2005.08100).
    Distances: Shaw et al. 2018 (arXiv:1803.02155), equation 4.
    """

    num_heads: int
    use_bias: bool = True
    dropout: float = 0.0
    """Dropout rate of the attention weights."""
    distances: tuple[int, int] | None = None
    """Largest distances, in frames, of keys before and behind a query that have a learned embedding of their own.
    Larger distances are clipped to these. None: no learned embeddings."""
    blind: Literal["mean", "zeros"] = "mean"
    """Output for queries whose keys are all masked: the mean of all values, or zeros. Such queries are padding, and
    this changes results only if padding is part of a later computation."""
    implementation: Implementation = "reference"
    """Implementation of the attention with positions (see `kernels.relative_attention`). Those other than reference
    have no dropout of weights, allow the first `lengths` keys, and return zeros for queries without keys."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Float[Array, "R P"] | None,
        allowed: Bool[Array, "B #T S"],
        *,
        step: Step,
        biases: tuple[Float[Array, "H C"], Float[Array, "H C"]] | None = None,
        turned: Float[Array, "B T D"] | None = None,
        lengths: Int[Array, " B"] | None = None,
        extend_keys: Extend = unextended,
        extend_values: Extend = unextended,
    ) -> Float[Array, "B T D"]:
        """Applies attention to `x`.

        Args:
            positions: Encodings of the R = T + S - 1 offsets of keys from queries, in ascending order. None: the scores
                use `distances`, or no positions.
            allowed: Keys (last axis) that each query may attend to.
            biases: u and v, if the layers share them. None: the module has its own.
            turned: Input of the query and key projections, such as `x` with rotary positions. None: `x`.
            lengths: Number of valid keys of each row, for implementations other than reference.
            extend_keys: Function that puts the keys of former windows before those of `x`. There are S keys in all.
            extend_values: Function that puts the values of former windows before those of `x`.
        """
        width, looking = x.shape[-1], x if turned is None else turned
        query, key, value = (
            self._heads(Linear(width, use_bias=self.use_bias, dtype=self.dtype, name=name)(given))
            for name, given in (("query", looking), ("key", looking), ("value", x))
        )
        key, value = extend_keys(key), extend_values(value)
        # Scores are summed and kept in float32: float16 would overflow, and bfloat16 would round the softmax coarsely.
        if positions is None:
            scores = float32_product("bthc,bshc->bhts", query, key)
            if self.distances is not None:
                scores += self._by_distance(query, *self.distances)
        else:
            offsets = self._heads(Linear(width, use_bias=False, dtype=self.dtype, name="positions")(positions))
            by_content, by_position = tied_biases(self, self.num_heads, width) if biases is None else biases
            if lengths is not None and self.implementation not in ("auto", "reference") and is_static(*x.shape):
                queries = (query + per_head(by_content, query), query + per_head(by_position, query))
                mixed = relative_attention(
                    *queries,
                    key,
                    value,
                    offsets,
                    lengths,
                    scale=query.shape[-1] ** -0.5,
                    implementation=self.implementation,
                )
                mixed = mixed.reshape(*x.shape[:2], width)
                return Linear(width, use_bias=self.use_bias, dtype=self.dtype, name="out")(mixed)
            scores = float32_product("bthc,bshc->bhts", query + per_head(by_content, query), key)
            by_offset = float32_product("bthc,rhc->bhtr", query + per_head(by_position, query), offsets)
            # The barrier keeps XLA from recomputing the shift of the gradient for each of its uses.
            scores += relative_shift(jax.lax.optimization_barrier(by_offset))
        scores *= query.shape[-1] ** -0.5
        scores += jnp.where(allowed[:, None], 0.0, MASKED_SCORE)
        weights = attention_softmax(scores, self.dtype)
        if self.blind == "zeros":
            weights = jnp.where(allowed[:, None], weights, 0)
        weights = Dropout(self.dropout)(weights, step=step)
        mixed = jnp.einsum("bhts,bshc->bthc", weights, value).reshape(*x.shape[:2], width)
        return Linear(width, use_bias=self.use_bias, dtype=self.dtype, name="out")(mixed)

    def _by_distance(self, query: Float[Array, "B T H C"], left: int, right: int) -> Float[Array, "B H T T"]:
        """Scores of the learned distance embeddings, by query (third axis) and key (last axis)."""
        shape = (left + 1 + right, query.shape[-1])
        table = self.param("distance_embedding", nn.initializers.normal(0.02), shape).astype(query.dtype)
        scores = float32_product("bthc,rc->bhtr", query, table)
        return clipped_distances(jax.lax.optimization_barrier(scores), left)  # barrier: see __call__

    def _heads(self, x: Float[Array, "*rest D"]) -> Float[Array, "*rest H C"]:
        return x.reshape(*x.shape[:-1], self.num_heads, -1)


class ConformerConvolution(nn.Module):
    """Convolution module: projection, gate, depthwise convolution, norm, activation, projection.

    Padding does not change valid frames, except through the statistics of the norm "batch_padded".

    Source: Gulati et al. 2020 (arXiv:2005.08100), figure 2. SiLU instead of the gated linear unit: Kim et al. 2022,
    "Squeezeformer" (arXiv:2206.00888).
    """

    kernel_size: int
    gated: bool = True
    """Whether a gated linear unit follows the first projection. Otherwise SiLU follows it, and the inner width is
    twice that of the input."""
    norm: ConvNorm = "batch"
    norm_eps: float = 1e-5
    norm_momentum: float = 0.1
    norm_ddof: int = 1
    """Delta degrees of freedom of the running variance. See `BatchNorm`."""
    causal: bool = False
    """Whether the depthwise convolution has no right context. Otherwise it is symmetric."""
    activation: ActivationName = "silu"
    use_bias: bool = True
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, step: Step, extend: Extend = unextended
    ) -> Float[Array, "B T D"]:
        """Applies the module to `x`.

        Args:
            lengths: Number of valid frames of each row.
            extend: Function that puts the last `kernel_size` - 1 frames of former windows before those of the depthwise
                convolution, which must then be causal.
        """
        (_, num_frames, width), size = x.shape, self.kernel_size
        hidden = Linear(2 * width, use_bias=self.use_bias, dtype=self.dtype, name="in")(x)
        hidden = glu(hidden) if self.gated else nn.silu(hidden)
        hidden = mask_time(hidden, lengths)
        kernel = self.param("kernel", uniform(size**-0.5), (size, hidden.shape[-1]))
        hidden = extend(hidden)
        before = size - 1 - (hidden.shape[1] - num_frames)
        padding = (before, 0) if self.causal else ((size - 1) // 2, size // 2)
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
    """Feed-forward module: projection to `hidden_dim`, activation, dropout, projection."""

    hidden_dim: int
    dropout: float = 0.0
    use_bias: bool = True
    dtype: DTypeLike = jnp.float32
    activation: ActivationName = "silu"

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], *, step: Step) -> Float[Array, "B T D"]:
        hidden = Linear(self.hidden_dim, use_bias=self.use_bias, dtype=self.dtype, name="in")(x)
        hidden = ACTIVATIONS[self.activation](hidden)
        hidden = Dropout(self.dropout)(hidden, step=step)
        return Linear(x.shape[-1], use_bias=self.use_bias, dtype=self.dtype, name="out")(hidden)


def per_head(bias: Float[Array, "H C"], x: Any) -> Float[Array, "1 1 H C"]:
    """Returns `bias` with leading axes of size 1, in the dtype of `x`."""
    return bias.astype(x.dtype)[None, None]

"""Zipformer's attention, whose weights are computed once and shared by several modules.

Source: Yao et al. 2023 (arXiv:2310.11230).
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from asr_jax.core.matmul_precision import float32_product
from asr_jax.kernels.relative_shift.api import relative_shift
from asr_jax.nn.cache import Extend, unextended
from asr_jax.nn.linear import Linear
from asr_jax.nn.remat import saved
from asr_jax.nn.schedules import Step, over_training, piecewise_linear
from asr_jax.nn.stochastic import Regulariser, kept, whitening_limit

# The score of masked keys is finite, which keeps the softmax of a row without valid keys finite. Its exp is exactly 0.
MASKED_SCORE = -1000.0
SKIP_POSITIONS = piecewise_linear((0, 0.5), (4000, 0.0))


class AttentionWeights(nn.Module):
    """Attention weights with relative positions: softmax over keys of query · key + position query · W position.

    The scores are not divided by √d; the initial scale of the input projection accounts for it. During training,
    the position scores are skipped in some calls, and scores beyond ±25 are penalised.

    Source: `RelPositionMultiheadAttentionWeights` in icefall's egs/librispeech/ASR/zipformer/zipformer.py.
    """

    num_heads: int
    query_dim: int
    position_dim: int
    skip_positions: bool = True
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Float[Array, "R P"],
        allowed: Bool[Array, "B #T S"],
        *,
        step: Step,
        regularise: Regulariser,
        extend: Extend = unextended,
    ) -> Float[Array, "{self.num_heads} B T S"]:
        """Computes the attention weights of all heads.

        Args:
            positions: Encodings of the R = T + S - 1 offsets of keys from queries, in ascending order.
            allowed: Keys (last axis) that each query may attend to.
            regularise: Regularisers of keys and scores.
            extend: Function that puts the keys of former windows before those of `x`, of S in all.

        Returns:
            Weights in `dtype`, which sum to 1 over the keys (last axis).
        """
        heads, width = self.num_heads, self.num_heads * self.query_dim
        projected = Linear(2 * width + heads * self.position_dim, self.query_dim**-0.25, dtype=self.dtype, name="in")(x)
        query, key, position_query = jnp.split(projected, [width, 2 * width], axis=-1)
        key = regularise.balance(key, min_positive=0.4, max_positive=0.6, min_abs=0.0, max_abs=100.0, chance=0.025)
        key = regularise.whiten(key, limit=whitening_limit(3.0), grad_scale=0.025, num_groups=heads)
        query, key, position_query = (_split_heads(part, heads) for part in (query, extend(key), position_query))
        scores = float32_product("hbtc,hbsc->hbts", query, key)

        offsets = Linear(heads * self.position_dim, 0.05, use_bias=False, dtype=self.dtype, name="positions")(positions)
        if step is not None and self.skip_positions:
            offsets *= kept(self.make_rng("dropout"), SKIP_POSITIONS(step), ()).astype(offsets.dtype)
        offsets = offsets.reshape(-1, heads, self.position_dim)
        by_offset = float32_product("hbtc,rhc->hbtr", position_query, offsets)
        # The barrier keeps XLA from recomputing the shift of the gradient for each of its uses.
        scores = saved(scores + relative_shift(jax.lax.optimization_barrier(by_offset)))

        allowed = allowed[None]
        scores = regularise.penalize_scores(scores, limit=25.0, penalty=1e-4)
        return jax.nn.softmax(jnp.where(allowed, scores, MASKED_SCORE), axis=-1).astype(self.dtype)


class SelfAttention(nn.Module):
    """Self-attention with precomputed weights: a value projection, a weighted sum, and an output projection.

    Source: `SelfAttention` in icefall's egs/librispeech/ASR/zipformer/zipformer.py.
    """

    value_dim: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        weights: Float[Array, "H B T S"],
        *,
        regularise: Regulariser,
        extend: Extend = unextended,
    ) -> Float[Array, "B T D"]:
        heads = weights.shape[0]
        values = _split_heads(extend(Linear(heads * self.value_dim, dtype=self.dtype, name="in")(x)), heads)
        mixed = jnp.einsum("hbts,hbsc->hbtc", weights, values)
        mixed = mixed.transpose(1, 2, 0, 3).reshape(*x.shape[:2], heads * self.value_dim)
        y = Linear(x.shape[-1], 0.05, dtype=self.dtype, name="out")(mixed)
        return regularise.whiten(y, limit=whitening_limit(7.5, ratio=3.0))


class NonlinearAttention(nn.Module):
    """Gated attention with the weights of one head: out(c · attend(b · tanh(a))).

    a, b and c are projections of x, each of 3/4 of its width.

    Source: Yao et al. 2023, figure 3; `NonlinAttention` in icefall's egs/librispeech/ASR/zipformer/zipformer.py.
    """

    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        weights: Float[Array, "B T S"],
        *,
        regularise: Regulariser,
        extend: Extend = unextended,
    ) -> Float[Array, "B T D"]:
        width = 3 * x.shape[-1] // 4
        gate, values, gate_after = jnp.split(Linear(3 * width, dtype=self.dtype, name="in")(x), 3, axis=-1)
        gate = regularise.balance(
            gate,
            min_positive=over_training(0.25, 0.05),
            max_positive=over_training(0.75, 0.95),
            min_abs=0.5,
            max_abs=5.0,
        )
        values = regularise.whiten(values, limit=whitening_limit(5.0)) * jnp.tanh(gate)
        mixed = jnp.einsum("bts,bsc->btc", weights, extend(values)) * gate_after
        y = Linear(x.shape[-1], 0.05, dtype=self.dtype, name="out")(mixed)
        return regularise.whiten(y, limit=whitening_limit(5.0, ratio=3.0))


def _split_heads(x: Float[Array, "B T E"], num_heads: int) -> Float[Array, "H B T C"]:
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(2, 0, 1, 3)

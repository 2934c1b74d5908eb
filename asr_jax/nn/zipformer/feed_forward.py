"""Zipformer's feed-forward module."""

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from asr_jax.kernels.swoosh.api import swoosh_l
from asr_jax.nn.linear import Linear
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Regulariser, scheduled_dropout, whitening_limit


class FeedForward(nn.Module):
    """Feed-forward module: projection, Swoosh-L, dropout with one mask for all frames, projection."""

    hidden_dim: int
    dropout: tuple[float, float]
    """Dropout rate at the start and after 20000 batches."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], *, step: Step, regularise: Regulariser) -> Float[Array, "B T D"]:
        hidden = Linear(self.hidden_dim, dtype=self.dtype, name="in")(x)
        hidden = regularise.balance(hidden, min_positive=0.3, max_positive=1.0, min_abs=0.75, max_abs=5.0)
        hidden = scheduled_dropout(swoosh_l(hidden), self, rates=self.dropout, step=step)
        y = Linear(x.shape[-1], 0.1, dtype=self.dtype, name="out")(hidden)
        return regularise.whiten(y, limit=whitening_limit(7.5))

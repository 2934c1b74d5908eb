"""Normalisation layers: always computed in float32."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from asr_jax.nn.linear import per_channel
from asr_jax.nn.stochastic import Regulariser


class BiasNorm(nn.Module):
    """x · exp(log_scale) / RMS(x - bias), over the last axis; the result has the type of `x`.

    While training with regularisers, log_scale is kept within ±1.5.

    Source: Yao et al. 2023 (arXiv:2310.11230), section 3.3; `BiasNorm` in icefall's zipformer/scaling.py.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "*rest D"], *, regularise: Regulariser) -> Float[Array, "*rest D"]:
        bias = self.param("bias", nn.initializers.normal(1e-4), (x.shape[-1],))
        log_scale = regularise.limit(self.param("log_scale", nn.initializers.ones, ()), minimum=-1.5, maximum=1.5)
        return bias_norm(x, bias, log_scale)


def bias_norm(
    x: Float[Array, "*rest D"], bias: Float[Array, " D"], log_scale: Float[Array, ""]
) -> Float[Array, "*rest D"]:
    """The function of `BiasNorm`."""
    wide = x.astype(jnp.float32)
    deviation = wide - per_channel(bias, wide)
    # The small number keeps padding, which may equal the bias, from giving infinity times zero.
    inverse = jax.lax.rsqrt(jnp.mean(deviation**2, axis=-1, keepdims=True) + 1e-20)
    return (wide * (inverse * jnp.exp(log_scale))).astype(x.dtype)

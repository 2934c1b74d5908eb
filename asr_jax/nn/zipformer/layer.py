"""Feed-forward module and bypass of Zipformer layers.

Source: Yao et al. 2023 (arXiv:2310.11230), figure 2; `FeedforwardModule` and `BypassModule` in icefall's
egs/librispeech/ASR/zipformer/zipformer.py, with their schedules.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from asr_jax.kernels.swoosh.api import swoosh_l
from asr_jax.nn.linear import Linear, per_channel
from asr_jax.nn.schedules import Step, over_training
from asr_jax.nn.stochastic import Regulariser, scheduled_dropout, whitening_limit

SMALLEST_BYPASS = over_training(0.9, 0.2)


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


class Bypass(nn.Module):
    """Learned bypass: original + scale · (x - original), with a scale per channel.

    Training keeps the scale in [`SMALLEST_BYPASS`, 1], whose lower limit falls with the step.
    """

    @nn.compact
    def __call__(
        self, original: Float[Array, "B T D"], x: Float[Array, "B T D"], *, regularise: Regulariser, keep: Any = 1.0
    ) -> Float[Array, "B T D"]:
        """Combines the input and the output of a module.

        Args:
            original: Input of the module.
            x: Output of the module.
            keep: 0 for rows that skip the module, otherwise 1, [B 1 1].
        """
        scale = self.param("scale", nn.initializers.constant(0.5), x.shape[-1:])
        scale = regularise.limit(scale, minimum=SMALLEST_BYPASS, maximum=1.0)
        return original + (x - original) * (per_channel(scale, x) * keep)

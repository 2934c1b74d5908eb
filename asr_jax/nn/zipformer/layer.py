"""A Zipformer layer.

Source: Yao et al. 2023 (arXiv:2310.11230), figures 2 and 3; `Zipformer2EncoderLayer`, `FeedforwardModule` and
`BypassModule` in icefall's egs/librispeech/ASR/zipformer/zipformer.py, with their schedules.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from asr_jax.core.batch import length_mask
from asr_jax.kernels.swoosh.api import swoosh_l
from asr_jax.nn.layer_stack import LayerInputs
from asr_jax.nn.linear import Linear, per_channel
from asr_jax.nn.normalization import BiasNorm
from asr_jax.nn.remat import Remat
from asr_jax.nn.schedules import Step, over_training, piecewise_linear
from asr_jax.nn.stochastic import Regulariser, kept, kept_of_rows, scheduled_dropout, whitening_limit
from asr_jax.nn.zipformer.attention import AttentionWeights, NonlinearAttention, SelfAttention
from asr_jax.nn.zipformer.convolution import ConvolutionModule

SKIP_ATTENTION = SKIP_CONVOLUTION = piecewise_linear((0, 0.2), (4000, 0.05), (16000, 0.0))
SKIP_FEED_FORWARD = piecewise_linear((0, 0.1), (4000, 0.01), (50000, 0.0))
CONSTANT_ATTENTION = piecewise_linear((0, 0.25), (4000, 0.025))
SMALLEST_BYPASS = over_training(0.9, 0.2)
# Ranges of the balancers of each module's residual output. Their probability is low.
ADDED: dict[str, Any] = {"min_positive": 0.3, "max_positive": 0.7, "chance": 0.05}
ADDED_BY_NONLINEAR_ATTENTION = {**ADDED, "min_abs": piecewise_linear((0, 0.004), (4000, 0.02))}
ADDED_BY_FEED_FORWARD_2 = {**ADDED, "min_abs": piecewise_linear((0, 0.0), (4000, 0.1)), "max_abs": 2.0}
ADDED_BY_FEED_FORWARD_3 = {**ADDED, "min_abs": piecewise_linear((0, 0.0), (4000, 0.2)), "max_abs": 4.0}


@dataclass(frozen=True)
class StackSizes:
    """Sizes of a stack."""

    width: int
    num_layers: int
    downsampling: int
    num_heads: int
    query_dim: int
    position_dim: int
    value_dim: int
    feedforward_dim: int
    kernel_size: int
    chunk_frames: int | None
    """Length of a chunk in frames of this stack. None: no chunks."""
    left_chunks: int | None
    """Left context of attention in chunks. None: unlimited."""


@dataclass(frozen=True)
class ZipformerPolicy:
    """Settings that all stacks share. See the fields of `Zipformer`."""

    positions_dim: int
    dropout: tuple[float, float]
    causal: bool
    mask_padding: bool
    regularise: bool
    skip: bool
    remat: Remat
    dtype: DTypeLike


class ZipformerLayer(nn.Module):
    """Zipformer layer: feed-forward, attention and convolution modules, which share one set of attention weights.

    The signature is that of a body of `nn.scan`.
    """

    sizes: StackSizes
    policy: ZipformerPolicy

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], skip_rate: Float[Array, ""], inputs: LayerInputs
    ) -> tuple[Float[Array, "B T D"], None]:
        """Applies the layer.

        Args:
            skip_rate: Probability that a row skips the layer in training.
            inputs: Inputs of all layers of the stack.

        Returns:
            Output frames, and None as the output for the scan to collect.
        """
        policy, step, original = self.policy, inputs.step, x
        mask = length_mask(inputs.lengths, x.shape[1]) if policy.mask_padding else None
        regularise = Regulariser.of(self, step=step, use=policy.regularise, mask=mask)
        keep = self._keep(x, skip_rate, step)

        weights = self._attention_weights(x, inputs, regularise)
        x += self._feed_forward(1, x, step, regularise)
        y = NonlinearAttention(policy.dtype, name="nonlinear_attention")(
            x, self._first_head(weights[0], step), regularise=regularise
        )
        x += keep["attention"] * regularise.balance(y, **ADDED_BY_NONLINEAR_ATTENTION)
        x += keep["attention"] * self._attention(1, x, weights, regularise)
        x += keep["convolution_1"] * self._convolution(1, x, inputs.lengths, regularise)
        y = self._feed_forward(2, x, step, regularise)
        x += keep["feed_forward_2"] * regularise.balance(y, **ADDED_BY_FEED_FORWARD_2)
        x = Bypass(name="bypass_middle")(original, x, regularise=regularise)

        x += keep["attention"] * self._attention(2, x, weights, regularise)
        x += keep["convolution_2"] * self._convolution(2, x, inputs.lengths, regularise)
        y = self._feed_forward(3, x, step, regularise)
        x += keep["feed_forward_3"] * regularise.balance(y, **ADDED_BY_FEED_FORWARD_3)
        x = regularise.balance(x, min_positive=0.45, max_positive=0.55, min_abs=0.2, max_abs=4.0)
        x = BiasNorm(name="norm")(x, regularise=regularise)
        x = Bypass(name="bypass")(original, x, keep=keep["layer"], regularise=regularise)
        x = regularise.balance(x, min_positive=0.45, max_positive=0.55, min_abs=0.1, max_abs=4.0)
        x = regularise.whiten(x, limit=whitening_limit(4.0, ratio=3.0))
        return x if inputs.feature_mask is None else x * inputs.feature_mask, None

    def _keep(self, x: Array, skip_rate: Array, step: Step) -> dict[str, Any]:
        """Draws, for each part of the layer, 0 for the rows that skip it and 1 for the others, [B 1 1]."""
        parts = ("attention", "convolution_1", "convolution_2", "feed_forward_2", "feed_forward_3", "layer")
        if step is None or not self.policy.skip:
            return dict.fromkeys(parts, 1.0)
        convolution, feed_forward = SKIP_CONVOLUTION(step), SKIP_FEED_FORWARD(step)
        rates = [SKIP_ATTENTION(step), convolution, convolution, feed_forward, feed_forward, skip_rate]
        drawn = kept_of_rows(self.make_rng("dropout"), jnp.stack(rates)[None], (len(x), len(parts)))
        return dict(zip(parts, drawn.T.astype(x.dtype)[:, :, None, None], strict=True))

    def _first_head(self, weights: Float[Array, "B T T"], step: Step) -> Float[Array, "B T T"]:
        """Returns the weights of the first head or, in some calls in training, uniform weights over the same keys."""
        if step is None or not self.policy.skip:
            return weights
        visible = (weights > 0).astype(jnp.float32)
        constant = visible / visible.sum(axis=-1, keepdims=True)
        use = kept(self.make_rng("dropout"), CONSTANT_ATTENTION(step), ())
        return jnp.where(use, weights, constant.astype(weights.dtype))

    def _attention_weights(self, x: Array, inputs: LayerInputs, regularise: Regulariser) -> Float[Array, "H B T T"]:
        sizes, policy = self.sizes, self.policy
        module = AttentionWeights(
            sizes.num_heads,
            sizes.query_dim,
            sizes.position_dim,
            skip_positions=policy.skip,
            dtype=policy.dtype,
            name="attention_weights",
        )
        assert inputs.positions is not None
        return module(x, inputs.positions, inputs.allowed, step=inputs.step, regularise=regularise)

    def _feed_forward(self, number: int, x: Array, step: Step, regularise: Regulariser) -> Array:
        hidden_dim = self.sizes.feedforward_dim * (number + 2) // 4  # 3/4, 4/4 and 5/4 of feedforward_dim
        module = FeedForward(hidden_dim, self.policy.dropout, self.policy.dtype, name=f"feed_forward_{number}")
        return module(x, step=step, regularise=regularise)

    def _attention(self, number: int, x: Array, weights: Array, regularise: Regulariser) -> Array:
        module = SelfAttention(self.sizes.value_dim, self.policy.dtype, name=f"attention_{number}")
        return module(x, weights, regularise=regularise)

    def _convolution(self, number: int, x: Array, lengths: Array, regularise: Regulariser) -> Array:
        module = ConvolutionModule(
            self.sizes.kernel_size,
            causal=self.policy.causal,
            chunk_frames=self.sizes.chunk_frames,
            ends_at_batch=not self.policy.mask_padding,
            dtype=self.policy.dtype,
            name=f"convolution_{number}",
        )
        return module(x, lengths, regularise=regularise)


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

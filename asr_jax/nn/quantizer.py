"""Product quantisation of frames by Gumbel softmax, as wav2vec 2.0 makes its targets."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from asr_jax.nn.activations import gelu
from asr_jax.nn.linear import Linear
from asr_jax.nn.schedules import Step


@dataclass(frozen=True)
class Quantizer:
    """Settings of a quantiser: each frame becomes one entry of each group's codebook, one behind the other."""

    groups: int = 2
    """Codebooks."""
    entries: int = 320
    """Entries of each."""
    depth: int = 1
    """Layers of the projection to the entries, with a GELU between them."""
    factor: int = 3
    """Width of its inner layers, as a multiple of the frames' width."""
    start_temperature: float = 2.0
    """Of the softmax, at the first update."""
    end_temperature: float = 0.5
    """The lowest."""
    decay: float = 0.999995
    """Factor of the temperature from one update to the next."""

    def __post_init__(self) -> None:
        if min(self.groups, self.entries, self.depth, self.factor) < 1:
            raise ValueError(
                f"quantizer has groups {self.groups}, entries {self.entries}, depth {self.depth}, factor "
                f"{self.factor}: expected at least 1 of each"
            )
        if not (0 < self.end_temperature <= self.start_temperature and 0 < self.decay <= 1):
            raise ValueError(
                f"quantizer's temperature goes from {self.start_temperature} to {self.end_temperature} by "
                f"{self.decay}: expected to fall, above 0, by a factor of at most 1"
            )

    def temperature(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """Before the update number `step`, the first being 0."""
        # By the logarithm: the decay itself, in float32, would be off by 1e-3 after 100,000 updates.
        fallen = self.start_temperature * jnp.exp(math.log(self.decay) * step.astype(jnp.float32))
        return jnp.maximum(fallen, self.end_temperature)


class Quantized(NamedTuple):
    """What a quantiser gives."""

    values: Float[Array, "B T E"]
    codes: Int[Array, "B T G"]
    """The entries that the values are made of: while training, those drawn."""
    best: Int[Array, "B T G"]
    """The most probable entries."""
    probabilities: Float[Array, "B T G V"]
    """Of all entries, without noise and temperature."""


class GumbelQuantizer(nn.Module):
    """While training, an entry is drawn with its probability, and the gradient is that of the softmax (straight
    through); otherwise it is the most probable. In float32.

    Source: Baevski et al. 2020 (arXiv:2006.11477), section 2, equation 1; Jang et al. 2017 (arXiv:1611.01144);
    fairseq's modules/gumbel_vector_quantizer.py at commit 3d262bb2. Differs from: NVIDIA's train.py counts updates
    from 1, fairseq and this from 0: there each has the temperature of the next one here.
    """

    settings: Quantizer
    features: int
    """Width of the values, a multiple of the groups."""

    def setup(self) -> None:
        settings = self.settings
        shape = (settings.groups, settings.entries, self.features // settings.groups)
        self.codebook = self.param("codebook", nn.initializers.uniform(1.0), shape)

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], *, step: Step, noise: Float[Array, "B T G V"] | None = None
    ) -> Quantized:
        """`noise`: the Gumbel noise to take instead of a drawn one."""
        settings, width = self.settings, x.shape[-1]
        x = x.astype(jnp.float32)
        for number in range(settings.depth - 1):
            x = gelu(Linear(settings.factor * width, name=f"inner_{number}")(x))
        deviation = 1.0 if settings.depth == 1 else None
        logits = Linear(settings.groups * settings.entries, deviation=deviation, name="logits")(x)
        logits = logits.reshape(*x.shape[:2], settings.groups, settings.entries)
        best, probabilities = jnp.argmax(logits, axis=-1), jax.nn.softmax(logits)
        if step is None:
            return Quantized(self.values(best), best, best, probabilities)
        noise = jax.random.gumbel(self.make_rng("dropout"), logits.shape) if noise is None else noise
        soft = jax.nn.softmax((logits + noise) / settings.temperature(step))
        codes = jnp.argmax(soft, axis=-1)
        drawn = jax.nn.one_hot(codes, settings.entries)
        chosen = drawn + soft - jax.lax.stop_gradient(soft)
        values = jnp.einsum("btgv,gve->btge", chosen, self.codebook)
        return Quantized(values.reshape(*x.shape[:2], -1), codes, best, probabilities)

    def values(self, codes: Int[Array, "*rest G"]) -> Float[Array, "*rest E"]:
        """The values of entries."""
        parts = [self.codebook[group][codes[..., group]] for group in range(self.settings.groups)]
        return jnp.concatenate(parts, axis=-1)


def perplexity(probabilities: Float[Array, "B T G V"], weights: Float[Array, "B T"]) -> Float[Array, ""]:
    """Sum over the groups of exp of the entropy of the mean distribution over weighted frames: from the number of
    groups, where all frames take the same entry, to that of all entries. Source: as `GumbelQuantizer`.
    """
    total = jnp.maximum(jnp.sum(weights), 1.0)
    mean = jnp.einsum("btgv,bt->gv", probabilities, weights) / total
    return jnp.sum(jnp.exp(-jnp.sum(mean * jnp.log(mean + 1e-7), axis=-1)))

"""Product quantisation of frames with Gumbel softmax, which computes the targets of wav2vec 2.0."""

import math
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from asr_jax.core.collectives import part_of_rows, total
from asr_jax.core.random_streams import row_keys
from asr_jax.core.settings import PositiveFloat, PositiveInt, above, settings
from asr_jax.nn.activations import gelu
from asr_jax.nn.linear import Linear
from asr_jax.nn.schedules import Step

QUANTIZER = "quantizer"
"""Name of an encoder's quantiser in `Encoded.shared`."""


@settings
class Quantizer:
    """Settings of a product quantiser, which maps each frame to the concatenation of one entry per codebook."""

    groups: PositiveInt = 2
    """Number of codebooks."""
    entries: PositiveInt = 320
    """Number of entries of each codebook."""
    depth: PositiveInt = 1
    """Number of layers of the projection to the entries, with a GELU between layers."""
    factor: PositiveInt = 3
    """Width of the projection's inner layers, as a multiple of the frames' width."""
    start_temperature: PositiveFloat = 2.0
    """Temperature of the softmax at the first update."""
    end_temperature: PositiveFloat = 0.5
    """Minimum of the temperature."""
    decay: Annotated[float, above(0, most=1)] = 0.999995
    """Factor of the temperature per update."""

    def problems(self) -> Iterator[str]:
        if self.end_temperature > self.start_temperature:
            yield (
                f"end_temperature is {self.end_temperature}: expected at most start_temperature, "
                f"{self.start_temperature}"
            )

    def temperature(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """Temperature of the softmax at update `step`, counted from 0."""
        # The logarithm of the decay is more accurate: powers of the decay in float32 are off by 1e-3 after 100,000
        # updates.
        fallen = self.start_temperature * jnp.exp(math.log(self.decay) * step.astype(jnp.float32))
        return jnp.maximum(fallen, self.end_temperature)


class Quantized(NamedTuple):
    """Output of a quantiser."""

    values: Float[Array, "B T E"]
    codes: Int[Array, "B T G"]
    """Indices of the selected entries: drawn ones in training, the most probable ones in evaluation."""
    best: Int[Array, "B T G"]
    """Indices of the most probable entries."""
    probabilities: Float[Array, "B T G V"]
    """Probabilities of all entries, without noise and temperature."""


class GumbelQuantizer(nn.Module):
    """Product quantiser with Gumbel softmax, computed in float32.

    Training draws an entry with its probability, and the gradient is that of the softmax (straight-through estimator).
    Evaluation selects the most probable entry.

    Source: Baevski et al. 2020 (arXiv:2006.11477), section 2, equation 1; Jang et al. 2017 (arXiv:1611.01144);
    fairseq's modules/gumbel_vector_quantizer.py at commit 3d262bb2. Differs from: NVIDIA's train.py counts updates
    from 1, while fairseq and this module count from 0. Each update there has the temperature of the next update here.
    """

    settings: Quantizer
    features: int
    """Width of the values. Must be a multiple of `settings.groups`."""

    def setup(self) -> None:
        settings = self.settings
        shape = (settings.groups, settings.entries, self.features // settings.groups)
        self.codebook = self.param("codebook", nn.initializers.uniform(1.0), shape)

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], *, step: Step, noise: Float[Array, "B T G V"] | None = None
    ) -> Quantized:
        """Quantises `x`.

        Args:
            noise: Gumbel noise for training. None: drawn from the stream "dropout".
        """
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
        if noise is None:
            keys = row_keys(self.make_rng("dropout"), len(logits))
            noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:]))(keys)
        soft = jax.nn.softmax((logits + noise) / settings.temperature(step))
        codes = jnp.argmax(soft, axis=-1)
        drawn = jax.nn.one_hot(codes, settings.entries)
        chosen = drawn + soft - jax.lax.stop_gradient(soft)
        values = jnp.einsum("btgv,gve->btge", chosen, self.codebook)
        return Quantized(values.reshape(*x.shape[:2], -1), codes, best, probabilities)

    def values(self, codes: Int[Array, "*rest G"]) -> Float[Array, "*rest E"]:
        """Concatenates the codebook entries with the given indices."""
        parts = [self.codebook[group][codes[..., group]] for group in range(self.settings.groups)]
        return jnp.concatenate(parts, axis=-1)


def perplexity(
    probabilities: Float[Array, "B T G V"], weights: Float[Array, "B T"], *, parts: int = 1
) -> Float[Array, " {parts}"]:
    """Perplexity of the codebooks: Σ over groups of exp(entropy of the mean probabilities over weighted frames).

    It ranges from the number of groups, if all frames use the same entry, to the total number of entries of all groups.

    Args:
        parts: Number of micro-batches, each of which has its perplexity.

    Source: as `GumbelQuantizer`.
    """
    of_part = part_of_rows(len(weights), parts)
    num = jnp.maximum(total(of_part @ jnp.sum(weights, axis=1)), 1.0)
    of_rows = jnp.einsum("btgv,bt->bgv", probabilities, weights)
    mean = total(jnp.einsum("pb,bgv->pgv", of_part, of_rows)) / num[:, None, None]
    return jnp.sum(jnp.exp(-jnp.sum(mean * jnp.log(mean + 1e-7), axis=-1)), axis=-1)

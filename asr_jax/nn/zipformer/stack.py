"""Sizes of Zipformer's stacks, their skip rates and masks, and functions that join stacks of different widths.

Source: Yao et al. 2023 (arXiv:2310.11230), figure 1; parts of `Zipformer2Encoder` and `Zipformer2` in icefall's
egs/librispeech/ASR/zipformer/zipformer.py, with their schedules.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from asr_jax.core.shapes import DimSize
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import kept_of_rows

WARM_UP_BATCHES = 4000.0
MASKED_FEATURES = 0.125


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
    chunks: tuple[int | None, ...]
    """Length of a chunk in frames of this stack, for each context. None: one chunk."""
    left: tuple[int | None, ...]
    """Number of frames of this stack that attention sees before a chunk, for each context. None: all."""


def layer_skip_rates(number: int, num_stacks: int, sizes: StackSizes, *, step: Step) -> Float[Array, " L"]:
    """Probability that a row skips each layer of a stack in training.

    It is 0.5 at the start and decreases linearly to 0.035 · √downsampling during the layer's part of the warm-up. The
    warm-up has num_stacks + 1 equal parts. The first belongs to the embedding, and each of the others to a stack, whose
    layers divide it equally.

    Args:
        number: Index of the stack, from 0.

    Returns:
        Probability for each layer of the stack; 0 in evaluation.
    """
    if step is None:
        return jnp.zeros(sizes.num_layers)
    part = WARM_UP_BATCHES / (num_stacks + 1)
    starts = part * (number + 1 + jnp.arange(sizes.num_layers) / sizes.num_layers)
    end = 0.035 * sizes.downsampling**0.5
    return 0.5 + (end - 0.5) * jnp.clip((step - starts) / (part / sizes.num_layers), 0.0, 1.0)


def feature_masks(
    key: PRNGKeyArray | None, num_rows: DimSize, *, widths: tuple[int, ...], unmasked: tuple[int, ...], dtype: DTypeLike
) -> list[Float[Array, "B 1 _"] | None]:
    """Draws masks of channels, which are consistent across stacks: the same rows are masked in every stack.

    On average, 1/8 of the rows have all maskable channels masked, and about another 1/9 have the upper half of them
    masked.

    Args:
        key: Random key. None: no masks.
        unmasked: Number of channels of each stack that are never masked.

    Returns:
        Mask of each stack, 0 for masked channels and otherwise 1; None without a key.
    """
    if key is None:
        return [None] * len(widths)
    drawn = kept_of_rows(key, MASKED_FEATURES, (num_rows, 2, 1))
    first, second = drawn[:, :1], drawn[:, :1] & drawn[:, 1:]
    masks: list[Float[Array, "B 1 _"] | None] = []
    for width, always in zip(widths, unmasked, strict=True):
        channel = jnp.arange(width)[None, None]
        middle = always + (width - always) // 2
        masks.append(((channel < always) | ((channel < middle) & first) | second).astype(dtype))
    return masks


def to_width(x: Float[Array, "B T D"], width: int) -> Float[Array, "B T E"]:
    """Truncates the channels to `width`, or pads them with zeros."""
    return jnp.pad(x[..., :width], ((0, 0), (0, 0), (0, max(width - x.shape[-1], 0))))


def widest(outputs: list[Float[Array, "B T _"]]) -> Float[Array, "B T D"]:
    """Returns the last output, extended by the further channels of wider earlier outputs, each from the latest one."""
    x = outputs[-1]
    for earlier in reversed(outputs[:-1]):
        x = jnp.concatenate([x, earlier[..., x.shape[-1] :]], axis=-1)
    return x

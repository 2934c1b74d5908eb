"""Small operations with inputs drawn at random, and their values in NumPy, for the tests of all implementations."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.kernels.glu.api import glu
from asr_jax.kernels.masking import api as masking
from asr_jax.kernels.pairwise_downsample.api import pairwise_downsample
from asr_jax.kernels.relative_shift.api import relative_shift
from asr_jax.kernels.swoosh import api as swoosh
from tests.kernels.drawn import SEED, drawn
from tests.support import assert_close

HEADS, EXTRA = 3, 4
"""Heads of masks, and number of keys beyond that of queries."""


class Case(NamedTuple):
    """An operation with its inputs."""

    function: Callable[..., Any]
    arrays: tuple[Any, ...]
    """First arguments, in float32; they have gradients."""
    expected: Any
    """Values in NumPy."""
    others: tuple[Any, ...] = ()
    """Next arguments."""


def drawn_sizes(number: int, fewest: int) -> tuple[int, int, int]:
    """Rows, and odd numbers of frames and of channels."""
    random = np.random.default_rng(SEED + number)
    return int(random.integers(2, 4)), *(2 * int(each) + 1 for each in random.integers(fewest, 2 * fewest, 2))


SIZES = [drawn_sizes(0, 8), drawn_sizes(1, 40), (2, 1, 1)]
"""The second sizes have several blocks of frames and of channels, if blocks are small."""
DRAWN = drawn("small", (2, 4), (1, 150), (1, 200))


def cases(sizes: tuple[int, int, int]) -> dict[str, Case]:
    rows, frames, channels = sizes
    random = np.random.default_rng(frames)
    lengths = random.integers(1, frames + 1, rows)
    lengths[:2] = 0, frames
    valid = np.arange(frames) < lengths[:, None]
    pairs = (np.arange(frames)[:, None] < lengths[:, None, None]) & (np.arange(frames + EXTRA) < lengths[:, None, None])

    def array(*shape: int) -> Any:
        return random.normal(size=shape).astype(np.float32)

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    x, padded = 4 * array(rows, frames, channels), array(rows, frames, channels)
    padded[~valid] = np.nan
    transposed, update = padded.swapaxes(1, 2), array(*padded.shape)
    gated, gated_channels = array(rows, frames, 2 * channels), array(rows, 2 * channels, frames)
    scores = array(rows, 2, frames, 2 * frames - 1 + EXTRA)
    keys = frames - 1 + np.arange(frames + EXTRA) - np.arange(frames)[:, None]
    found = {
        "swoosh_l": Case(swoosh.swoosh_l, (x,), np.log(1 + np.exp(x - 4)) - 0.08 * x - 0.035),
        "swoosh_r": Case(swoosh.swoosh_r, (x,), np.log(1 + np.exp(x - 1)) - 0.08 * x - 0.313261687),
        "shifted_swish_l": Case(swoosh.shifted_swish_l, (x,), x * sigmoid(x - 4)),
        "shifted_swish_r": Case(swoosh.shifted_swish_r, (x,), x * sigmoid(x - 1)),
        "glu": Case(glu, (gated,), gated[..., :channels] * sigmoid(gated[..., channels:])),
        "glu of channels": Case(
            partial(glu, axis=-2),
            (gated_channels,),
            gated_channels[:, :channels] * sigmoid(gated_channels[:, channels:]),
        ),
        "mask_time": Case(masking.mask_time, (padded,), np.where(valid[..., None], padded, 0), (lengths,)),
        "mask_channel_time": Case(
            masking.mask_channel_time, (transposed,), np.where(valid[:, None], transposed, 0), (lengths,)
        ),
        "residual_add_mask_time": Case(
            masking.residual_add_mask_time, (padded, update), np.where(valid[..., None], padded + update, 0), (lengths,)
        ),
        "sequence_mask": Case(masking.sequence_mask, (), valid, (lengths, frames)),
        "padding_mask": Case(masking.padding_mask, (), ~valid, (lengths, frames)),
        "attention_mask": Case(masking.attention_mask, (), pairs, (lengths, frames, frames + EXTRA)),
        "attention_mask_4d": Case(
            masking.attention_mask_4d, (), np.repeat(pairs[:, None], HEADS, 1), (lengths, HEADS, frames, frames + EXTRA)
        ),
        "relative_shift": Case(
            relative_shift, (scores,), np.take_along_axis(scores, np.broadcast_to(keys, (rows, 2, *keys.shape)), -1)
        ),
    }
    for size in (1, 2, 3):
        logits = array(size)
        found[f"pairwise_downsample of {size}"] = Case(
            pairwise_downsample, (padded, logits), downsampled(padded, logits, lengths), (lengths,)
        )
    return {
        name: case._replace(arrays=tuple(map(_argument, case.arrays)), others=tuple(map(_argument, case.others)))
        for name, case in found.items()
    }


def _argument(value: Any) -> Any:
    """Returns an array on the device in 32 bits; other values as they are."""
    return jax.device_put(value) if isinstance(value, np.ndarray) else value


def downsampled(x: Any, logits: Any, lengths: Any) -> Any:
    """Loop over groups."""
    size, frames = len(logits), x.shape[1]
    found = np.zeros((len(x), -(-frames // size), x.shape[2]))
    for row, length in enumerate(lengths):
        for group in range(-(-length // size)):
            chosen = slice(group * size, min(group * size + size, length))
            weights = np.exp(logits[: chosen.stop - chosen.start])
            found[row, group] = weights / weights.sum() @ x[row, chosen]
    return found


def computed(case: Case, implementation: str, dtype: Any = jnp.float32) -> tuple[Any, ...]:
    """Values and gradients."""

    def call(*arrays: Any) -> Any:
        return case.function(*arrays, *case.others, implementation=implementation)

    arrays = [each.astype(dtype) for each in case.arrays]
    if not arrays:
        return (call(),)
    values, transpose = jax.vjp(call, *arrays)
    cotangent = np.random.default_rng(0).normal(size=values.shape)
    return values, *transpose(jax.device_put(cotangent.astype(dtype)))


def assert_computed(found: tuple[Any, ...], expected: tuple[Any, ...], dtype: Any = jnp.float32) -> None:
    """Compares results in a dtype with others in float32."""
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype if other.dtype == bool else dtype, other.shape)
        scale = max(float(jnp.abs(other).max()), 1.0)
        tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
        assert_close(one.astype(jnp.float32), other.astype(jnp.float32), atol=tolerance * scale, rtol=0)

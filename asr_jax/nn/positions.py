"""Position encodings, and shifts of attention scores from offsets to keys."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from asr_jax.core.pytrees import AnyArray
from asr_jax.core.shapes import DimSize, is_static, numbers


def compact_positions(num_frames: DimSize, width: int) -> Float[AnyArray, "R P"]:
    """Encodings of the R = 2 · num_frames - 1 offsets from -(num_frames - 1) to num_frames - 1, float32.

    Offsets are compressed by a logarithm and then by atan to (-π/2, π/2), which resolves small offsets well and large
    ones coarsely. The encoding interleaves cosines and sines of 1 to width/2 times this angle. The last value is 1, for
    a bias.

    For a symbolic `num_frames` they are computed in float32, and differ by up to 5e-6.

    Source: `CompactRelPositionalEncoding` in icefall's egs/librispeech/ASR/zipformer/zipformer.py.

    Raises:
        ValueError: If `width` is odd.
    """
    if width % 2:
        raise ValueError(f"the width of positions must be even, got {width}")
    offsets, near = numbers(-(num_frames - 1), num_frames), float(np.sqrt(width))
    xp, dtype = (np, np.float64) if is_static(num_frames) else (jnp, jnp.float32)
    offsets = offsets.astype(dtype)
    compressed = near * xp.sign(offsets) * xp.log1p(xp.abs(offsets) / near)
    angles = xp.arctan(compressed * 2 * np.pi / width)[:, None] * xp.arange(1, width // 2 + 1)[None]
    positions = xp.stack([xp.cos(angles), xp.sin(angles)], axis=-1).reshape(2 * num_frames - 1, width)
    return xp.where(np.arange(width)[None] == width - 1, 1.0, positions).astype(np.float32)


def sinusoids(positions: Real[AnyArray, " N"], width: int) -> Float[AnyArray, "N D"]:
    """Sinusoidal position encodings: sin(p / 10000^(2i/width)) at even indices, cos at odd ones; float32.

    Source: Vaswani et al. 2017, "Attention is all you need" (arXiv:1706.03762), section 3.5.

    Raises:
        ValueError: If `width` is odd.
    """
    if width % 2:
        raise ValueError(f"the width of positions must be even, got {width}")
    parts = sines_and_cosines(positions, 10000.0 ** (-np.arange(0, width, 2) / width))
    return parts[0].__array_namespace__().stack(parts, axis=-1).reshape(positions.shape[0], width).astype(np.float32)


def sines_and_cosines(
    positions: Real[AnyArray, " N"], rates: Float[np.ndarray, " C"]
) -> tuple[Float[AnyArray, "N C"], Float[AnyArray, "N C"]]:
    """Returns the sines and the cosines of the products of positions and rates.

    Args:
        positions: Integers: a constant, for which the results are float64, or an array of JAX, for which they are
            float32.
        rates: Angles per position in radians, from 0 to 1.
    """
    if isinstance(positions, np.ndarray):
        angles = positions.astype(np.float64)[:, None] * rates[None]
        return np.sin(angles), np.cos(angles)
    # The product of a large position and a rate has too few digits in float32. Whole turns are subtracted from a part
    # of it that is exact, because the rate's part has 10 digits in base 2.
    positions, turns = positions.astype(jnp.float32)[:, None], rates[None] / (2 * np.pi)
    coarse = np.round(turns * 4096) / 4096
    exact = positions * coarse.astype(np.float32)
    angles = (exact - jnp.floor(exact) + positions * (turns - coarse).astype(np.float32)) * (2 * np.pi)
    return jnp.sin(angles), jnp.cos(angles)


def relative_sinusoids(num_frames: DimSize, width: int, *, before: int = 0) -> Float[AnyArray, "R D"]:
    """Sinusoidal encodings of the R = 2 · num_frames - 1 + before relative positions t - s of query t and key s.

    They are ordered by the offset s - t, from -(num_frames - 1) - before to num_frames - 1, as
    `kernels.relative_shift` expects.

    Args:
        before: Number of keys before the first query.

    Source: Transformer-XL (arXiv:1901.02860), appendix B.
    """
    return sinusoids(-numbers(-(num_frames - 1) - before, num_frames), width)


def clipped_distances(scores: Float[Array, "... T R"], left: int) -> Float[Array, "... T T"]:
    """Converts scores by query t and distance -left, …, right to scores by query t and key s, with clipped distances.

    y[t, s] = x[t, left + clip(s - t, -left, right)]. As in `kernels.relative_shift`, reshaping to rows that are shorter
    by one shifts each row by one more element than the row before. The gradient of a gather would be a scatter, which
    is avoided.
    """
    *rest, num_frames, num_distances = scores.shape
    if not is_static(num_frames):
        place = jnp.arange(num_frames)[None] - jnp.arange(num_frames)[:, None] + left
        place = place.reshape(*(1 for _ in rest), num_frames, num_frames)
        return jnp.take_along_axis(scores, jnp.clip(place, 0, num_distances - 1), axis=-1)
    size = max(num_distances, num_frames + 1)
    pads = [(0, 0, 0)] * len(rest)
    flat = jax.lax.pad(scores, jnp.zeros((), scores.dtype), [*pads, (0, 0, 0), (0, size - num_distances, 0)])
    flat = flat.reshape(*rest, num_frames * size)
    flat = jax.lax.pad(flat, jnp.zeros((), scores.dtype), [*pads, (-left, max(left - num_frames, 0), 0)])
    near = flat[..., : num_frames * (size - 1)].reshape(*rest, num_frames, size - 1)[..., :num_frames]
    distance = jnp.arange(num_frames)[None] - jnp.arange(num_frames)[:, None]
    distance = distance.reshape(*(1 for _ in rest), num_frames, num_frames)
    before = jnp.where(distance < -left, scores[..., :1], near)
    return jnp.where(distance > num_distances - 1 - left, scores[..., -1:], before)


def rotated(x: Float[Array, "B T H C"], base: float) -> Float[Array, "B T H C"]:
    """Applies rotary position embeddings: rotates each pair of channels (c, c + C/2) by t · base^(-2c/C) at frame t.

    Source: Su et al. 2021, "RoFormer" (arXiv:2104.09864). Differs from: pairs are c and c + C/2, instead of adjacent
    channels.
    """
    half = x.shape[-1] // 2
    parts = sines_and_cosines(numbers(0, x.shape[1]), base ** (-np.arange(half) / half))
    sin, cos = (jnp.asarray(part, x.dtype)[None, :, None] for part in parts)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

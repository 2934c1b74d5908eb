"""Position encodings, and shifts of attention scores from offsets to keys."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def compact_positions(num_frames: int, width: int) -> Float[np.ndarray, "R P"]:
    """Encodings of the R = 2 · num_frames - 1 offsets from -(num_frames - 1) to num_frames - 1, float32.

    Offsets are compressed by a logarithm and then by atan to (-π/2, π/2), which resolves small offsets well and large
    ones coarsely. The encoding interleaves cosines and sines of 1 to width/2 times this angle. The last value is 1, for
    a bias.

    Source: `CompactRelPositionalEncoding` in icefall's egs/librispeech/ASR/zipformer/zipformer.py.

    Raises:
        ValueError: If `width` is odd.
    """
    if width % 2:
        raise ValueError(f"the width of positions must be even, got {width}")
    offsets = np.arange(-(num_frames - 1), num_frames, dtype=np.float64)
    near = np.sqrt(width)
    compressed = near * np.sign(offsets) * np.log1p(np.abs(offsets) / near)
    angles = np.arctan(compressed * 2 * np.pi / width)[:, None] * np.arange(1, width // 2 + 1)
    positions = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(len(offsets), width)
    positions[:, -1] = 1.0
    return positions.astype(np.float32)


def sinusoids(positions: Float[np.ndarray, " N"], width: int) -> Float[np.ndarray, "N D"]:
    """Sinusoidal position encodings: sin(p / 10000^(2i/width)) at even indices, cos at odd ones; float32.

    Source: Vaswani et al. 2017, "Attention is all you need" (arXiv:1706.03762), section 3.5.

    Raises:
        ValueError: If `width` is odd.
    """
    if width % 2:
        raise ValueError(f"the width of positions must be even, got {width}")
    angles = np.asarray(positions, np.float64)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(angles), width).astype(np.float32)


def relative_sinusoids(num_frames: int, width: int, *, before: int = 0) -> Float[np.ndarray, "R D"]:
    """Sinusoidal encodings of the R = 2 · num_frames - 1 + before relative positions t - s of query t and key s.

    They are ordered by the offset s - t, from -(num_frames - 1) - before to num_frames - 1, as
    `kernels.relative_shift` expects.

    Args:
        num_frames: Number of queries.
        width: Width of an encoding. Must be even.
        before: Number of keys before the first query.

    Source: Transformer-XL (arXiv:1901.02860), appendix B.
    """
    return sinusoids(-np.arange(-(num_frames - 1) - before, num_frames, dtype=np.float64), width)


def clipped_distances(scores: Float[Array, "... T R"], left: int) -> Float[Array, "... T T"]:
    """Converts scores by query t and distance -left, …, right to scores by query t and key s, with clipped distances.

    y[t, s] = x[t, left + clip(s - t, -left, right)]. As in `kernels.relative_shift`, reshaping to rows that are shorter
    by one shifts each row by one more element than the row before. The gradient of a gather would be a scatter, which
    is avoided.
    """
    *rest, num_frames, num_distances = scores.shape
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
    angles = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    cos, sin = (jnp.asarray(part, x.dtype)[None, :, None] for part in (np.cos(angles), np.sin(angles)))
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

"""Grouped convolution as a product of spectra: a few large matrix products, forward and backward.

With K taps, G groups and D channels, direct convolution takes 2·K·D²/G operations per frame. With blocks of 3K/2
frames, of which K/2 are new, transforms and products together take a third of that for K = 128, D = 768, G = 16. The
transforms are products with constant matrices, and their results have the layout that the products need.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def conv(x: Float[Array, "B T D"], kernel: Float[Array, "K C E"], *, groups: int) -> Float[Array, "B T E"]:
    """Computes `api.grouped_conv` by the overlap-save method.

    Source: Oppenheim and Schafer, "Discrete-Time Signal Processing", section 8.7.
    """
    (rows, frames, _), (taps, ins, outs) = x.shape, kernel.shape
    new = max(taps // 2, 1)
    size, num = taps - 1 + new, -(-frames // new)
    x = jnp.pad(x, ((0, 0), (taps // 2, num * new + taps - 1 - frames - taps // 2), (0, 0)))
    blocks = jnp.stack([x[:, first : first + size] for first in range(0, num * new, new)], axis=1)
    transform = jnp.asarray(_to_spectrum(size), x.dtype)
    spectra = jnp.einsum("fs,rsd->frd", transform, blocks.reshape(rows * num, size, -1))
    spectra = spectra.reshape(2, -1, rows * num, groups, ins)
    filters = (transform[:, :taps] @ kernel.reshape(taps, -1)).reshape(2, -1, ins, groups, outs // groups)
    # One product of the real and imaginary parts of both. The filter's spectrum is conjugated, because the operation is
    # a correlation.
    parts = jnp.einsum("afrgc,bfcge->fgarbe", spectra, filters)
    real, imaginary = parts[:, :, 0, :, 0] + parts[:, :, 1, :, 1], parts[:, :, 1, :, 0] - parts[:, :, 0, :, 1]
    products = jnp.stack([real, imaginary]).reshape(-1, groups, rows * num, outs // groups)
    y = jnp.einsum("ft,fgre->rtge", jnp.asarray(_from_spectrum(size, new), x.dtype), products)
    return y.reshape(rows, num * new, outs)[:, :frames]


def _to_spectrum(size: int) -> np.ndarray:
    """Returns the matrix [2 F, size] of the transform to real parts, then imaginary parts, F = size // 2 + 1."""
    angles = _angles(size, size)
    return np.concatenate([np.cos(angles), -np.sin(angles)])


def _from_spectrum(size: int, num: int) -> np.ndarray:
    """Returns the matrix [2 F, num] of the inverse transform of `_to_spectrum` to the first `num` samples."""
    angles, frequency = _angles(size, num), np.arange(size // 2 + 1)
    weights = np.where((frequency == 0) | (2 * frequency == size), 1, 2)[:, None] / size
    return np.concatenate([weights * np.cos(angles), -weights * np.sin(angles)])


def _angles(size: int, num: int) -> np.ndarray:
    return 2 * np.pi / size * (np.arange(size // 2 + 1)[:, None] * np.arange(num) % size)

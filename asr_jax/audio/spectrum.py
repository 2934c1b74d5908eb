"""From samples to the energies of mel bins: windows that padding never changes, their spectrum, and a bank."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Window = Literal["povey", "hann", "hann_periodic", "hann_centred", "hamming", "blackman"]
Edges = Literal["mirror", "reflect", "zeros"]
"""How a signal goes on beyond its ends: mirrored with its last sample repeated, or not repeated; or silent."""

MAX_BLOCKS = 64  # slices per window; the time to compile them grows with their number


def windows(
    samples: Float[Array, "B S"],
    lengths: Int[Array, " B"],
    num_frames: int,
    *,
    first: int,
    window: int,
    hop: int,
    edges: Edges,
) -> Float[Array, "B T window"]:
    """`num_frames` overlapping windows; the first one begins at sample `first`, which may lie before the signal.

    What lies behind a row's length is not read: the signal goes on there as `edges` says.
    """
    before = max(-first, 0)
    if edges == "zeros":
        samples = jnp.where(jnp.arange(samples.shape[1])[None] < lengths[:, None], samples, 0.0)
        samples = jnp.pad(samples, ((0, 0), (before, 0)))
    else:
        samples = _mirror_ends(samples, lengths, before=before, after=window + hop, repeats_last=edges == "mirror")
    return _cut(samples[:, max(first, 0) :], num_frames, window=window, hop=hop)


def mel_energies(
    frames: Float[Array, "B T window"], *, window: Window, fft_length: int, bank: np.ndarray, power: bool
) -> Float[Array, "B T M"]:
    """Sums over the bank's bins of the power (or the magnitude) of the spectrum of each windowed frame."""
    spectrum = jnp.fft.rfft(frames * window_shape(window, frames.shape[-1])[None, None], n=fft_length)
    magnitude = jnp.square(spectrum.real) + jnp.square(spectrum.imag)
    if not power:
        magnitude = jnp.sqrt(magnitude)
    # HIGHEST: the default on recent GPUs is TF32, which costs three digits of every feature.
    return jnp.matmul(magnitude, bank, precision=jax.lax.Precision.HIGHEST)


@functools.cache
def window_shape(name: Window, length: int) -> np.ndarray:
    """The window's values, float32. hann, hamming and blackman end as they begin; hann_periodic would begin anew one
    sample later, hann_centred half a sample before its first and after its last."""
    place = np.arange(length)
    angle = 2 * np.pi * place / (length - 1)
    shapes = {
        "povey": (0.5 - 0.5 * np.cos(angle)) ** 0.85,
        "hann": 0.5 - 0.5 * np.cos(angle),
        "hann_periodic": 0.5 - 0.5 * np.cos(2 * np.pi * place / length),
        "hann_centred": 0.5 - 0.5 * np.cos(2 * np.pi * (place + 0.5) / length),
        "hamming": 0.54 - 0.46 * np.cos(angle),
        "blackman": 0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle),
    }
    return shapes[name].astype(np.float32)


def _mirror_ends(
    samples: Float[Array, "B S"], lengths: Int[Array, " B"], *, before: int, after: int, repeats_last: bool
) -> Float[Array, "B padded"]:
    """Mirrors samples in front of each row and behind its own end; a row that is shorter than what is mirrored is
    mirrored again and again."""
    length = jnp.maximum(lengths, 1)[:, None]
    round_trip = 2 * length if repeats_last else jnp.maximum(2 * length - 2, 1)

    def mirrored(positions: Int[Array, "B N"]) -> Float[Array, "B N"]:
        place = positions % round_trip
        back = round_trip - 1 - place if repeats_last else round_trip - place
        return jnp.take_along_axis(samples, jnp.minimum(place, back), axis=1)

    front = mirrored(jnp.arange(-before, 0)[None] + jnp.zeros_like(length))
    behind = mirrored(lengths[:, None] + jnp.arange(after)[None])
    padded = jnp.pad(samples, ((0, 0), (0, after)))
    padded = jax.vmap(lambda row, tail, start: jax.lax.dynamic_update_slice(row, tail, (start,)))(
        padded, behind, lengths
    )
    return jnp.concatenate([front, padded], axis=1)


def _cut(samples: Float[Array, "B S"], num_frames: int, *, window: int, hop: int) -> Float[Array, "B T window"]:
    """Overlapping windows as strided slices of blocks: a gather is many times slower, and left to odd sizes."""
    block = int(np.gcd(window, hop))
    per_window, per_hop = window // block, hop // block
    if per_window > MAX_BLOCKS:
        missing = max((num_frames - 1) * hop + window - samples.shape[1], 0)
        positions = hop * np.arange(num_frames)[:, None] + np.arange(window)[None]
        return jnp.pad(samples, ((0, 0), (0, missing)))[:, positions]
    num_blocks = (num_frames - 1) * per_hop + per_window if num_frames else 0
    missing = max(num_blocks * block - samples.shape[1], 0)
    blocks = jnp.pad(samples, ((0, 0), (0, missing)))[:, : num_blocks * block]
    blocks = blocks.reshape(samples.shape[0], num_blocks, block)
    last = (num_frames - 1) * per_hop + 1
    parts = [blocks[:, i : i + last : per_hop] if num_frames else blocks for i in range(per_window)]
    return jnp.concatenate(parts, axis=-1)

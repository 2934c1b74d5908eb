"""From samples to the energies of mel bins: windows that padding never changes, their spectrum, and a bank."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int

Window = Literal["povey", "hann", "hann_periodic", "hann_centred", "hamming", "blackman"]
Edges = Literal["mirror", "reflect", "zeros"]
"""How a signal goes on beyond its ends: mirrored with its last sample repeated, or not repeated; or silent."""

MAX_BLOCKS = 64  # slices per window; the time to compile them grows with their number


def extended(
    samples: Float[Array, "B S"], lengths: Int[Array, " B"], *, first: int, after: int, edges: Edges
) -> Float[Array, "B E"]:
    """The signal from sample `first` on, which may lie before it, to at least `after` samples behind each row's length.

    What lies behind a row's length is not read: the signal goes on there as `edges` says.
    """
    before = max(-first, 0)
    if edges == "zeros":
        samples = jnp.where(jnp.arange(samples.shape[1])[None] < lengths[:, None], samples, 0.0)
        silence = [jnp.zeros((len(samples), size)) for size in (before, after)]
        samples = jnp.concatenate([silence[0], samples, silence[1]], axis=1)
    else:
        samples = _mirror_ends(samples, lengths, before=before, after=after, repeats_last=edges == "mirror")
    return samples[:, max(first, 0) :]


def pre_emphasised(samples: Float[Array, "B S"], weight: float) -> Float[Array, "B S"]:
    """Each sample less `weight` times the one before; the first one as it is."""
    if not weight:
        return samples
    before = jnp.concatenate([jnp.zeros((len(samples), 1)), samples[:, :-1]], axis=1)
    return samples - weight * before


def windows(
    samples: Float[Array, "B S"], num_frames: int, *, window: int, hop: int, size: int
) -> Float[Array, "B T size"]:
    """`num_frames` overlapping windows, each followed by zeros up to `size`. The signal is long enough for them or ends
    in silence.

    They are strided slices of blocks: a gather is many times slower, and left to odd sizes; zeros that are padded to
    the windows later cost as much as the Fourier transform on a CPU.
    """
    rows = len(samples)
    zeros = jnp.zeros((rows, num_frames, size - window))
    blocks, per_window, per_hop = _blocks(samples, num_frames, window, hop)
    if blocks is None:
        needed = _of_length(samples, (num_frames - 1) * hop + window)
        positions = hop * np.arange(num_frames)[:, None] + np.arange(window)[None]
        return jnp.concatenate([needed[:, positions], zeros], axis=-1)
    last = (num_frames - 1) * per_hop + 1
    parts = [blocks[:, i : i + last : per_hop] if num_frames else blocks for i in range(per_window)]
    return jnp.concatenate([*parts, zeros], axis=-1)


def window_means(samples: Float[Array, "B S"], num_frames: int, *, window: int, hop: int) -> Float[Array, "B T"]:
    """The mean of each of the windows."""
    blocks, per_window, per_hop = _blocks(samples, num_frames, window, hop)
    if blocks is None:
        return windows(samples, num_frames, window=window, hop=hop, size=window).mean(axis=-1)
    sums, last = blocks.sum(axis=-1), (num_frames - 1) * per_hop + 1
    parts = [sums[:, i : i + last : per_hop] if num_frames else sums for i in range(per_window)]
    return jnp.sum(jnp.stack(parts), axis=0) / window


def mel_energies(
    frames: Float[Array, "B T N"],
    *,
    window: Window,
    length: int,
    bank: np.ndarray,
    power: bool,
    noise: np.ndarray | None = None,
) -> Float[Array, "B T M"]:
    """Sums over the bins of the bank of the power (or the magnitude) of each frame's spectrum. Of a frame the first
    `length` values are windowed; the others are zeros. `noise` is added to the power of each bin of the spectrum.
    """
    shape = np.pad(window_shape(window, length), (0, frames.shape[-1] - length))
    spectrum = jnp.fft.rfft(frames * shape[None, None])
    magnitude = jnp.square(spectrum.real) + jnp.square(spectrum.imag)
    if noise is not None:
        magnitude += noise.astype(np.float32)[None, None]
    if not power:
        magnitude = jnp.sqrt(magnitude)
    # Computed inside of the product, as XLA would have it on a CPU, it is half as fast.
    magnitude = jax.lax.optimization_barrier(magnitude)
    # HIGHEST: the default on recent GPUs is TF32, which costs three digits of every feature.
    return jnp.matmul(magnitude, bank, precision=jax.lax.Precision.HIGHEST)


@functools.cache
def window_shape(name: Window, length: int) -> np.ndarray:
    """The window's values, float32. hann, hamming and blackman end as they begin; hann_periodic would begin anew one
    sample later, hann_centred half a sample before its first and after its last.
    """
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


def noise_power(window: Window, length: int, fft_length: int, *, preemphasis: float) -> Float64[np.ndarray, " bins"]:
    """Mean power of white noise of variance 1 in each bin of the spectrum of pre-emphasised, windowed frames."""
    turns = np.exp(-2j * np.pi * np.arange(fft_length // 2 + 1) / fft_length)
    windowed = np.sum(np.square(window_shape(window, length), dtype=np.float64))
    return windowed * np.abs(1 - preemphasis * turns) ** 2


def _mirror_ends(
    samples: Float[Array, "B S"], lengths: Int[Array, " B"], *, before: int, after: int, repeats_last: bool
) -> Float[Array, "B padded"]:
    """Mirrors samples in front of each row and behind its own end; a row that is shorter than what is mirrored is
    mirrored again and again.
    """
    length = jnp.maximum(lengths, 1)[:, None]
    round_trip = 2 * length if repeats_last else jnp.maximum(2 * length - 2, 1)

    def mirrored(positions: Int[Array, "B N"]) -> Float[Array, "B N"]:
        place = positions % round_trip
        back = round_trip - 1 - place if repeats_last else round_trip - place
        return jnp.take_along_axis(samples, jnp.minimum(place, back), axis=1)

    front = mirrored(jnp.arange(-before, 0)[None] + jnp.zeros_like(length))
    behind = mirrored(lengths[:, None] + jnp.arange(after)[None])
    padded = jnp.concatenate([samples, jnp.zeros((len(samples), after))], axis=1)
    padded = jax.vmap(lambda row, tail, start: jax.lax.dynamic_update_slice(row, tail, (start,)))(
        padded, behind, lengths
    )
    return jnp.concatenate([front, padded], axis=1)


def _blocks(
    samples: Float[Array, "B S"], num_frames: int, window: int, hop: int
) -> tuple[Float[Array, "B N block"] | None, int, int]:
    """The signal in blocks that windows and hops are whole numbers of, and these numbers; None for sizes that have only
    small ones.
    """
    block = int(np.gcd(window, hop))
    per_window, per_hop = window // block, hop // block
    if per_window > MAX_BLOCKS:
        return None, per_window, per_hop
    num_blocks = (num_frames - 1) * per_hop + per_window if num_frames else 0
    return _of_length(samples, num_blocks * block).reshape(len(samples), num_blocks, block), per_window, per_hop


def _of_length(samples: Float[Array, "B S"], size: int) -> Float[Array, "B size"]:
    """Cut, or with silence behind it."""
    missing = max(size - samples.shape[1], 0)
    longer = jnp.concatenate([samples, jnp.zeros((len(samples), missing))], axis=1) if missing else samples
    return longer[:, : max(size, 0)]

"""Short-time spectra: windows of samples that are independent of padding, and mel energies of their spectra."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import max_dim
from jaxtyping import Array, Float, Float64, Int

from asr_jax.core.shapes import DimSize, is_static, numbers

WindowShape = Literal["povey", "hann", "hann_periodic", "hann_centred", "hamming", "blackman"]
Edges = Literal["mirror", "reflect", "zeros"]
"""Extension of a signal beyond its ends. mirror: mirrored with the last sample repeated; reflect: mirrored without
repeating it; zeros: silence."""

MAX_BLOCKS = 64  # maximum number of slices per window: compile time grows with their number


def extended(
    samples: Float[Array, "B S"], lengths: Int[Array, " B"], *, first: int, after: int, edges: Edges
) -> Float[Array, "B E"]:
    """Extends each row beyond its ends.

    Samples behind a row's length are not read; they are replaced by the extension.

    Args:
        lengths: Number of valid samples of each row.
        first: Sample at which the result begins; negative values extend the signal at its beginning.
        after: Minimum number of samples behind each row's length.
        edges: Extension of the signal beyond its ends.

    Returns:
        The extended samples.
    """
    before = max(-first, 0)
    if edges == "zeros":
        samples = jnp.where(jnp.arange(samples.shape[1])[None] < lengths[:, None], samples, 0.0)
        silence = [jnp.zeros((samples.shape[0], size)) for size in (before, after)]
        samples = jnp.concatenate([silence[0], samples, silence[1]], axis=1)
    else:
        samples = _mirror_ends(samples, lengths, before=before, after=after, repeats_last=edges == "mirror")
    return samples[:, max(first, 0) :]


def pre_emphasised(samples: Float[Array, "B S"], weight: float) -> Float[Array, "B S"]:
    """Subtracts `weight` times the previous sample from each sample; the first sample does not change."""
    if not weight:
        return samples
    before = jnp.concatenate([jnp.zeros((samples.shape[0], 1)), samples[:, :-1]], axis=1)
    return samples - weight * before


def windows(
    samples: Float[Array, "B S"], num_frames: DimSize, *, window: int, hop: int, size: int
) -> Float[Array, "B T size"]:
    """Splits the signal into overlapping windows.

    Windows are concatenated from strided slices of blocks, because a gather is many times slower; a gather is used only
    if the lengths of window and hop have only small common divisors. The zeros are part of the same concatenation: to
    pad the windows later costs as much as the Fourier transform on a CPU.

    Args:
        samples: Samples of each row. A signal that is too short is extended by zeros.
        window: Length of a window in samples.
        hop: Distance between two windows in samples.
        size: Number of samples per window in the result: the window followed by zeros.

    Returns:
        Windows `[B, num_frames, size]`.
    """
    rows = samples.shape[0]
    zeros = jnp.zeros((rows, num_frames, size - window))
    blocks, per_window, per_hop = _blocks(samples, num_frames, window, hop)
    if blocks is None:
        needed = _of_length(samples, (num_frames - 1) * hop + window)
        positions = hop * numbers(0, num_frames)[:, None] + np.arange(window)[None]
        return jnp.concatenate([needed[:, positions], zeros], axis=-1)
    last = (num_frames - 1) * per_hop + 1
    parts = [blocks[:, i : i + last : per_hop] if num_frames else blocks for i in range(per_window)]
    return jnp.concatenate([*parts, zeros], axis=-1)


def window_means(samples: Float[Array, "B S"], num_frames: DimSize, *, window: int, hop: int) -> Float[Array, "B T"]:
    """Computes the mean of each window.

    Args:
        samples: Samples of each row. A signal that is too short is extended by zeros.
        window: Length of a window in samples.
        hop: Distance between two windows in samples.
    """
    blocks, per_window, per_hop = _blocks(samples, num_frames, window, hop)
    if blocks is None:
        return windows(samples, num_frames, window=window, hop=hop, size=window).mean(axis=-1)
    sums, last = blocks.sum(axis=-1), (num_frames - 1) * per_hop + 1
    parts = [sums[:, i : i + last : per_hop] if num_frames else sums for i in range(per_window)]
    return jnp.sum(jnp.stack(parts), axis=0) / window


def kaldi_windows(
    samples: Float[Array, "B S"],
    lengths: Int[Array, " B"],
    num_frames: DimSize,
    *,
    window: int,
    hop: int,
    size: int,
    snip_edges: bool,
    preemphasis: float,
    removes_mean: bool = True,
) -> Float[Array, "B T size"]:
    """Returns windows as Kaldi computes them: without their mean, then pre-emphasised.

    The first sample of a window is its own predecessor. Both operations are linear: the whole signal is pre-emphasised
    once, and each window is corrected by its mean and its first sample.

    Args:
        lengths: Number of valid samples of each row.
        window: Length of a window in samples.
        hop: Distance between two windows in samples.
        size: Number of samples per window in the result: the window followed by zeros.
        snip_edges: Whether windows begin with a hop instead of being around its centre.
        preemphasis: Weight of the previous sample.
        removes_mean: Whether the mean of each window is subtracted.
    """
    first = 0 if snip_edges else hop // 2 - window // 2
    edges: Edges = "zeros" if snip_edges else "mirror"
    signal = extended(samples, lengths, first=first, after=window + hop, edges=edges)
    rest = 1.0 - preemphasis
    frames = windows(pre_emphasised(signal, preemphasis), num_frames, window=window, hop=hop, size=size)
    firsts = windows(signal, num_frames, window=hop, hop=hop, size=hop)[..., 0]
    if removes_mean:
        means = window_means(signal, num_frames, window=window, hop=hop)
        frames, firsts = frames - rest * means[..., None], firsts - means
    if preemphasis:
        is_first = jnp.arange(size)[None, None] == 0
        frames = jnp.where(is_first, rest * firsts[..., None], frames)
    return frames


def mel_energies(
    frames: Float[Array, "B T N"],
    *,
    window: WindowShape,
    length: int,
    bank: np.ndarray,
    power: bool = True,
    noise: np.ndarray | None = None,
) -> Float[Array, "B T M"]:
    """Computes the mel energies of windows of samples.

    Args:
        frames: N samples of each window: `length` values, followed by zeros.
        length: Length of the window in samples.
        bank: Mel filter bank `[N // 2 + 1, M]`.
        power: Whether the bank is applied to the power spectrum instead of the magnitude spectrum.
        noise: Power added to each bin of the power spectrum `[N // 2 + 1]`. None: nothing is added.

    Returns:
        Mel energies of each frame.
    """
    shape = np.pad(window_shape(window, length), (0, frames.shape[-1] - length))
    spectrum = jnp.fft.rfft(frames * shape[None, None])
    magnitude = jnp.square(spectrum.real) + jnp.square(spectrum.imag)
    if noise is not None:
        magnitude += noise.astype(np.float32)[None, None]
    if not power:
        magnitude = jnp.sqrt(magnitude)
    # Without the barrier, XLA fuses this into the matrix product on a CPU, which is half as fast.
    magnitude = jax.lax.optimization_barrier(magnitude)
    # HIGHEST: the default precision on recent GPUs is TF32, which loses three digits of every feature.
    return jnp.matmul(magnitude, bank, precision=jax.lax.Precision.HIGHEST)


@functools.cache
def window_shape(name: WindowShape, length: int) -> np.ndarray:
    """Returns the float32 values of a window.

    hann, hamming and blackman end with the value that they begin with. hann_periodic has a period of `length` samples.
    hann_centred is zero half a sample before its first and half a sample after its last value.
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


def noise_power(
    window: WindowShape, length: int, fft_length: int, *, preemphasis: float
) -> Float64[np.ndarray, " bins"]:
    """Returns the mean power spectrum of pre-emphasised, windowed white noise of variance 1.

    Args:
        length: Length of the window in samples.
        fft_length: Length of the Fourier transform in samples.
        preemphasis: Pre-emphasis coefficient.

    Returns:
        Mean power `[fft_length // 2 + 1]` of each bin of the spectrum.
    """
    turns = np.exp(-2j * np.pi * np.arange(fft_length // 2 + 1) / fft_length)
    windowed = np.sum(np.square(window_shape(window, length), dtype=np.float64))
    return windowed * np.abs(1 - preemphasis * turns) ** 2


def _mirror_ends(
    samples: Float[Array, "B S"], lengths: Int[Array, " B"], *, before: int, after: int, repeats_last: bool
) -> Float[Array, "B padded"]:
    """Mirrors samples in front of each row and behind its length; short rows are mirrored repeatedly."""
    length = jnp.maximum(lengths, 1)[:, None]
    round_trip = 2 * length if repeats_last else jnp.maximum(2 * length - 2, 1)

    def mirrored(positions: Int[Array, "B N"]) -> Float[Array, "B N"]:
        place = positions % round_trip
        back = round_trip - 1 - place if repeats_last else round_trip - place
        return jnp.take_along_axis(samples, jnp.minimum(place, back), axis=1)

    if not is_static(*samples.shape):  # the scatter below is faster, but other runtimes have no equivalent
        positions = jnp.arange(samples.shape[1] + before + after) - before
        return mirrored(positions[None] + jnp.zeros_like(length))
    front = mirrored(jnp.arange(-before, 0)[None] + jnp.zeros_like(length))
    behind = mirrored(lengths[:, None] + jnp.arange(after)[None])
    padded = jnp.concatenate([samples, jnp.zeros((samples.shape[0], after))], axis=1)
    padded = jax.vmap(lambda row, tail, start: jax.lax.dynamic_update_slice(row, tail, (start,)))(
        padded, behind, lengths
    )
    return jnp.concatenate([front, padded], axis=1)


def _blocks(
    samples: Float[Array, "B S"], num_frames: DimSize, window: int, hop: int
) -> tuple[Float[Array, "B N block"] | None, int, int]:
    """Splits the signal into blocks whose length divides the lengths of window and hop.

    Returns:
        Blocks, the number of blocks per window, and the number of blocks per hop. Blocks are None if a window has more
        than MAX_BLOCKS of them.
    """
    block = int(np.gcd(window, hop))
    per_window, per_hop = window // block, hop // block
    if per_window > MAX_BLOCKS:
        return None, per_window, per_hop
    num_blocks = (num_frames - 1) * per_hop + per_window if num_frames else 0
    return _of_length(samples, num_blocks * block).reshape(samples.shape[0], num_blocks, block), per_window, per_hop


def _of_length(samples: Float[Array, "B S"], size: DimSize) -> Float[Array, "B size"]:
    """Truncates the signal to `size` samples, or extends it by zeros."""
    missing = max_dim(size - samples.shape[1], 0)
    longer = jnp.concatenate([samples, jnp.zeros((samples.shape[0], missing))], axis=1) if missing else samples
    return longer[:, : max_dim(size, 0)]

"""Front-ends: samples to features, on the device, the same compiled code in training, evaluation and transcription."""

import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from asr_jax.core.batch import Frames, length_mask

Window = Literal["povey", "hanning", "hamming"]

MAX_BLOCKS = 64  # slices per window; the time to compile them grows with their number
FLOAT_EPSILON = 1.1920928955078125e-07  # Kaldi's floor before the logarithm


@dataclass(frozen=True)
class FrontEnd:
    """Settings of a front-end; calling it turns samples into frames. It has no parameters."""

    rate_hz: int = 16000
    """Sample rate that audio is resampled to."""

    @property
    def num_features(self) -> int:
        """Values per frame."""
        raise NotImplementedError

    @property
    def band_hz(self) -> tuple[float, float]:
        """Lower and upper edge of what is heard."""
        raise NotImplementedError

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        raise NotImplementedError

    def output_length(self, num_samples: Any) -> Any:
        """Frames for a number of samples: for ints and arrays."""
        raise NotImplementedError

    def __call__(self, audio: Shaped[Array, "B S"], lengths: Int[Array, " B"]) -> Frames:
        """Features of int16 or float samples of full scale 32768; frames beyond the length are those of silence."""
        raise NotImplementedError


@dataclass(frozen=True)
class KaldiFbank(FrontEnd):
    """Log-mel energies as Kaldi's `compute-fbank-feats` without dither and energy; the defaults are icefall's.

    Padding never changes a frame: at the end of an utterance its own samples are mirrored, wherever the row ends.

    Source: Kaldi `feat/feature-window.cc`, `feat/mel-computations.cc`, by way of kaldi-native-fbank 1.22.
    """

    num_mels: int = 80
    """Mel bins."""
    window_ms: float = 25.0
    """Length of a window in milliseconds."""
    hop_ms: float = 10.0
    """From one window to the next in milliseconds."""
    low_hz: float = 20.0
    """Lower edge of the mel bank."""
    high_hz: float = -400.0
    """Upper edge of the mel bank; 0 or less counts down from half the sample rate."""
    window: Window = "povey"
    """Window shape; povey is a Hann window to the power of 0.85."""
    preemphasis: float = 0.97
    """Weight of the sample before, within a window; 0 for none."""
    remove_dc: bool = True
    """Subtract the mean of each window."""
    power: bool = True
    """Mel-weighted power (True) or magnitude."""
    snip_edges: bool = False
    """True: only windows that fit entirely. False: a window around every hop, mirrored at both ends."""
    round_to_power_of_two: bool = True
    """Zero-pad the window to a power of two before the Fourier transform."""
    scale: float = 1.0
    """Full scale of the samples that the features are of: 1 as icefall, 32768 as Kaldi."""

    def __post_init__(self) -> None:
        if self.num_mels < 1:
            raise ValueError(f"num_mels is {self.num_mels}: expected at least 1")
        if not 0 < self.hop_ms <= self.window_ms:
            raise ValueError(f"hop_ms is {self.hop_ms}: expected more than 0 and at most window_ms ({self.window_ms})")
        low_hz, high_hz = self.band_hz
        if not 0 <= low_hz < high_hz <= self.rate_hz / 2:
            raise ValueError(
                f"low_hz {self.low_hz} and high_hz {self.high_hz} give a mel bank from {low_hz} to "
                f"{high_hz} Hz: expected to rise within 0 and {self.rate_hz / 2}"
            )

    @property
    def num_features(self) -> int:
        return self.num_mels

    @property
    def hop(self) -> int:
        return int(self.rate_hz * self.hop_ms / 1000)

    @property
    def _window_length(self) -> int:
        return int(self.rate_hz * self.window_ms / 1000)

    @property
    def _fft_length(self) -> int:
        length = self._window_length
        return 1 << (length - 1).bit_length() if self.round_to_power_of_two else length

    @property
    def band_hz(self) -> tuple[float, float]:
        return self.low_hz, self.high_hz if self.high_hz > 0 else self.rate_hz / 2 + self.high_hz

    def output_length(self, num_samples: Any) -> Any:
        if self.snip_edges:
            frames = (num_samples - self._window_length) // self.hop + 1
            return frames * (frames > 0)
        return (num_samples + self.hop // 2) // self.hop

    def __call__(self, audio: Shaped[Array, "B S"], lengths: Int[Array, " B"]) -> Frames:
        num_frames, frame_lengths = self.output_length(audio.shape[1]), self.output_length(lengths)
        samples = audio.astype(jnp.float32) * (self.scale / 32768.0)
        if not self.snip_edges:
            before = self._window_length // 2 - self.hop // 2
            samples = _mirror_ends(samples, lengths, before=before, after=self._window_length - before)
        frames = _cut_frames(samples, num_frames, window=self._window_length, hop=self.hop)
        if self.remove_dc:
            frames = frames - frames.mean(axis=-1, keepdims=True)
        if self.preemphasis:
            previous = jnp.concatenate([frames[..., :1], frames[..., :-1]], axis=-1)
            frames = frames - self.preemphasis * previous
        spectrum = jnp.fft.rfft(frames * _window(self.window, self._window_length)[None, None], n=self._fft_length)
        magnitude = jnp.square(spectrum.real) + jnp.square(spectrum.imag)
        if not self.power:
            magnitude = jnp.sqrt(magnitude)
        bank = mel_bank(self.num_mels, self._fft_length, self.rate_hz, *self.band_hz)
        # HIGHEST: the default on recent GPUs is TF32, which costs three digits of every feature.
        mels = jnp.matmul(magnitude[..., : bank.shape[0]], bank, precision=jax.lax.Precision.HIGHEST)
        mask = length_mask(frame_lengths, num_frames)[..., None]
        return Frames(jnp.log(jnp.maximum(jnp.where(mask, mels, 0.0), FLOAT_EPSILON)), frame_lengths)


def _mirror_ends(
    samples: Float[Array, "B S"], lengths: Int[Array, " B"], *, before: int, after: int
) -> Float[Array, "B padded"]:
    """Mirrors samples in front of each row and behind its own end; the edge sample is repeated, and a row that is
    shorter than what is mirrored is mirrored again and again."""
    length = jnp.maximum(lengths, 1)[:, None]

    def mirrored(positions: Int[Array, "B N"]) -> Float[Array, "B N"]:
        round_trip = positions % (2 * length)
        return jnp.take_along_axis(samples, jnp.minimum(round_trip, 2 * length - 1 - round_trip), axis=1)

    front = mirrored(jnp.arange(-before, 0)[None] + jnp.zeros_like(length))
    behind = mirrored(lengths[:, None] + jnp.arange(after)[None])
    padded = jnp.pad(samples, ((0, 0), (0, after)))
    padded = jax.vmap(lambda row, tail, start: jax.lax.dynamic_update_slice(row, tail, (start,)))(
        padded, behind, lengths
    )
    return jnp.concatenate([front, padded], axis=1)


def _cut_frames(samples: Float[Array, "B S"], num_frames: int, *, window: int, hop: int) -> Float[Array, "B T window"]:
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


@functools.cache
def _window(name: Window, length: int) -> np.ndarray:
    angle = 2 * np.pi * np.arange(length) / (length - 1)
    shapes = {
        "povey": (0.5 - 0.5 * np.cos(angle)) ** 0.85,
        "hanning": 0.5 - 0.5 * np.cos(angle),
        "hamming": 0.54 - 0.46 * np.cos(angle),
    }
    return shapes[name].astype(np.float32)


@functools.cache
def mel_bank(num_mels: int, fft_length: int, rate_hz: int, low_hz: float, high_hz: float) -> np.ndarray:
    """Kaldi's triangles, which are straight in mels (1127 ln(1 + f/700)): `[fft_length // 2, num_mels]`, float32."""
    edges = np.linspace(_mel(low_hz), _mel(high_hz), num_mels + 2)
    position = _mel(np.arange(fft_length // 2) * rate_hz / fft_length)[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (position - left) / (centre - left), (right - position) / (right - centre)
    return np.maximum(np.minimum(rising, falling), 0.0).astype(np.float32)


def _mel(hz: Any) -> Any:
    return 1127.0 * np.log1p(np.asarray(hz) / 700.0)

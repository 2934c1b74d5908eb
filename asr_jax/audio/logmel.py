"""Log-mel energies of a short-time Fourier transform, as most systems other than Kaldi compute them."""

from collections.abc import Iterator
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.audio.features import MelFrontEnd
from asr_jax.audio.mel import mel_bank
from asr_jax.audio.spectrum import Edges, extended, mel_energies, noise_power, pre_emphasised, windows
from asr_jax.core.batch import length_mask
from asr_jax.core.settings import PositiveFloat, PositiveInt, settings
from asr_jax.core.shapes import DimSize


@settings
class LogMel(MelFrontEnd):
    """Log-mel energies as torch.stft, librosa and NVIDIA's DALI compute them.

    The whole signal is pre-emphasised, and a window is in the middle of the samples that are transformed. The functions
    of `asr_jax.audio.presets` return the settings of known systems.
    """

    fft_length: PositiveInt = 512
    """Length of the Fourier transform in samples, at least the window's."""
    framing: Literal["floor", "ceil", "both_ends", "hop_centred", "hop_end"] = "floor"
    """Position of window t, and number of frames of N samples. floor, ceil, both_ends: the middle of the window is at
    sample t·hop, and the number is N / hop rounded down, rounded up, or N // hop + 1. hop_centred: the middle is in the
    middle of hop t; hop_end: the window ends with hop t; the number is N / hop rounded down."""
    edges: Edges = "reflect"
    """Extension of the signal beyond its ends."""
    mel_scale: Literal["slaney", "htk"] = "slaney"
    """Mel scale on which the bins are equally spaced. The triangles of the mel filter bank have equal area with slaney,
    and equal height with htk."""
    log: Literal["natural", "natural_of_sum", "decimal", "none"] = "natural"
    """Logarithm of the mel energies. natural, decimal: of energies that are at least `log_guard`; natural_of_sum: the
    natural logarithm of the sum of energy and `log_guard`; none: the mel energies themselves."""
    log_guard: PositiveFloat = 1e-20
    """Small number that keeps logarithms finite."""
    dither_mean: bool = False
    """Whether evaluation adds the mean power of the dither to each spectrum. Without it, digital silence has the energy
    of the dither in training, but only `log_guard` in evaluation."""
    normalise_samples: bool = False
    """Whether the utterance's mean is subtracted from its samples, which are then divided by their maximum
    magnitude."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.fft_length < self._window_length:
            yield f"fft_length is {self.fft_length}: expected at least the samples of a window, {self._window_length}"

    @property
    def bins(self) -> Literal["", "kaldi", "htk", "slaney"]:
        return self.mel_scale

    @property
    def reads_all(self) -> str:
        return "normalise_samples" if self.normalise_samples else super().reads_all

    @property
    def _first(self) -> int:
        window, hop = self._window_length, self._hop
        return {"hop_centred": (hop - window) // 2, "hop_end": hop - window}.get(self.framing, -(window // 2))

    def _num_frames(self, num_samples: Any) -> Any:
        if self.framing == "ceil":
            return -(-num_samples // self._hop)
        frames = num_samples // self._hop
        return (frames + 1) * (num_samples > 0) if self.framing == "both_ends" else frames

    def _values(
        self, samples: Float[Array, "B S"], lengths: Int[Array, " B"], num_frames: DimSize, *, dithered: bool
    ) -> Float[Array, "B T D"]:
        window, hop = self._window_length, self._hop
        if self.normalise_samples:
            mask = length_mask(lengths, samples.shape[1])
            count = jnp.maximum(lengths, 1)[:, None]
            samples = samples - jnp.where(mask, samples, 0.0).sum(axis=1, keepdims=True) / count
            largest = jnp.max(jnp.where(mask, jnp.abs(samples), 0.0), axis=1, keepdims=True, initial=0.0)
            samples = samples / jnp.where(largest > 0, largest, 1.0)
        emphasised = pre_emphasised(samples, self.preemphasis)
        signal = extended(emphasised, lengths, first=self._first, after=window + hop, edges=self.edges)
        frames = windows(signal, num_frames, window=window, hop=hop, size=self.fft_length)
        bank = mel_bank(
            self.num_mels,
            self.fft_length,
            self.rate_hz,
            *self.band_hz,
            scale=self.mel_scale,
            equal_area=self.mel_scale == "slaney",
        )
        noise = None
        if self.dither_mean and not dithered:
            noise = self.dither**2 * noise_power(self.window, window, self.fft_length, preemphasis=self.preemphasis)
        mels = mel_energies(frames, window=self.window, length=window, bank=bank, noise=noise)
        if self.log == "none":
            return mels
        if self.log == "natural_of_sum":
            return jnp.log(mels + self.log_guard)
        mels = jnp.maximum(mels, self.log_guard)
        return jnp.log(mels) if self.log == "natural" else jnp.log10(mels)

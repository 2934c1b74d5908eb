"""Log-mel energies of a short-time Fourier transform, as most systems other than Kaldi compute them."""

from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.audio.features import MelFrontEnd
from asr_jax.audio.mel import MelScale, mel_bank
from asr_jax.audio.spectrum import Edges, extended, mel_energies, noise_power, pre_emphasised, windows
from asr_jax.core.batch import length_mask


@dataclass(frozen=True)
class LogMel(MelFrontEnd):
    """Log-mel energies as torch.stft, librosa and NVIDIA's DALI compute them.

    The whole signal is pre-emphasised, and a window is in the middle of the samples that are transformed. The functions
    of `asr_jax.audio.presets` return the settings of known systems.
    """

    fft_length: int = 512
    """Length of the Fourier transform in samples, at least the window's."""
    place: Literal["centred", "hop_centred", "hop_end", "inside"] = "centred"
    """Position of window t. centred: the middle is at sample t·hop; hop_centred: the middle is in the middle of hop t;
    hop_end: the window ends with hop t; inside: the window begins with hop t, and windows that exceed the signal are
    omitted."""
    count: Literal["floor", "ceil", "both_ends"] = "floor"
    """Number of frames of N samples. floor: N / hop rounded down; ceil: N / hop rounded up; both_ends: N // hop + 1.
    Ignored if `place` is inside."""
    edges: Edges = "reflect"
    """Extension of the signal beyond its ends."""
    mel_scale: MelScale = "slaney"
    """Mel scale on which the bins are equally spaced."""
    equal_area: bool = True
    """Whether the triangles of the mel filter bank have equal area instead of equal height."""
    log: Literal["natural", "decimal", "none"] = "natural"
    """Logarithm of the mel energies; none: the mel energies themselves."""
    log_floor: float = 1e-20
    """Lower bound of the logarithm's argument. 0: no bound."""
    log_offset: float = 0.0
    """Value added to the mel energies before the logarithm."""
    dither_mean: bool = False
    """Whether evaluation adds the mean power of the dither to each spectrum. Without it, digital silence has the energy
    of the dither in training, but only that of log_floor and log_offset in evaluation."""
    normalise_samples: bool = False
    """Whether the utterance's mean is subtracted from its samples, which are then divided by their maximum
    magnitude."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fft_length < self._window_length:
            raise ValueError(
                f"fft_length is {self.fft_length}: expected at least the window's length, {self._window_length} samples"
            )
        if min(self.log_floor, self.log_offset) < 0 or (self.log != "none" and not self.log_floor + self.log_offset):
            raise ValueError(
                f"log_floor {self.log_floor} and log_offset {self.log_offset}: expected 0 or more, and at least one "
                'above 0 unless log is "none"'
            )

    @property
    def bins(self) -> Literal["", "kaldi", "htk", "slaney"]:
        return self.mel_scale

    def _num_frames(self, num_samples: Any) -> Any:
        if self.place == "inside":
            frames = (num_samples - self._window_length) // self._hop + 1
            return frames * (frames > 0)
        if self.count == "ceil":
            return -(-num_samples // self._hop)
        frames = num_samples // self._hop
        return (frames + 1) * (num_samples > 0) if self.count == "both_ends" else frames

    def _values(
        self, samples: Float[Array, "B S"], lengths: Int[Array, " B"], num_frames: int, *, dithered: bool
    ) -> Float[Array, "B T D"]:
        window, hop = self._window_length, self._hop
        if self.normalise_samples:
            mask = length_mask(lengths, samples.shape[1])
            count = jnp.maximum(lengths, 1)[:, None]
            samples = samples - jnp.where(mask, samples, 0.0).sum(axis=1, keepdims=True) / count
            largest = jnp.max(jnp.where(mask, jnp.abs(samples), 0.0), axis=1, keepdims=True, initial=0.0)
            samples = samples / jnp.where(largest > 0, largest, 1.0)
        first = {"centred": -(window // 2), "hop_centred": (hop - window) // 2, "hop_end": hop - window, "inside": 0}
        emphasised = pre_emphasised(samples, self.preemphasis)
        signal = extended(emphasised, lengths, first=first[self.place], after=window + hop, edges=self.edges)
        frames = windows(signal, num_frames, window=window, hop=hop, size=self.fft_length)
        bank = mel_bank(
            self.num_mels, self.fft_length, self.rate_hz, *self.band_hz, scale=self.mel_scale,
            equal_area=self.equal_area,
        )  # fmt: skip
        noise = None
        if self.dither_mean and not dithered:
            noise = self.dither**2 * noise_power(self.window, window, self.fft_length, preemphasis=self.preemphasis)
        mels = mel_energies(frames, window=self.window, length=window, bank=bank, power=self.power, noise=noise)
        if self.log == "none":
            return mels
        mels = jnp.maximum(mels + self.log_offset, self.log_floor)
        return jnp.log(mels) if self.log == "natural" else jnp.log10(mels)

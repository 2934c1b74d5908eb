"""Log-mel energies of a short-time Fourier transform, as most systems but Kaldi have them."""

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
    """Log-mel energies as torch.stft, librosa and NVIDIA's DALI give them: the whole signal is pre-emphasised, and a
    window lies in the middle of what is transformed. `asr_jax.audio.presets` has the settings of known systems.
    """

    fft_length: int = 512
    """Length of the Fourier transform, the window included."""
    place: Literal["centred", "hop_centred", "hop_end", "inside"] = "centred"
    """Of window t: its middle is at sample t·hop, or in the middle of hop t; it ends with hop t; or it begins with hop
    t and windows that do not fit are left out."""
    count: Literal["floor", "ceil", "both_ends"] = "floor"
    """Frames of N samples: N / hop rounded down, or up, or both of its ends (N // hop + 1). Not read where windows lie
    inside."""
    edges: Edges = "reflect"
    """How the signal goes on beyond its ends."""
    mel_scale: MelScale = "slaney"
    """Where the mel bins lie."""
    equal_area: bool = True
    """Triangles of equal area instead of equal height."""
    log: Literal["natural", "decimal", "none"] = "natural"
    """The logarithm."""
    log_floor: float = 1e-20
    """What the logarithm is at least of; 0 for none."""
    log_offset: float = 0.0
    """Added before the logarithm."""
    dither_mean: bool = False
    """At evaluation, add to the power of each spectrum what dither adds on average. Without it digital silence, which
    training hears as faint noise, is as quiet as log_floor and log_offset let it be."""
    normalise_samples: bool = False
    """Subtract the utterance's mean from its samples, and divide by their largest magnitude."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fft_length < self._window_length:
            raise ValueError(
                f"fft_length is {self.fft_length}: expected at least the window's {self._window_length} samples"
            )
        if min(self.log_floor, self.log_offset) < 0 or (self.log != "none" and not self.log_floor + self.log_offset):
            raise ValueError(
                f"log_floor {self.log_floor} and log_offset {self.log_offset}: expected 0 or more, and one above 0"
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

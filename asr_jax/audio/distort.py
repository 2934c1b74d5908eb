"""Augmentation of samples: gain, noise, babble, reverberation and telephone bandwidth. Full scale is 32768."""

from collections.abc import Iterator
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.fft import next_fast_len

from asr_jax.audio.augmentation import AudioAugmentation, Drawn, Lengths, Rows, Sounds, descending
from asr_jax.audio.features import FULL_SCALE, FrontEnd
from asr_jax.audio.ramp import Ramp
from asr_jax.audio.resample import resample
from asr_jax.core.collectives import all_rows, first_row, total
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import PositiveFloat, Share, between, settings

Decibels = Annotated[float, between(-100.0, 100.0)]
TELEPHONE_HZ = 8000
"""Intermediate sample rate of `NarrowBand`."""


@settings
class Gain(AudioAugmentation):
    """Scales an utterance by a random gain, uniform in decibels. Samples are not clipped."""

    db: tuple[Decibels, Decibels] = (-10.0, 10.0)
    """Minimum and maximum gain in decibels."""

    def problems(self) -> Iterator[str]:
        yield from descending(db=self.db)

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        low, high = self.db
        return {"gain_db": jax.random.uniform(key, minval=low, maxval=high)}

    def apply(self, row: Float[Array, " S"], length: Int[Array, ""], drawn: Drawn) -> Float[Array, " S"]:
        return row * 10.0 ** (drawn["gain_db"] / 20)


@settings
class UniformNoise(AudioAugmentation):
    """Adds noise that is uniform in ±level, with a random level per utterance. The result is clipped to full scale.

    With two equal levels it is the Rust trainer's `--waveform-noise-std`.
    """

    level: tuple[Share, Share] = (0.0, 0.005)
    """Minimum and maximum level as a fraction of full scale."""

    def problems(self) -> Iterator[str]:
        yield from descending(level=self.level)

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        of_level, of_noise = jax.random.split(key)
        level = jax.random.uniform(of_level, minval=self.level[0], maxval=self.level[1])
        return {"level": level, "seed": jax.random.bits(of_noise)}

    def apply(self, row: Float[Array, " S"], length: Int[Array, ""], drawn: Drawn) -> Float[Array, " S"]:
        noise = jax.random.uniform(jax.random.key(drawn["seed"]), row.shape, minval=-1.0)
        noisy = row + drawn["level"] * FULL_SCALE * noise
        return jnp.where(jnp.arange(len(row)) < length, jnp.clip(noisy, -FULL_SCALE, FULL_SCALE - 1), 0.0)


@settings
class BackgroundNoise(AudioAugmentation):
    """Adds noise from a folder of recordings at a random signal-to-noise ratio.

    The noise begins at a random position, and the range of ratios moves during training. The result has the power of
    the original utterance.

    The recordings are concatenated, resampled, and kept in device memory: a minute takes 1.9 MB at 16 kHz.

    Source: Myrtle's CAIMAN-ASR (ranges, ramp and power).
    """

    probability = 0.25
    folder: UserPath = ""
    """Folder of recordings of noise; subfolders are included."""
    minutes: PositiveFloat = 60.0
    """Maximum duration of the noise in memory in minutes. If the recordings are longer together, each is cut to the
    same maximum length."""
    snr_db: Ramp = Ramp(begin_updates=4896, ramp_updates=4896)
    """Minimum and maximum of the signal-to-noise ratio in decibels."""

    def problems(self) -> Iterator[str]:
        if not self.folder:
            yield "folder is empty: expected the path of a folder with recordings of noise"
        yield from _not_a_range(self.snr_db)

    @property
    def sound(self) -> str:
        """Key of the noise in `Sounds`: int16 samples `[samples]`."""
        return f"noise of {self.folder}, {self.minutes:g} minutes".replace("/", "|")

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        of_ratio, of_place = jax.random.split(key)
        return {"snr_db": _uniform(of_ratio, self.snr_db, step), "place": jax.random.uniform(of_place)}

    def changed(self, values: Rows, lengths: Lengths, drawn: Drawn, *, front_end: FrontEnd, sounds: Sounds) -> Rows:
        noise, size = sounds[self.sound], values.shape[1]

        def mixed(row: Array, length: Array, drawn: Drawn) -> Array:
            # The noise is circular: its first sample follows its last one.
            first = jnp.floor(drawn["place"] * len(noise)).astype(jnp.int32)
            excerpt = noise[(first + jnp.arange(size)) % len(noise)].astype(jnp.float32)
            return jnp.where(drawn["applied"], add_at(row, excerpt, length, drawn["snr_db"]), row)

        return jax.vmap(mixed)(values, lengths, drawn)


@settings
class Babble(AudioAugmentation):
    """Adds the next utterance of the batch as noise, repeated if it is shorter; to the last utterance, the first one.

    A batch of one utterance is not changed.
    """

    probability = 0.25
    snr_db: Ramp = Ramp(last=(15.0, 30.0), begin_updates=4896, ramp_updates=4896)
    """Minimum and maximum of the ratio of the utterance's power to the other voice's power in decibels."""

    def problems(self) -> Iterator[str]:
        yield from _not_a_range(self.snr_db)

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        return {"snr_db": _uniform(key, self.snr_db, step)}

    def changed(self, values: Rows, lengths: Lengths, drawn: Drawn, *, front_end: FrontEnd, sounds: Sounds) -> Rows:
        def mixed(row: Array, length: Array, other: Array, its_length: Array, drawn: Drawn) -> Array:
            excerpt = other[jnp.arange(len(row)) % jnp.maximum(its_length, 1)]
            return jnp.where(drawn["applied"], add_at(row, excerpt, length, drawn["snr_db"]), row)

        # The first rows of all devices; the row after the last one of a device is the first one of the next device.
        firsts, first_lengths = all_rows(values[:1]), all_rows(lengths[:1])
        following = (first_row(len(values)) // len(values) + 1) % len(firsts)
        others = jnp.concatenate([values[1:], firsts[following][None]])
        their_lengths = jnp.concatenate([lengths[1:], first_lengths[following][None]])
        is_padding = their_lengths == 0  # the number of padding rows depends on the number of devices
        others = jnp.where(is_padding[:, None], firsts[:1], others)
        their_lengths = jnp.where(is_padding, first_lengths[0], their_lengths)
        babble = jax.vmap(mixed)(values, lengths, others, their_lengths, drawn)
        return jnp.where(total(jnp.sum(lengths > 0)) > 1, babble, values)


@settings
class Reverberation(AudioAugmentation):
    """Simulates room acoustics: convolves the utterance with a random impulse response from a folder.

    The direct sound is not delayed. The result has the power and the length of the original utterance.

    Up to 1,000 responses, chosen evenly from the folder's files, are kept in device memory with the first 500 ms from
    their direct sound on. Each takes 32 kB at 16 kHz.
    """

    probability = 0.3
    folder: UserPath = ""
    """Folder of impulse responses; subfolders are included. The first channel of each file is used."""

    def problems(self) -> Iterator[str]:
        if not self.folder:
            yield "folder is empty: expected the path of a folder with impulse responses"

    @property
    def sound(self) -> str:
        """Key of the impulse responses in `Sounds`: float32 `[responses, samples]`."""
        return f"rooms of {self.folder}".replace("/", "|")

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        return {"place": jax.random.uniform(key)}

    def changed(self, values: Rows, lengths: Lengths, drawn: Drawn, *, front_end: FrontEnd, sounds: Sounds) -> Rows:
        impulses, size = sounds[self.sound], values.shape[1]
        valid = jnp.arange(size)[None] < lengths[:, None]
        dry = jnp.where(valid, values, 0.0)
        chosen = impulses[jnp.floor(drawn["place"] * len(impulses)).astype(jnp.int32)]
        # A transform whose length has a large prime factor takes several times as long.
        fft_length = next_fast_len(size + impulses.shape[1] - 1, real=True)
        wet = jnp.fft.irfft(jnp.fft.rfft(dry, n=fft_length) * jnp.fft.rfft(chosen, n=fft_length), n=fft_length)
        wet = jnp.where(valid, wet[:, :size], 0.0)
        wet = wet * jnp.sqrt(_power(dry, lengths) / jnp.maximum(_power(wet, lengths), 1e-20))[:, None]
        return jnp.where(drawn["applied"][:, None], wet, values)


@settings
class NarrowBand(AudioAugmentation):
    """Simulates telephone bandwidth: removes frequencies above 4 kHz by resampling to 8 kHz and back."""

    probability = 0.1

    def check(self, front_end: FrontEnd) -> None:
        if front_end.rate_hz <= TELEPHONE_HZ:
            raise ValueError(
                f"NarrowBand resamples to {TELEPHONE_HZ} Hz, but the front-end's rate_hz is {front_end.rate_hz}: "
                "remove it from augment"
            )

    def draw(self, key: PRNGKeyArray, size: tuple[int, ...], length: Int[Array, ""], *, step: Int[Array, ""]) -> Drawn:
        return {}

    def changed(self, values: Rows, lengths: Lengths, drawn: Drawn, *, front_end: FrontEnd, sounds: Sounds) -> Rows:
        valid = jnp.arange(values.shape[1])[None] < lengths[:, None]
        low = resample(jnp.where(valid, values, 0.0), front_end.rate_hz, TELEPHONE_HZ)
        back = resample(low, TELEPHONE_HZ, front_end.rate_hz)[:, : values.shape[1]]
        return jnp.where(drawn["applied"][:, None] & valid, back, values)


def add_at(
    row: Float[Array, " S"], noise: Float[Array, " S"], length: Int[Array, ""], snr_db: Float[Array, ""]
) -> Float[Array, " S"]:
    """Adds noise at a signal-to-noise ratio and scales the result to the power of the row.

    Args:
        length: Number of valid samples, over which powers are measured.

    Returns:
        The mixed samples; 0 behind `length`.
    """
    valid = jnp.arange(len(row)) < length
    dry, noise = jnp.where(valid, row, 0.0), jnp.where(valid, noise, 0.0)
    of_dry, of_noise = jnp.sum(jnp.square(dry)), jnp.sum(jnp.square(noise))
    factor = jnp.sqrt(of_dry / jnp.maximum(of_noise, 1e-20)) * 10.0 ** (-snr_db / 20)
    mixed = dry + jnp.where(of_noise > 0, factor, 0.0) * noise
    return mixed * jnp.sqrt(of_dry / jnp.maximum(jnp.sum(jnp.square(mixed)), 1e-20))


def _power(rows: Float[Array, "B S"], lengths: Int[Array, " B"]) -> Float[Array, " B"]:
    return jnp.sum(jnp.square(rows), axis=1) / jnp.maximum(lengths, 1)


def _uniform(key: PRNGKeyArray, ramp: Ramp, step: Int[Array, ""]) -> Float[Array, ""]:
    """Draws a value uniformly from the range that applies after `step` updates."""
    low, high = ramp.at(step)
    return low + (high - low) * jax.random.uniform(key)


def _not_a_range(snr_db: Ramp) -> Iterator[str]:
    if len(snr_db.first) != 2:
        yield f"snr_db is {snr_db}: expected a minimum and a maximum in first and in last"

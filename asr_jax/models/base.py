"""What an encoder is, and the Recogniser that joins front-end, augmentation, encoder and heads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.audio.augment import AudioAugmentation, Augmentation
from asr_jax.audio.features import FrontEnd, KaldiFbank
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.core.batch import OUTPUT, Batch, Encoded, Frames
from asr_jax.core.precision import Precision, compute_dtype
from asr_jax.core.sums import Sums
from asr_jax.heads.base import Head, HeadSettings
from asr_jax.heads.ctc import CTC


class Encoder(nn.Module):
    """Frames in, frames out. A subclass's parameter names are part of the checkpoint's format."""

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        """`step`: updates applied so far when training (schedules read it), None when evaluating."""
        raise NotImplementedError

    def output_length(self, num_frames: Any) -> Any:
        """Frames out for frames in, for ints and arrays; never negative."""
        raise NotImplementedError

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        """As `output_length`, of each tap that the encoder gives."""
        return {}


@dataclass(frozen=True)
class EncoderSettings:
    """Sizes and rates of an encoder; `build` makes its module."""

    def check(self, front_end: FrontEnd) -> None:
        """Raises: ValueError where the front-end's features are not those that the encoder is made for."""

    def depths(self, path: str) -> tuple[int, ...]:
        """How many layers lie before a parameter of the encoder, by its path in it; for the parameters of a stack of
        layers, one number for each. For a learning rate that decays from layer to layer."""
        raise NotImplementedError

    def num_depths(self) -> int:
        """How many different depths there are."""
        raise NotImplementedError

    def build(self, *, dtype: DTypeLike) -> Encoder:
        """The module, computing in `dtype` with float32 parameters."""
        raise NotImplementedError


class Recogniser(nn.Module):
    """Front-end → augmentation → encoder → heads. Evaluation, transcription and export go through `emit`."""

    front_end: FrontEnd
    augment: tuple[Augmentation, ...]
    encoder: Encoder
    heads: Mapping[str, Head]

    def __call__(self, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        """Loss terms and metrics, named `head/term`, as sums over the batch."""
        encoded = self.encode(batch, step=step)
        sums = {name: head(encoded, batch, step=step) for name, head in self.heads.items()}
        return {f"{name}/{term}": value for name, terms in sums.items() for term, value in terms.items()}

    def encode(self, batch: Batch, *, step: Int[Array, ""] | None) -> Encoded:
        return self.encoder(self.augmented(batch, step=step), step=step)

    def augmented(self, batch: Batch, *, step: Int[Array, ""] | None) -> Frames:
        """The batch's own features, or those of its audio, changed by the augmentations when training. They take no
        gradient."""
        of_audio: list[Augmentation] = [each for each in self.augment if isinstance(each, AudioAugmentation)]
        of_frames = [each for each in self.augment if not isinstance(each, AudioAugmentation)]
        sounds = self.variables.get("sounds", {})
        if batch.features is not None:
            frames = Frames(batch.features, batch.lengths)
        else:
            assert batch.audio is not None, "a batch has audio or features"
            samples = batch.audio.astype(jnp.float32)
            if step is not None:
                for augmentation in of_audio:
                    samples = augmentation(samples, batch.lengths, self.make_rng("augment"), step=step, sounds=sounds)
            key = self.make_rng("dither") if step is not None and self.front_end.dither else None
            frames = self.front_end.before_stacking(samples, batch.lengths, step=step, key=key)
        if step is not None:
            for augmentation in of_frames:
                key = self.make_rng("augment")
                frames = frames.replace(
                    values=augmentation(frames.values, frames.lengths, key, step=step, sounds=sounds)
                )
        if batch.features is None:
            frames = self.front_end.stacked(frames, step=step)
        return jax.lax.stop_gradient(frames)

    def emit(self, batch: Batch) -> dict[str, Any]:
        """By head: what its decoder needs."""
        encoded = self.encode(batch, step=None)
        return {name: head.emit(encoded) for name, head in self.heads.items()}

    def weights(self, batch: Batch) -> dict[str, Float[Array, ""]]:
        """The weight of each loss term, without computing the encoder."""
        num_frames = batch.lengths if batch.features is not None else self.front_end.output_length(batch.lengths)
        lengths = {OUTPUT: self.encoder.output_length(num_frames), **self.encoder.tap_lengths(num_frames)}
        weights = {name: head.weight(lengths, batch) for name, head in self.heads.items()}
        return {f"{name}/{term}": value for name, terms in weights.items() for term, value in terms.items()}

    def output_length(self, lengths: Any, *, of_features: bool = False) -> Any:
        """Frames that the heads see for a number of samples, or of frames of ready features; for ints and arrays."""
        return self.encoder.output_length(lengths if of_features else self.front_end.output_length(lengths))


@dataclass(frozen=True)
class Model:
    """Settings of a Recogniser."""

    encoder: EncoderSettings
    """The encoder."""
    heads: dict[str, HeadSettings] = field(default_factory=lambda: {"ctc": CTC()})
    """Heads by name; hybrid training is two entries."""
    front_end: FrontEnd = KaldiFbank()
    """From samples to features."""
    augment: tuple[Augmentation, ...] = (SpecAugment(),)
    """What changes the features in training, in this order."""

    def __post_init__(self) -> None:
        if not self.heads:
            raise ValueError("heads is empty: expected at least one, such as {'ctc': CTC()}")
        self.encoder.check(self.front_end)
        for augmentation in self.augment:
            augmentation.check(self.front_end)
        taps = self.encoder.build(dtype=jnp.float32).tap_lengths(0).keys()
        for name, head in self.heads.items():
            try:
                head.check(taps=taps)
            except ValueError as error:
                raise ValueError(f"heads.{name}: {error}") from error

    def build(self, *, vocab_size: int, blank_id: int, precision: Precision) -> Recogniser:
        dtype = compute_dtype(precision)
        heads = {
            name: head.build(vocab_size=vocab_size, blank_id=blank_id, dtype=dtype) for name, head in self.heads.items()
        }
        return Recogniser(self.front_end, self.augment, self.encoder.build(dtype=dtype), heads)

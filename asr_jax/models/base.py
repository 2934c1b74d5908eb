"""What an encoder is, and the Recogniser that joins front-end, augmentation, encoder and heads."""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from asr_jax.audio.augmentation import AudioAugmentation, Augmentation, Sounds
from asr_jax.audio.features import FrontEnd, KaldiFbank
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.core.batch import OUTPUT, Batch, Encoded, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.precision import Precision, compute_dtype
from asr_jax.core.pytrees import Tree
from asr_jax.core.sums import Sums
from asr_jax.heads.base import Head, HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.search.base import Decoding


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


class MaskingEncoder(Encoder):
    """An encoder that hides frames from its layers while training."""

    def __call__(
        self, frames: Frames, *, step: Int[Array, ""] | None, mask: Bool[Array, "B T"] | None = None
    ) -> Encoded:
        """`mask`: the frames to hide."""
        raise NotImplementedError

    def draw_mask(
        self, key: PRNGKeyArray, lengths: Int[Array, " B"], size: int, *, sub_batches: int
    ) -> Bool[Array, "B T"]:
        """Frames to hide, of rows of `lengths` frames in arrays of `size`, both before the encoder. Each sub-batch is
        drawn by itself.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class EncoderSettings:
    """Sizes and rates of an encoder; `build` makes its module."""

    def check(self, front_end: FrontEnd) -> None:
        """Raises: ValueError where the front-end's features are not those that the encoder is made for."""

    def depths(self, path: str) -> tuple[int, ...]:
        """How many layers lie before a parameter of the encoder, by its path in it; for the parameters of a stack of
        layers, one number for each. For a learning rate that decays from layer to layer.
        """
        raise NotImplementedError

    def num_depths(self) -> int:
        """How many different depths there are."""
        raise NotImplementedError

    def build(self, *, dtype: DTypeLike) -> Encoder:
        """The module, computing in `dtype` with float32 parameters."""
        raise NotImplementedError


class EncoderOfMels(EncoderSettings):
    """Settings of an encoder whose frames have `num_mels` values."""

    num_mels: int

    def check(self, front_end: FrontEnd) -> None:
        if front_end.num_features != self.num_mels:
            raise ValueError(
                f"encoder.num_mels is {self.num_mels} and the front-end gives {front_end.num_features}: set both alike"
            )

    def check_frames(self, values: Float[Array, "B T F"]) -> None:
        """Raises: ValueError where they have another width."""
        if values.shape[-1] != self.num_mels:
            raise ValueError(f"frames have {values.shape[-1]} values, expected num_mels, {self.num_mels}")


class Recogniser(nn.Module):
    """Front-end → augmentation → encoder → heads. Evaluation and transcription go through `search`."""

    front_end: FrontEnd
    augment: tuple[Augmentation, ...]
    encoder: Encoder
    heads: Mapping[str, Head]
    views: int = 1
    sub_batches: int = 1
    primary: str = ""

    def __call__(self, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        """Loss terms and metrics, named `head/term`, as sums over the batch. A view counts as its share of the row."""
        encoded = self.encode(batch, step=step)
        if encoded.views > 1:
            batch = repeated(batch.replace(weights=batch.weights / encoded.views), encoded.views)
        sums = {name: head(encoded, batch, step=step) for name, head in self.heads.items()}
        return {f"{name}/{term}": value for name, terms in sums.items() for term, value in terms.items()}

    def encode(self, batch: Batch, *, step: Int[Array, ""] | None) -> Encoded:
        """Of the batch's rows; while training, of the views of the first row, then of those of the second, and so on:
        a row's views lie on its device.
        """
        frames = self.augmented(batch, step=step)
        views, parts = (1, 1) if step is None else (self.views, self.sub_batches)
        if isinstance(self.encoder, MaskingEncoder):
            encoded = self.encoder(frames, step=step, mask=self._mask(frames.lengths, frames.values.shape[1], parts))
        else:
            encoded = self.encoder(frames, step=step)
        return encoded.replace(views=views, sub_batches=parts)

    def augmented(self, batch: Batch, *, step: Int[Array, ""] | None) -> Frames:
        """The batch's own features, or those of its audio, changed by the augmentations when training. They take no
        gradient. The views of a row share what is done to its audio, and what moves its frames.
        """
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
            own = _own(of_frames)
            frames = self._changed(frames, of_frames[: len(of_frames) - len(own)], step=step, sounds=sounds)
            frames = self._changed(repeated(frames, self.views), own, step=step, sounds=sounds)
        if batch.features is None:
            frames = self.front_end.stacked(frames, step=step)
        return jax.lax.stop_gradient(frames)

    def _changed(
        self, frames: Frames, augment: Sequence[Augmentation], *, step: Int[Array, ""], sounds: Sounds
    ) -> Frames:
        for augmentation in augment:
            key = self.make_rng("augment")
            frames = frames.replace(values=augmentation(frames.values, frames.lengths, key, step=step, sounds=sounds))
        return frames

    def search(
        self, batch: Batch, *, head: str, decoding: Decoding, gives_log_probs: bool = False
    ) -> tuple[Any, Frames | None]:
        """What a head's search finds in a batch, `Head.search`, and its log-probabilities `[B T V]` if asked for."""
        encoded = self.encode(batch, step=None)
        found = self.search_in(encoded, head=head, decoding=decoding)
        return found, self.heads[head].emit(encoded) if gives_log_probs else None

    def search_in(self, encoded: Encoded, *, head: str, decoding: Decoding) -> Any:
        """As `search`, in the encoder's output."""
        return self.heads[head].search(encoded, decoding)[0]

    def emit(self, batch: Batch, *, head: str = "") -> dict[str, Any]:
        """What heads compute of each frame, `Head.emit`, by head: of one head, or of all."""
        encoded = self.encode(batch, step=None)
        return {name: each.emit(encoded) for name, each in self.heads.items() if head in ("", name)}

    def denominators(self, batch: Batch) -> dict[str, Float[Array, ""]]:
        """The weight of each loss term, without computing the encoder. The stream "mask" must be that of the call."""
        num_frames, size = batch.lengths, batch.signal.shape[1]
        if batch.features is None:
            num_frames, size = (self.front_end.output_length(number) for number in (num_frames, size))
        lengths, mask = self._lengths(num_frames), self._mask(num_frames, size, self.sub_batches)
        denominators = {name: head.denominators(lengths, batch, mask=mask) for name, head in self.heads.items()}
        return {f"{name}/{term}": value for name, terms in denominators.items() for term, value in terms.items()}

    def _mask(self, lengths: Int[Array, " B"], size: int, sub_batches: int) -> Bool[Array, "B T"] | None:
        """The frames to hide from the layers: none where there is no stream "mask", as in recognition."""
        if not isinstance(self.encoder, MaskingEncoder) or not self.has_rng("mask"):
            return None
        return self.encoder.draw_mask(self.make_rng("mask"), lengths, size, sub_batches=sub_batches)

    @property
    def recognising(self) -> str:
        """The head that texts come from: `primary`, or the only head that recognises.

        Raises: UserError if no head recognises, or several do and none is named.
        """
        return named_or_only(self.primary, [name for name, head in self.heads.items() if head.recognises], self.heads)

    @property
    def aligning(self) -> str:
        """The head that texts are aligned by: the recognising one if it is of CTC, else the first of CTC that reads
        the encoder's output, else the first of CTC.

        Raises: UserError if no head is of CTC.
        """
        names = [name for name, head in self.heads.items() if head.aligns]
        if not any(head.recognises for head in self.heads.values()):
            return self.recognising  # raises
        if not names:
            raise UserError(
                f"texts are aligned by a CTC head, and the model has none: its heads are {', '.join(self.heads)}. "
                "Train with one beside them (model.heads), or align with another run"
            )
        recognising = self.primary or next(name for name, head in self.heads.items() if head.recognises)
        return min(names, key=lambda name: (name != recognising, self.heads[name].tap != OUTPUT))

    @property
    def needs_mask(self) -> bool:
        """Whether evaluation of the losses hides frames."""
        return any(head.needs_mask for head in self.heads.values())

    def output_length(self, lengths: Any, *, tap: str = OUTPUT, of_features: bool = False) -> Any:
        """Frames of the encoder's output, or of a tap, for a number of samples, or of frames of ready features; for
        ints and arrays.
        """
        return self._lengths(lengths if of_features else self.front_end.output_length(lengths))[tap]

    def length_of(self, head: str) -> Callable[..., Any]:
        """`output_length` of what a head reads."""
        return functools.partial(self.output_length, tap=self.heads[head].tap)

    def frame_times(self, *, tap: str = OUTPUT) -> FrameTimes:
        """Of those frames. Ready features count as made by the model's own front-end."""
        length = functools.partial(self.output_length, tap=tap)
        return FrameTimes.of(length, hop=self.front_end.hop, rate_hz=self.front_end.rate_hz)

    def _lengths(self, num_frames: Any) -> dict[str, Any]:
        """How many frames the encoder's output and its taps have."""
        return {OUTPUT: self.encoder.output_length(num_frames), **self.encoder.tap_lengths(num_frames)}


def _own(of_frames: Sequence[Augmentation]) -> list[Augmentation]:
    """Those augmentations that are drawn for each view on its own: from the first on that moves no frames."""
    return list(itertools.dropwhile(lambda each: each.moves_frames, of_frames))


def repeated(rows: Tree, times: int) -> Tree:
    """Each row so many times, one after the other: on one device, where rows are spread over several."""
    return rows if times == 1 else jax.tree.map(lambda array: jnp.repeat(array, times, axis=0), rows)


def named_or_only(primary: str, recognising: Sequence[str], heads: Iterable[str]) -> str:
    """The head that texts come from. Raises: UserError as `Recogniser.recognising`."""
    if primary and primary not in recognising:
        raise UserError(f"primary is {primary!r}: expected a head that recognises, one of {', '.join(recognising)}")
    if not recognising:
        raise UserError(
            f"the model gives no texts: none of its heads ({', '.join(heads)}) recognises. Fine-tune it first: "
            "python -m asr_jax.train --config A_CONFIG_WITH_CTC --init-from RUN"
        )
    if not primary and len(recognising) > 1:
        raise UserError(
            f"the heads {', '.join(recognising)} recognise, and primary is empty: expected the name of the one that "
            "texts come from"
        )
    return primary or recognising[0]


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
    """What changes audio and features in training, in this order, those of audio first."""
    views: int = 1
    """How many times each utterance is in a batch while training, masked in other places each time (CR-CTC: 2), and
    counting as that share. A step takes as many times the memory: data.buckets.batch-seconds counts each one once."""

    sub_batches: int = 1
    """Parts of a batch in which frames are hidden, and codes counted, as if each were a batch: as many as devices give
    what a device by itself would. data.buckets.batch_multiple must be a multiple of it."""
    primary: str = ""
    """The head that texts come from, where several recognise; empty: the only one that does."""

    def __post_init__(self) -> None:
        if not self.heads:
            raise ValueError("heads is empty: expected at least one, such as {'ctc': CTC()}")
        self.encoder.check(self.front_end)
        for augmentation in self.augment:
            augmentation.check(self.front_end)
        if self.views < 1:
            raise ValueError(f"views is {self.views}: expected at least 1")
        if self.sub_batches < 1:
            raise ValueError(f"sub_batches is {self.sub_batches}: expected at least 1")
        of_frames = [each for each in self.augment if not isinstance(each, AudioAugmentation)]
        late = [type(each).__name__ for each in _own(of_frames) if each.moves_frames]
        if self.views > 1 and late:
            raise ValueError(
                f"augment has {late[0]} after {type(_own(of_frames)[0]).__name__} and views is {self.views}: expected "
                f"it before, since what moves frames must be the same in all views of an utterance"
            )
        if self.recognises or self.primary:
            try:
                self.recognising  # noqa: B018  raises
            except UserError as error:
                raise ValueError(str(error)) from None
        taps = self.encoder.build(dtype=jnp.float32).tap_lengths(0).keys()
        for name, head in self.heads.items():
            try:
                head.check(taps=taps, views=self.views)
            except ValueError as error:
                raise ValueError(f"heads.{name}: {error}") from error

    @property
    def recognises(self) -> bool:
        """Whether it gives texts, and learns from labels."""
        return any(head.recognises for head in self.heads.values())

    @property
    def recognising(self) -> str:
        """As `Recogniser.recognising`."""
        return named_or_only(self.primary, [name for name, head in self.heads.items() if head.recognises], self.heads)

    def frames_needed(self, num_labels: Any, num_repeats: Any) -> Any:
        """As that of the head that texts come from; 0 for a model that gives none."""
        if not self.recognises:
            return 0 * num_labels
        return self.heads[self.recognising].frames_needed(num_labels, num_repeats)

    def decoding_of(self, head: str) -> Decoding:
        """How a head finds texts. Raises: UserError for a head that does not exist or finds none."""
        settings = self.heads[head].search_settings if head in self.heads else None
        if settings is None:
            known = [name for name, each in self.heads.items() if each.search_settings is not None]
            raise UserError(f"head {head!r} finds no texts: expected one of {', '.join(known)}")
        return settings

    def with_decoding(self, head: str, decoding: Decoding) -> "Model":
        """The same model with another decoding of a head."""
        return replace(self, heads=self.heads | {head: replace(self.heads[head], decoding=decoding)})  # type: ignore[call-arg]

    def build(self, *, vocab_size: int, blank_id: int, precision: Precision) -> Recogniser:
        dtype = compute_dtype(precision)
        heads = {
            name: head.build(vocab_size=vocab_size, blank_id=blank_id, dtype=dtype) for name, head in self.heads.items()
        }
        return Recogniser(
            self.front_end, self.augment, self.encoder.build(dtype=dtype), heads, self.views, self.sub_batches,
            self.primary,
        )  # fmt: skip

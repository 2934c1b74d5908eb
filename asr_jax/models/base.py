"""Base classes of encoders, and the Recogniser of front-end, augmentations, encoder and heads."""

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from asr_jax.audio.augmentation import AudioAugmentation, Augmentation, Sounds
from asr_jax.audio.features import FrontEnd, KaldiFbank
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.core.batch import OUTPUT, Batch, Encoded, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.precision import Precision, compute_dtype
from asr_jax.core.pytrees import Tree, where_rows
from asr_jax.core.random_streams import utterances_of_rows
from asr_jax.core.settings import PositiveInt, settings
from asr_jax.core.shapes import DimSize
from asr_jax.core.sums import Sums
from asr_jax.heads.base import Head, HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.models.encoder import Context, Encoder, EncoderSettings, MaskingEncoder, StreamingEncoder
from asr_jax.search.base import Decoding


class Recogniser(nn.Module):
    """Speech recogniser: front-end → augmentations → encoder → heads. Evaluation and transcription call `search`."""

    front_end: FrontEnd
    augment: tuple[Augmentation, ...]
    encoder: Encoder
    heads: Mapping[str, Head]
    views: int = 1
    sub_batches: int = 1
    primary: str = ""

    def __call__(self, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        """Computes loss terms and metrics, named `head/term`, as sums over the batch.

        Each of n views of an utterance has 1/n of its weight.

        Args:
            step: Number of applied updates while training; None in evaluation.
        """
        encoded = self.encode(batch, step=step)
        with _random_rows(batch, encoded.views):
            if encoded.views > 1:
                batch = repeated(batch.replace(weights=batch.weights / encoded.views), encoded.views)
            encoded = self.with_emitted(encoded)
            sums = {name: head(encoded, batch, step=step) for name, head in self.heads.items()}
        return {f"{name}/{term}": value for name, terms in sums.items() for term, value in terms.items()}

    def encode(self, batch: Batch, *, step: Int[Array, ""] | None) -> Encoded:
        """Encodes the rows of a batch.

        In training, the output has the views of the first row, then those of the second row, and so on. The views of a
        row are therefore on the device of the row.
        """
        frames = self.augmented(batch, step=step)
        views, parts = (1, 1) if step is None else (self.views, self.sub_batches)
        with _random_rows(batch, views):
            if isinstance(self.encoder, MaskingEncoder):
                mask = self._mask(frames.lengths, frames.values.shape[1], parts)
                encoded = self.encoder(frames, step=step, mask=mask)
            else:
                encoded = self.encoder(frames, step=step)
        return encoded.replace(views=views, sub_batches=parts)

    def augmented(self, batch: Batch, *, step: Int[Array, ""] | None) -> Frames:
        """Returns the features of the batch or those of its audio, with augmentations in training.

        The features have no gradient. The views of a row share augmentations of audio and those that change time
        alignment.
        """
        of_audio: list[Augmentation] = [each for each in self.augment if isinstance(each, AudioAugmentation)]
        of_frames = [each for each in self.augment if not isinstance(each, AudioAugmentation)]
        sounds = self.variables.get("sounds", {})
        if batch.features is not None:
            frames = Frames(batch.features, batch.lengths)
        else:
            assert batch.audio is not None, "a batch has audio or features"
            samples = batch.audio.astype(jnp.float32)
            with _random_rows(batch):
                if step is not None:
                    for augmentation in of_audio:
                        key = self.make_rng("augment")
                        samples = augmentation(
                            samples, batch.lengths, key, step=step, front_end=self.front_end, sounds=sounds
                        )
                dither = self.make_rng("dither") if step is not None and self.front_end.dither else None
                frames = self.front_end.before_stacking(samples, batch.lengths, step=step, key=dither)
        if step is not None:
            own = _own(of_frames)
            with _random_rows(batch):
                frames = self._changed(frames, of_frames[: len(of_frames) - len(own)], step=step, sounds=sounds)
            with _random_rows(batch, self.views):
                frames = self._changed(repeated(frames, self.views), own, step=step, sounds=sounds)
        if batch.features is None:
            frames = self.front_end.stacked(frames, step=step)
        return jax.lax.stop_gradient(frames)

    def _changed(
        self, frames: Frames, augment: Sequence[Augmentation], *, step: Int[Array, ""], sounds: Sounds
    ) -> Frames:
        for augmentation in augment:
            key = self.make_rng("augment")
            values = augmentation(
                frames.values, frames.lengths, key, step=step, front_end=self.front_end, sounds=sounds
            )
            frames = frames.replace(values=values)
        return frames

    def search(
        self, batch: Batch, *, head: str, decoding: Decoding, gives_log_probs: bool = False
    ) -> tuple[Any, Frames | None]:
        """Searches for the token sequences of a batch.

        Args:
            gives_log_probs: Whether to return the log-probabilities of the head.

        Returns:
            Result of `Head.search`, and the log-probabilities [B T V] of the head; None without `gives_log_probs`.
        """
        encoded = self.encode(batch, step=None)
        found = self.search_in(encoded, head=head, decoding=decoding)
        emitting = self.with_emitted(encoded, head=head) if gives_log_probs else encoded
        return found, self.heads[head].emit(emitting) if gives_log_probs else None

    def with_emitted(self, encoded: Encoded, *, head: str = "") -> Encoded:
        """Returns the output of the encoder with the log-probabilities of CTC heads that a head or all heads read."""
        readers = [each for name, each in self.heads.items() if head in ("", name)]
        names = dict.fromkeys(name for each in readers for name in each.reads)
        return encoded.replace(emitted={name: self.heads[name].emit(encoded) for name in names}) if names else encoded

    def search_in(self, encoded: Encoded, *, head: str, decoding: Decoding) -> Any:
        """Searches for token sequences in the output of the encoder."""
        return self.heads[head].search(self.with_emitted(encoded, head=head), decoding)[0]

    def initial_state(self, num_rows: int, *, head: str, decoding: Decoding) -> Tree:
        """Returns the state of `num_rows` streams before their first window.

        Raises:
            UserError: If the encoder or the head cannot recognise streams.
        """
        if self.heads[head].tap != OUTPUT or self.heads[head].reads:
            raise UserError(
                f"the head {head} cannot recognise a stream, because it reads a tap or another head: expected a head "
                "that reads the output of the encoder"
            )
        return {
            "encoder": self.encoder.initial_state(num_rows),
            "search": self.heads[head].initial_state(num_rows, decoding),
        }

    def stream(
        self,
        state: Tree,
        frames: Frames,
        *,
        begins: Bool[Array, " B"],
        begins_text: Bool[Array, " B"],
        head: str,
        decoding: Decoding,
    ) -> tuple[Tree, Any, Int[Array, " B"]]:
        """Encodes and searches the next window of each stream.

        Args:
            state: `initial_state`, or the state after the window before.
            frames: Window of each stream, as for `Encoder.stream`. The state of a row of length 0 does not change.
            begins: Whether a stream begins in the row with this window.
            begins_text: Whether an utterance begins with this window.

        Returns:
            The state, the result of `Head.search`, and the number of its frames in each row.
        """
        first = self.initial_state(len(begins), head=head, decoding=decoding)
        encoder = where_rows(begins, first["encoder"], state["encoder"])
        search = where_rows(begins_text, first["search"], state["search"])
        after, outputs = self.encoder.stream(encoder, frames)
        found, after_search = self.heads[head].search(Encoded(outputs), decoding, search)
        after = {"encoder": after, "search": after_search}
        state = where_rows(frames.lengths > 0, after, {"encoder": encoder, "search": search})
        return state, found, outputs.lengths

    def emit(self, batch: Batch, *, head: str = "") -> dict[str, Any]:
        """Returns the frame-wise outputs (`Head.emit`) of one head or of all, as a dict of heads."""
        encoded = self.with_emitted(self.encode(batch, step=None), head=head)
        return {name: each.emit(encoded) for name, each in self.heads.items() if head in ("", name)}

    def denominators(self, batch: Batch) -> dict[str, Float[Array, ""]]:
        """Computes the denominator of each loss term without the encoder.

        The random stream "mask" must be the one of `__call__`, which then draws the same masks.
        """
        num_frames, size = batch.lengths, batch.signal.shape[1]
        if batch.features is None:
            num_frames, size = (self.front_end.output_length(number) for number in (num_frames, size))
        with _random_rows(batch):
            lengths, mask = self._lengths(num_frames), self._mask(num_frames, size, self.sub_batches)
        denominators = {name: head.denominators(lengths, batch, mask=mask) for name, head in self.heads.items()}
        return {f"{name}/{term}": value for name, terms in denominators.items() for term, value in terms.items()}

    def _mask(self, lengths: Int[Array, " B"], size: DimSize, sub_batches: int) -> Bool[Array, "B T"] | None:
        """Draws the frames to mask. None without a random stream "mask", as in recognition."""
        if not isinstance(self.encoder, MaskingEncoder) or not self.has_rng("mask"):
            return None
        return self.encoder.draw_mask(self.make_rng("mask"), lengths, size, sub_batches=sub_batches)

    @property
    def recognising(self) -> str:
        """Name of the primary head: `primary`, or the only recognising head.

        Raises:
            UserError: If no head recognises, or if several do and `primary` is empty.
        """
        return named_or_only(self.primary, [name for name, head in self.heads.items() if head.recognises], self.heads)

    @property
    def aligning(self) -> str:
        """Name of the CTC head that aligns texts.

        This is the primary head if it is a CTC head, otherwise the first CTC head on the encoder's output, otherwise
        the first CTC head.

        Raises:
            UserError: If the model has no CTC head or no recognising head.
        """
        names = [name for name, head in self.heads.items() if head.aligns]
        if not any(head.recognises for head in self.heads.values()):
            return self.recognising  # raises
        if not names:
            raise UserError(
                f"alignment needs a CTC head, and the heads of the model are {', '.join(self.heads)}: train with an "
                "additional CTC head (model.heads), or use another run"
            )
        recognising = self.primary or next(name for name, head in self.heads.items() if head.recognises)
        return min(names, key=lambda name: (name != recognising, self.heads[name].tap != OUTPUT))

    @property
    def needs_mask(self) -> bool:
        """Whether the losses of a head are computed on masked frames, which are then masked in evaluation too."""
        return any(head.needs_mask for head in self.heads.values())

    def output_length(self, lengths: Any, *, tap: str = OUTPUT, of_features: bool = False) -> Any:
        """Number of frames of the encoder's output or of a tap.

        Args:
            lengths: Number of samples, or of frames of features; an int or an array.
            tap: Name of the tap. `OUTPUT`: the encoder's output.
            of_features: Whether `lengths` counts frames of features instead of samples.
        """
        return self._lengths(lengths if of_features else self.front_end.output_length(lengths))[tap]

    def fewest_inputs(self, *, of_features: bool = False) -> int:
        """Smallest number of samples, or of frames of features, with a frame of the output and of each tap.

        Programs for batches of any length (`core.shapes`) have this number as the lower bound of the length.
        """

        def num_frames(number: int) -> int:
            return min(self._lengths(number if of_features else self.front_end.output_length(number)).values())

        enough = next(2**power for power in itertools.count() if num_frames(2**power))
        return 1 + bisect.bisect_left(range(1, enough + 1), 1, key=num_frames)

    @property
    def label_length(self) -> Callable[..., Any]:
        """`output_length` for the frames that labels are aligned with.

        These are the frames of the primary head, or of the encoder's output if no head recognises.
        """
        recognises = any(head.recognises for head in self.heads.values())
        return self.length_of(self.recognising) if recognises else self.output_length

    def length_of(self, head: str) -> Callable[..., Any]:
        """Returns `output_length` for the tap that a head reads."""
        return functools.partial(self.output_length, tap=self.heads[head].tap)

    def frame_times(self, *, tap: str = OUTPUT) -> FrameTimes:
        """Times of the frames of the encoder's output or of a tap.

        Features without audio are assumed to have the hop and the sample rate of the model's front-end.
        """
        length = functools.partial(self.output_length, tap=tap)
        return FrameTimes.of(length, hop=self.front_end.hop, rate_hz=self.front_end.rate_hz)

    def _lengths(self, num_frames: Any) -> dict[str, Any]:
        """Number of frames of the encoder's output and of its taps, for a number of input frames."""
        return {OUTPUT: self.encoder.output_length(num_frames), **self.encoder.tap_lengths(num_frames)}


def _own(of_frames: Sequence[Augmentation]) -> list[Augmentation]:
    """Returns the augmentations that are drawn for each view: from the first one that keeps time alignment on."""
    return list(itertools.dropwhile(lambda each: each.moves_frames, of_frames))


def _random_rows(batch: Batch, views: int = 1) -> AbstractContextManager[None]:
    """Sets the keys of rows (`core.random_streams`) for a batch of which each row is repeated `views` times."""
    rows = (
        batch.utterances
        if views == 1
        else jnp.repeat(batch.utterances, views) * views + jnp.tile(jnp.arange(views), len(batch.utterances))
    )
    return utterances_of_rows(rows)


def repeated(rows: Tree, times: int) -> Tree:
    """Repeats each row `times` times in sequence, which keeps the copies of a row on one device."""
    return rows if times == 1 else jax.tree.map(lambda array: jnp.repeat(array, times, axis=0), rows)


def named_or_only(primary: str, recognising: Sequence[str], heads: Iterable[str]) -> str:
    """Selects the primary head.

    Raises:
        UserError: If no head recognises, if `primary` does not, or if several heads do and `primary` is empty.
    """
    if primary and primary not in recognising:
        raise UserError(f"primary is {primary!r}: expected a recognising head, one of {', '.join(recognising)}")
    if not recognising:
        raise UserError(
            f"the model cannot recognise: none of its heads ({', '.join(heads)}) is a recognising head. Fine-tune it "
            "first: python -m asr_jax.train --config A_CONFIG_WITH_CTC --init-from RUN"
        )
    if not primary and len(recognising) > 1:
        raise UserError(
            f"the heads {', '.join(recognising)} recognise, and primary is empty: expected the name of one of them, "
            f"such as Model(primary={recognising[0]!r}). To continue an earlier run with its former head, pass only "
            "--run-dir"
        )
    return primary or recognising[0]


@settings
class Model:
    """Settings of a Recogniser."""

    encoder: EncoderSettings
    """Settings of the encoder."""
    heads: dict[str, HeadSettings] = field(default_factory=lambda: {"ctc": CTC()})
    """Names and settings of the heads. Hybrid training uses two heads. Empty: an encoder alone, whose layers
    `extract_features` computes; it cannot be trained."""
    front_end: FrontEnd = KaldiFbank()
    """Settings of the front-end, which computes features from samples."""
    augment: tuple[Augmentation, ...] = (SpecAugment(),)
    """Augmentations in training. Those of audio are applied first, then those of features, each in this order."""
    views: PositiveInt = 1
    """Number of differently augmented copies of each utterance in training (CR-CTC: 2), each with an equal part of the
    utterance's weight. Memory grows by this factor: data.batching.budget counts each utterance once."""
    sub_batches: PositiveInt = 1
    """Number of micro-batches, in each of which masks are drawn and codes are counted separately. With as many as there
    are devices, results are as if each device had a batch of its own. It divides the rows of a batch."""
    primary: str = ""
    """Name of the primary head, whose search returns the texts. Empty: the only recognising head."""

    def problems(self) -> Iterator[str]:
        parts: tuple[EncoderSettings | Augmentation, ...] = (self.encoder, *self.augment)
        for part in parts:
            try:
                part.check(self.front_end)
            except ValueError as error:
                yield str(error)
        of_frames = [each for each in self.augment if not isinstance(each, AudioAugmentation)]
        late = [type(each).__name__ for each in _own(of_frames) if each.moves_frames]
        if self.views > 1 and late:
            yield (
                f"augment has {late[0]} after {type(_own(of_frames)[0]).__name__} and views is {self.views}: expected "
                f"{late[0]} first, because all views of an utterance must share augmentations of time alignment"
            )
        if self.recognises or self.primary:
            try:
                self.recognising  # noqa: B018  raises
            except UserError as error:
                yield str(error)
        taps = self.encoder.build(dtype=jnp.float32).tap_lengths(0).keys()
        for name, head in self.heads.items():
            try:
                head.check(taps=taps, views=self.views)
                self._check_reads(head)
            except ValueError as error:
                yield f"heads.{name}: {error}"

    def _check_reads(self, head: HeadSettings) -> None:
        """Checks that the CTC heads that a head reads exist and have the taps that it expects."""
        for name, tap in head.reads.items():
            ctc = self.heads.get(name)
            if not isinstance(ctc, CTC):
                known = ", ".join(each for each, settings in self.heads.items() if isinstance(settings, CTC)) or "none"
                raise ValueError(f"the head reads {name!r}: expected the name of a CTC head, one of {known}")
            if ctc.tap != tap:
                raise ValueError(f"the head reads {name!r}, whose tap is {ctc.tap!r}: expected the tap {tap!r}")

    @property
    def row_parts(self) -> int:
        """Number that must divide the rows of a batch in training: `sub_batches` and the splits of heads."""
        return math.lcm(self.sub_batches, *(head.row_parts for head in self.heads.values()))

    @property
    def recognises(self) -> bool:
        """Whether a head recognises and is trained with labels."""
        return any(head.recognises for head in self.heads.values())

    @property
    def recognising(self) -> str:
        """Name of the primary head, as `Recogniser.recognising`."""
        return named_or_only(self.primary, [name for name, head in self.heads.items() if head.recognises], self.heads)

    def frames_needed(self, num_labels: Any, num_repeats: Any) -> Any:
        """Least number of frames that the primary head needs, for ints and arrays; 0 without a recognising head."""
        if not self.recognises:
            return 0 * num_labels
        return self.heads[self.recognising].frames_needed(num_labels, num_repeats)

    def decoding_of(self, head: str) -> Decoding:
        """Decoding of a head.

        Raises:
            UserError: If the model has no such head, or the head has no search.
        """
        settings = self.heads[head].search_settings if head in self.heads else None
        if settings is None:
            known = [name for name, each in self.heads.items() if each.search_settings is not None]
            raise UserError(f"{head!r} is not a recognising head of the model: expected one of {', '.join(known)}")
        return settings

    def with_decoding(self, head: str, decoding: Decoding) -> "Model":
        """Returns the same model with another decoding of a head."""
        return replace(self, heads=self.heads | {head: replace(self.heads[head], decoding=decoding)})  # type: ignore[call-arg]

    def with_context(self, context: Context) -> "Model":
        """Returns the same model with one context of attention.

        Raises:
            UserError: If the encoder has no contexts, or not this one.
        """
        if not isinstance(self.encoder, StreamingEncoder):
            raise UserError(f"{type(self.encoder).__name__} has no contexts of attention: remove --chunk-frames")
        try:
            return replace(self, encoder=self.encoder.with_context(context))
        except ValueError as error:
            fix = "choose another number, or remove the option for the model's own context"
            if not getattr(self.encoder, "causal", True):
                fix = "the model was trained without chunks, so remove --chunk-frames"
            left = "" if context.left_frames is None else f" --left-frames {context.left_frames}"
            raise UserError(f"--chunk-frames {context.chunk_frames}{left}: {error}; {fix}") from error

    def build(self, *, vocab_size: int, blank_id: int, precision: Precision) -> Recogniser:
        """Creates the module."""
        dtype = compute_dtype(precision)
        heads = {
            name: head.build(vocab_size=vocab_size, blank_id=blank_id, dtype=dtype) for name, head in self.heads.items()
        }
        return Recogniser(
            self.front_end,
            self.augment,
            self.encoder.build(dtype=dtype),
            heads,
            self.views,
            self.sub_batches,
            self.primary,
        )

"""Base classes of encoders and of their settings."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, Self

import jax
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from asr_jax.audio.features import FrontEnd
from asr_jax.core.batch import Encoded, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree
from asr_jax.core.settings import NonNegativeInt, PositiveInt, ShareBelow1, settings
from asr_jax.core.sharding import ModelRules
from asr_jax.nn.activations import ActivationName
from asr_jax.nn.conformer.modules import ConvNorm
from asr_jax.nn.conformer.striding import Subsampling
from asr_jax.nn.model_axis import ATTENTION, FEED_FORWARD
from asr_jax.nn.remat import Remat
from asr_jax.nn.wav2vec.span_masks import SpanMask


@dataclass(frozen=True)
class StreamWindow:
    """Windows of input frames that `Encoder.stream` reads.

    Window n of a stream begins at input frame n · `shift` - `before`. A stream of N frames has all windows with
    n · `shift` < N + `before`. More than one of its last windows can be shorter than `size`.
    """

    size: int
    """Number of input frames of a window."""
    shift: int
    """Distance in input frames between the beginnings of two windows. At most `size`."""
    outputs: int
    """Number of output frames of a window that is full."""
    before: int = 0
    """Number of frames that the first window has before the first frame of a stream. Their values do not matter, but
    the lengths of windows include them."""


class Encoder(nn.Module):
    """Base class of encoders, which map frames to frames.

    The parameter names of a subclass are part of the checkpoint format.
    """

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        """Encodes frames.

        Args:
            step: Number of applied updates, which schedules depend on, while training; None in evaluation.

        Returns:
            Output frames, and the frames of each tap.
        """
        raise NotImplementedError

    def output_length(self, num_frames: Any) -> Any:
        """Returns the number of output frames for a number of input frames, at least 0; for ints and arrays."""
        raise NotImplementedError

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        """Returns the number of frames of each tap, by its name, for a number of input frames; for ints and arrays."""
        return {}

    @property
    def stream_window(self) -> StreamWindow:
        """Windows that `stream` reads.

        Raises:
            UserError: If the encoder cannot stream.
        """
        raise UserError(
            f"{type(self).__name__.removesuffix('Encoder')} cannot stream, because its outputs depend on the whole "
            "recording: transcribe whole recordings, or train a model that streams (documentation: streaming)"
        )

    def initial_state(self, num_rows: int) -> Tree:
        """Returns the state of `num_rows` streams before their first window.

        The first axis of each array has the streams. Its size does not grow with the length of a stream.

        Raises:
            UserError: If the encoder cannot stream.
        """
        self.stream_window  # noqa: B018  raises
        raise NotImplementedError

    def stream(self, state: Tree, frames: Frames) -> tuple[Tree, Frames]:
        """Encodes the next window of each stream.

        The outputs of all windows of a stream, in sequence, equal the output of `__call__` for the whole stream.

        Args:
            state: State before the window.
            frames: Window of each stream, `[B, stream_window.size, F]`. A length below the size means that the stream
                ends in the window; 0 means that it has ended before, or that the row has no stream.

        Returns:
            State after the window, and the output frames, `[B, stream_window.outputs, D]`. A stream of N frames has
            `output_length(N)` output frames in all.
        """
        raise NotImplementedError


class MaskingEncoder(Encoder):
    """Base class of encoders that mask frames in training."""

    def __call__(
        self, frames: Frames, *, step: Int[Array, ""] | None, mask: Bool[Array, "B T"] | None = None
    ) -> Encoded:
        """Encodes frames, of which some are masked.

        Args:
            mask: Frames to mask, at the frame rate of the layers. None: no masks.
        """
        raise NotImplementedError

    def draw_mask(
        self, key: PRNGKeyArray, lengths: Int[Array, " B"], size: int, *, sub_batches: int
    ) -> Bool[Array, "B T"]:
        """Draws the frames to mask, separately for each micro-batch.

        Args:
            lengths: Length of each row in input frames of the encoder.
            size: Length of the padded rows in input frames of the encoder.

        Returns:
            True for masked frames, at the frame rate of the layers.
        """
        raise NotImplementedError


@settings
class EncoderSettings:
    """Base class of encoder settings. `build` creates the module."""

    def problems(self) -> Iterator[str]:
        """Yields a message for each mistake across fields."""
        yield from ()

    def check(self, front_end: FrontEnd) -> None:
        """Checks that the encoder accepts the features of the front-end.

        Raises:
            ValueError: If it does not.
        """

    def depths(self, path: str) -> tuple[int, ...]:
        """Number of layers before a parameter, for layer-wise decay of the learning rate.

        Args:
            path: Path of the parameter within the encoder.

        Returns:
            One depth, or the depth of each layer for a parameter of a stack of layers.
        """
        raise NotImplementedError

    def num_depths(self) -> int:
        """Number of different depths."""
        raise NotImplementedError

    def model_axis_rules(self) -> ModelRules:
        """Rules that spread the kernels of the layers over the axis model of the mesh; empty if there are none."""
        return ()

    def build(self, *, dtype: DTypeLike) -> Encoder:
        """Creates the module, which computes in `dtype` with float32 parameters."""
        raise NotImplementedError


@settings
class Context:
    """Frames that attention sees: those of the frame's own chunk, and some before the chunk."""

    chunk_frames: PositiveInt | None = None
    """Length of a chunk in frames. None: one chunk, which is the whole utterance."""
    left_frames: NonNegativeInt | None = None
    """Number of frames before the chunk. None: all frames before it."""

    def problems(self) -> Iterator[str]:
        if self.chunk_frames is None and self.left_frames is not None:
            yield f"left_frames is {self.left_frames}: expected None without chunk_frames"


def contexts_of(chunks: tuple[int | None, ...], left: tuple[int | None, ...]) -> tuple[Context, ...]:
    """Returns a context for each pair of a chunk length and a number of frames before the chunk.

    A chunk of None, which is the whole utterance, has nothing before it. To give both lists the same chance in training
    as if they were drawn independently, it is repeated for each number in `left`.
    """
    return tuple(Context(chunk, None if chunk is None else frames) for chunk, frames in product(chunks, left))


@settings
class StreamingEncoder(EncoderSettings):
    """Base class of settings of encoders that can compute attention in chunks, for streaming."""

    contexts: tuple[Context, ...] = (Context(),)
    """Contexts of attention, in frames of the layers. Training draws one for each update; evaluation and streaming use
    the first one."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.contexts:
            yield "contexts is empty: expected at least one context"

    def with_context(self, context: Context) -> Self:
        """Returns the settings with one context instead of all."""
        return replace(self, contexts=(context,))

    def draw_context(self, module: nn.Module, *, step: Int[Array, ""] | None) -> Int[Array, ""] | None:
        """Draws the number of a context for an update of training.

        Returns:
            Number of the context. None: the first one, since there is no other or `step` is None.
        """
        if step is None or len(self.contexts) == 1:
            return None
        return jax.random.randint(module.make_rng("dropout"), (), 0, len(self.contexts))

    def check_streams(self, **expected: tuple[Any, ...]) -> tuple[int, int]:
        """Checks that the settings are those of a streaming encoder.

        Args:
            expected: Values that fields may have.

        Returns:
            `chunk_frames` and `left_frames` of the first context.

        Raises:
            UserError: If another field has another value, or the first context lacks a number. The message names all.
        """
        wrong = [
            f"encoder.{name} is {getattr(self, name)}, expected {' or '.join(map(str, values))}"
            for name, values in expected.items()
            if getattr(self, name) not in values
        ]
        fix = "Train a model with these settings (documentation: streaming)"
        chunk_frames, left_frames = self.contexts[0].chunk_frames, self.contexts[0].left_frames
        if not wrong and chunk_frames is None:
            fix = "Add --chunk-frames 16 --left-frames 128 if it was trained with chunks (documentation: streaming)"
        elif not wrong and chunk_frames is not None:
            fix = f"Add --left-frames, such as --left-frames {8 * chunk_frames} (documentation: streaming)"
        wrong += ["encoder.contexts[0].chunk_frames is None, expected a number"] * (chunk_frames is None)
        wrong += ["encoder.contexts[0].left_frames is None, expected a number"] * (left_frames is None)
        if wrong or chunk_frames is None or left_frames is None:
            raise UserError(f"{type(self).__name__} cannot stream, because {'; '.join(wrong)}. {fix}")
        return chunk_frames, left_frames


@settings
class EncoderOfMels(EncoderSettings):
    """Base class of settings of encoders whose input frames have `num_mels` values."""

    num_mels: PositiveInt = 80
    """Number of values of an input frame, which is the number of mel bins times the number of stacked frames."""
    mask_padding: bool = True
    """Whether the output of an utterance is independent of padding. False: padding has the effect that it has in the
    system that published the model."""

    def check(self, front_end: FrontEnd) -> None:
        if front_end.num_features != self.num_mels:
            raise ValueError(
                f"encoder.num_mels is {self.num_mels}, but frames of the front-end have {front_end.num_features} "
                "values: set both to the same number"
            )

    def check_frames(self, values: Float[Array, "B T F"]) -> None:
        """Checks the width of frames.

        Raises:
            ValueError: If frames do not have `num_mels` values.
        """
        if values.shape[-1] != self.num_mels:
            raise ValueError(f"frames have {values.shape[-1]} values, expected num_mels, {self.num_mels}")


@settings
class LayeredEncoder(EncoderSettings):
    """Base class of settings of encoders with layers that can be tapped and rematerialised."""

    remat: Remat = "elementwise"
    """Rematerialisation policy of the layers (see `nn.remat`): none, elementwise, products or layers, in the order of
    decreasing memory. elementwise is also the fastest in most encoders."""
    taps: tuple[str, ...] = ()
    """Names of inner outputs for heads, such as layer_0 (see `tap_names`). With any, the outputs of all layers are
    stored."""

    def tap_names(self) -> tuple[str, ...]:
        """Names that `taps` may have."""
        raise NotImplementedError

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not set(self.tap_names()) >= set(self.taps):
            names = self.tap_names()
            shown = ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, … {names[-1]}"
            yield f"taps is {self.taps}: expected names from {shown}"


@settings
class AttentionEncoder(LayeredEncoder):
    """Base class of settings of encoders whose layers are of one width and have attention."""

    dim: PositiveInt = 512
    """Width of the layers and of the output. Must be a multiple of num_heads."""
    num_layers: PositiveInt = 12
    """Number of layers."""
    num_heads: PositiveInt = 8
    """Number of attention heads."""
    feedforward_dim: PositiveInt | None = None
    """Hidden width of the feed-forward modules. None: four times dim."""
    dropout: ShareBelow1 = 0.1
    """Dropout rate after each module of a layer, and within the feed-forward modules unless the encoder has
    activation_dropout."""
    attention_dropout: ShareBelow1 = 0.1
    """Dropout rate of the attention weights."""

    @property
    def hidden_dim(self) -> int:
        """Hidden width of the feed-forward modules."""
        return self.feedforward_dim or 4 * self.dim

    def tap_names(self) -> tuple[str, ...]:
        return tuple(f"layer_{number}" for number in range(self.num_layers))

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.dim % self.num_heads:
            yield f"dim is {self.dim}: expected a multiple of num_heads, {self.num_heads}"


@settings
class SubsamplingEncoder(AttentionEncoder, EncoderOfMels):
    """Base class of settings of encoders of mel bins with subsampling, attention and depthwise convolutions.

    `dim` must be even.
    """

    kernel_size: PositiveInt = 31
    """Taps of the depthwise convolutions. Must be odd."""
    subsampling: Subsampling = "striding"
    """Convolutions that lower the frame rate. striding: full convolutions, as in Conformer. dw_striding:
    depthwise-separable convolutions after the first, as in FastConformer."""
    subsampling_factor: PositiveInt = 4
    """Ratio of the input's to the output's frame rate. Must be a power of 2, at least 2."""
    subsampling_channels: PositiveInt | None = None
    """Channels of the subsampling. None: dim."""
    positions: Literal["rel_pos", "abs_pos", "none"] = "rel_pos"
    """Position encodings. rel_pos: relative positions in attention (Transformer-XL). abs_pos: sinusoids that are added
    to the input. none: convolutions alone depend on positions, as in the Rust trainer's Paraformer."""
    tied_biases: bool = False
    """Whether all layers share one pair of query biases. Requires rel_pos."""
    scale_input: bool = True
    """Whether frames are multiplied by √dim before the first layer."""
    norm: ConvNorm = "batch"
    """Norm of the convolution modules. batch: batch norm over the valid frames. batch_padded: batch norm that includes
    padding, as in NeMo. layer: layer norm over the channels of a frame."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.dim % 2:
            yield f"dim is {self.dim}: expected an even number"
        if self.kernel_size % 2 == 0:
            yield f"kernel_size is {self.kernel_size}: expected an odd number"
        if self.subsampling_factor.bit_count() != 1 or self.subsampling_factor < 2:
            yield f"subsampling_factor is {self.subsampling_factor}: expected a power of 2, at least 2"
        if self.tied_biases and self.positions != "rel_pos":
            yield f"tied_biases is True with positions {self.positions}: expected rel_pos, which has biases"

    def num_depths(self) -> int:
        return 1 + self.num_layers

    def model_axis_rules(self) -> ModelRules:
        return ATTENTION + FEED_FORWARD


@settings
class MaskedEncoder(AttentionEncoder):
    """Base class of settings of encoders that mask spans of frames and channels in training."""

    activation: ActivationName = "gelu"
    """Activation of the feed-forward modules."""
    activation_dropout: ShareBelow1 = 0.0
    """Dropout rate within the feed-forward modules."""
    input_dropout: ShareBelow1 = 0.1
    """Dropout rate of the frames before they are masked."""
    layer_drop: ShareBelow1 = 0.05
    """Probability that a layer is skipped in training (LayerDrop)."""
    time_mask: SpanMask = SpanMask()
    """Spans of frames that training replaces with a learned vector. Probability 0: no masks."""
    channel_mask: SpanMask = SpanMask(probability=0.0, length=64, min_spans=0)
    """Spans of channels that training sets to 0 in all frames of an utterance. Probability 0: no masks."""

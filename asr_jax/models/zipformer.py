"""Zipformer: an encoder whose stacks of layers have different frame rates.

Source: Yao et al. 2023, "Zipformer: A faster and better encoder for automatic speech recognition" (arXiv:2310.11230);
icefall's egs/librispeech/ASR/zipformer at commit 36e0420c.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Encoded, Frames, length_mask
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree
from asr_jax.core.settings import PositiveFloat, PositiveInt, ShareBelow1, between, settings
from asr_jax.core.shapes import DimSize
from asr_jax.core.sharding import ModelRules
from asr_jax.models.encoder import Encoder, EncoderOfMels, LayeredEncoder, StreamingEncoder, StreamWindow
from asr_jax.nn.attention import chunk_mask, of_context
from asr_jax.nn.cache import Cache
from asr_jax.nn.layer_stack import LayerInputs, layer_stack
from asr_jax.nn.model_axis import FEED_FORWARD
from asr_jax.nn.normalization import BiasNorm
from asr_jax.nn.positions import compact_positions
from asr_jax.nn.schedules import Step, piecewise_linear
from asr_jax.nn.stochastic import Regulariser, kept, kept_of_rows, whitening_limit
from asr_jax.nn.zipformer.attention import AttentionWeights, NonlinearAttention, SelfAttention
from asr_jax.nn.zipformer.convolution import ConvolutionModule
from asr_jax.nn.zipformer.layer import Bypass, FeedForward
from asr_jax.nn.zipformer.stack import StackSizes, feature_masks, layer_skip_rates, to_width, widest
from asr_jax.nn.zipformer.subsampling import NEIGHBOURS, ConvEmbedding, Downsample, embedding_length, upsample

SKIP_ATTENTION = SKIP_CONVOLUTION = piecewise_linear((0, 0.2), (4000, 0.05), (16000, 0.0))
SKIP_FEED_FORWARD = piecewise_linear((0, 0.1), (4000, 0.01), (50000, 0.0))
CONSTANT_ATTENTION = piecewise_linear((0, 0.25), (4000, 0.025))
# Ranges of the balancers of each module's residual output. Their probability is low.
ADDED: dict[str, Any] = {"min_positive": 0.3, "max_positive": 0.7, "chance": 0.05}
ADDED_BY_NONLINEAR_ATTENTION = {**ADDED, "min_abs": piecewise_linear((0, 0.004), (4000, 0.02))}
ADDED_BY_FEED_FORWARD_2 = {**ADDED, "min_abs": piecewise_linear((0, 0.0), (4000, 0.1)), "max_abs": 2.0}
ADDED_BY_FEED_FORWARD_3 = {**ADDED, "min_abs": piecewise_linear((0, 0.0), (4000, 0.2)), "max_abs": 4.0}
POSITION_DROPOUT = 0.15
# In the order of the fields of `StackSizes`.
PER_STACK = (
    "dims",
    "num_layers",
    "downsampling",
    "num_heads",
    "query_dims",
    "position_dims",
    "value_dims",
    "feedforward_dims",
    "kernel_sizes",
)


@settings
class Zipformer(StreamingEncoder, LayeredEncoder, EncoderOfMels):
    """Settings of Zipformer, with tuples of one value per stack. The defaults are the medium size.

    `contexts` are in frames of the embedding, which has half of the input's frame rate. Chunks require causal.
    chunk_frames must be a multiple of each downsampling, and left_frames a multiple of chunk_frames.
    """

    num_mels: Annotated[int, between(7)] = 80
    """Number of mel bins of the input."""
    embed_channels: tuple[PositiveInt, PositiveInt, PositiveInt] = (8, 32, 128)
    """Channels of the embedding's three convolutions."""
    downsampling: tuple[PositiveInt, ...] = (1, 2, 4, 8, 4, 2)
    """Divisor of the embedding's frame rate (half of the input's) in each stack."""
    dims: tuple[PositiveInt, ...] = (192, 256, 384, 512, 384, 256)
    """Width of each stack. The output has the largest."""
    num_layers: tuple[PositiveInt, ...] = (2, 2, 3, 4, 3, 2)
    """Number of layers of each stack."""
    unmasked_dims: tuple[PositiveInt, ...] = (192, 192, 256, 256, 256, 192)
    """Number of channels of each stack that are never masked. Training masks the others in random rows."""
    num_heads: tuple[PositiveInt, ...] = (4, 4, 4, 8, 4, 4)
    """Number of attention heads of each stack."""
    query_dims: tuple[PositiveInt, ...] = (32,) * 6
    """Width of queries and keys per head."""
    value_dims: tuple[PositiveInt, ...] = (12,) * 6
    """Width of values per head."""
    position_dims: tuple[PositiveInt, ...] = (4,) * 6
    """Width of position queries and projected relative positions per head."""
    feedforward_dims: tuple[Annotated[int, between(4)], ...] = (512, 768, 1024, 1536, 1024, 768)
    """Hidden width of the second feed-forward module. The first has 3/4 of it, the third 5/4."""
    kernel_sizes: tuple[PositiveInt, ...] = (31, 31, 15, 15, 15, 31)
    """Taps of the depthwise convolutions. Must be odd."""
    positions_dim: PositiveInt = 48
    """Width of the encodings of relative positions. Must be even."""
    output_downsampling: PositiveInt = 2
    """Divisor of the embedding's frame rate in the output. 1: no downsampling."""
    dropout_start: ShareBelow1 = 0.3
    """Dropout rate of the feed-forward modules and of the embedding at the first update."""
    dropout_end: ShareBelow1 = 0.1
    """Dropout rate after 20000 of the recipe's batches, with a linear decrease from dropout_start."""
    causal: bool = False
    """Whether the right context of convolutions ends with the chunk, for streaming. The parameters of such convolutions
    have other names and shapes."""
    batches_per_update: PositiveFloat = 1.0
    """Number of batches of icefall's recipe (about 600 s of audio each) that an update counts for in the published
    schedules of dropout, skipping and regularisers, which run over 4000 to 50000 batches."""
    skip: bool = True
    """Whether training skips random layers, modules, positions and features, as published."""
    regularise: bool = True
    """Whether training uses Balancer and Whitener, regularisers that modify only gradients."""

    def tap_names(self) -> tuple[str, ...]:
        return ("embed", *(f"stack_{number}" for number in range(len(self.downsampling))))

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        num_stacks = len(self.downsampling)
        if not num_stacks:
            yield "downsampling is empty: expected at least one stack"
        for name in (*PER_STACK, "unmasked_dims"):
            if (num := len(getattr(self, name))) != num_stacks:
                yield f"{name} has {num} values: expected {num_stacks}, one per stack of downsampling"
        if self.positions_dim % 2:
            yield f"positions_dim is {self.positions_dim}: expected an even number"
        if not all(size % 2 for size in self.kernel_sizes):
            yield f"kernel_sizes is {self.kernel_sizes}: expected odd numbers"
        if any(unmasked > dim for unmasked, dim in zip(self.unmasked_dims, self.dims, strict=False)):
            yield f"unmasked_dims is {self.unmasked_dims}: expected at most dims, {self.dims}"
        for number, context in enumerate(self.contexts):
            chunk, left, name = context.chunk_frames, context.left_frames, f"contexts[{number}]"
            if chunk is not None and not self.causal:
                yield f"{name}.chunk_frames is {chunk}: expected None without causal"
            if chunk is not None and any(chunk % factor for factor in self.downsampling):
                yield f"{name}.chunk_frames is {chunk}: expected a multiple of each downsampling, {self.downsampling}"
            if chunk is not None and left is not None and (left == 0 or left % chunk):
                yield f"{name}.left_frames is {left}: expected a multiple of chunk_frames, {chunk}"

    @classmethod
    def tiny(cls, **changes: Any) -> "Zipformer":
        """Four stacks of one layer with 1.1 M parameters, for two CPU cores and a few hours of speech; not published.

        Skipping and regularisers are off, because small runs are too short for their schedules.
        """
        sizes = {
            "embed_channels": (4, 8, 16),
            "downsampling": (1, 2, 4, 2),
            "dims": (96,) * 4,
            "num_layers": (1,) * 4,
            "unmasked_dims": (96,) * 4,
            "num_heads": (4,) * 4,
            "query_dims": (16,) * 4,
            "value_dims": (12,) * 4,
            "position_dims": (4,) * 4,
            "feedforward_dims": (256,) * 4,
            "kernel_sizes": (31, 15, 15, 15),
            "skip": False,
            "regularise": False,
        }
        return cls(**{**sizes, **changes})

    @classmethod
    def xs(cls, **changes: Any) -> "Zipformer":
        """Smallest size of the Rust trainer, which is not in the paper: 2.8 M parameters with a CTC head of 500 labels.

        Source: RustedBytes/w2v-bert-uk, src/zipformer.rs at commit adec09e. Differs from: the Rust trainer has another
        convolutional embedding.
        """
        sizes = {
            "dims": (64, 96, 128, 160, 128, 96),
            "num_layers": (1,) * 6,
            "unmasked_dims": (64, 96, 128, 160, 128, 96),  # equal to dims: the Rust trainer masks no features
            "num_heads": (4,) * 6,
            "query_dims": (16,) * 6,
            "value_dims": (8,) * 6,
            "feedforward_dims": (192, 256, 384, 512, 384, 256),
            "positions_dim": 24,
        }
        return cls(**{**sizes, **changes})

    @classmethod
    def small(cls, **changes: Any) -> "Zipformer":
        """Zipformer-S of the paper's table 1: 22.1 M parameters with a CTC head of 500 labels."""
        sizes = {
            "dims": (192, 256, 256, 256, 256, 256),
            "num_layers": (2,) * 6,
            "unmasked_dims": (192,) * 6,
            "feedforward_dims": (512, 768, 768, 768, 768, 768),
        }
        return cls(**{**sizes, **changes})

    @classmethod
    def medium(cls, **changes: Any) -> "Zipformer":
        """Zipformer-M of the paper's table 1: 64.3 M parameters with a CTC head of 500 labels."""
        return cls(**changes)

    @classmethod
    def large(cls, **changes: Any) -> "Zipformer":
        """Zipformer-L of the paper's table 1: 147.0 M parameters with a CTC head of 500 labels."""
        sizes = {
            "dims": (192, 256, 512, 768, 512, 256),
            "num_layers": (2, 2, 4, 5, 4, 2),
            "unmasked_dims": (192, 192, 256, 320, 256, 192),
            "feedforward_dims": (512, 768, 1536, 2048, 1536, 768),
        }
        return cls(**{**sizes, **changes})

    @classmethod
    def variant(cls, name: str, **changes: Any) -> "Zipformer":
        """Returns a size by the Rust trainer's names: xs, s (small), sm and m (medium), ml and l (large).

        Raises:
            ValueError: If there is no such size.
        """
        sizes = {"xs": cls.xs, "s": cls.small, "sm": cls.medium, "m": cls.medium, "ml": cls.large, "l": cls.large}
        if name not in sizes:
            raise ValueError(f"Zipformer has no variant {name!r}: expected one of {', '.join(sizes)}")
        return sizes[name](**changes)

    def depths(self, path: str) -> tuple[int, ...]:
        """Depths: 0 for the embedding, then 1 and more for the layers of all stacks.

        The downsampling and the bypass of a stack have the depth of the stack's last layer, and the downsampling of the
        output has the depth of the last layer.
        """
        found = re.match(r"stack_(\d+)/(layers/)?", path)
        if not found:
            return (0,) if path.startswith("embed/") else (self.num_depths() - 1,)
        stack = int(found[1])
        first = 1 + sum(self.num_layers[:stack])
        own = range(first, first + self.num_layers[stack])
        return tuple(own) if found[2] else (own[-1],)

    def num_depths(self) -> int:
        return 1 + sum(self.num_layers)

    def model_axis_rules(self) -> ModelRules:
        return FEED_FORWARD

    def build(self, *, dtype: DTypeLike) -> "ZipformerEncoder":
        return ZipformerEncoder(self, dtype)

    def stacks(self) -> list[StackSizes]:
        """Returns the sizes of each stack."""
        stacks = []
        for values in zip(*(getattr(self, name) for name in PER_STACK), strict=True):
            sizes = dict(zip(StackSizes.__dataclass_fields__, values, strict=False))
            frames = [(context.chunk_frames, context.left_frames) for context in self.contexts]
            chunks, left = (tuple(n and n // sizes["downsampling"] for n in each) for each in zip(*frames, strict=True))
            stacks.append(StackSizes(**sizes, chunks=chunks, left=left))
        return stacks

    @property
    def dropout_rates(self) -> tuple[float, float]:
        """Dropout rates of the feed-forward modules and of the embedding at the start and after 20000 batches."""
        return self.dropout_start, self.dropout_end


class ZipformerEncoder(Encoder):
    """Zipformer encoder, [B T num_mels] to [B S max(dims)] with S = output_length(T).

    By default it divides the frame rate by 4, such as from 100 Hz to 25 Hz.

    Source of `stream`: `streaming_forward` in icefall's zipformer.py, subsampling.py and streaming_decode.py. Differs
    from: icefall appends frames of silence to a stream, so that its last chunk is full. Here the last chunk is as long
    as the stream.
    """

    settings: Zipformer
    dtype: DTypeLike = jnp.float32

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        return self._encode(frames, None, step=step)[0]

    @property
    def stream_window(self) -> StreamWindow:
        settings = self.settings
        chunk, _ = settings.check_streams(causal=(True,), mask_padding=(True,))
        if chunk % settings.output_downsampling:
            raise UserError(
                f"Zipformer cannot stream with contexts[0].chunk_frames {chunk}: expected a multiple of "
                f"output_downsampling, {settings.output_downsampling}"
            )
        return StreamWindow(2 * (chunk + NEIGHBOURS) + 7, 2 * chunk, chunk // settings.output_downsampling)

    def initial_state(self, num_rows: int) -> Tree:
        """Returns the state of `num_rows` streams before their first window.

        Returns:
            embed: Frames before the next chunk in the embedding, [B 3 F C].
            frames: Number of frames of the embedding in former windows, [B].
            stack_N: Frames of each layer before the next chunk, [B L K D]: K frames of keys, nonlinear attention and
                values of both attentions, or of inputs of both convolutions.

        Raises:
            UserError: If the encoder cannot stream.
        """
        self.stream_window  # noqa: B018  raises
        settings = self.settings
        bins = ((settings.num_mels - 1) // 2 - 1) // 2
        state: Tree = {
            "embed": jnp.zeros((num_rows, NEIGHBOURS, bins, settings.embed_channels[-1]), self.dtype),
            "frames": jnp.zeros(num_rows, jnp.int32),
        }
        for number, sizes in enumerate(settings.stacks()):
            left, side = sizes.left[0], sizes.kernel_size // 2
            assert left is not None
            shapes = {
                "key": (left, sizes.num_heads * sizes.query_dim),
                "nonlinear": (left, 3 * sizes.width // 4),
                **{f"value_{n}": (left, sizes.num_heads * sizes.value_dim) for n in (1, 2)},
                **{f"convolution_{n}": (side, sizes.width) for n in (1, 2)},
            }
            state[f"stack_{number}"] = {
                name: jnp.zeros((num_rows, sizes.num_layers, *shape), self.dtype) for name, shape in shapes.items()
            }
        return state

    def stream(self, state: Tree, frames: Frames) -> tuple[Tree, Frames]:
        encoded, state = self._encode(frames, state, step=None)
        return state, encoded.frames

    @nn.compact
    def _encode(
        self, frames: Frames, state: Tree | None, *, step: Int[Array, ""] | None
    ) -> tuple[Encoded, Tree | None]:
        """Encodes whole rows, or windows of streams with a state."""
        settings, context = self.settings, self.settings.draw_context(self, step=step)
        settings.check_frames(frames.values)
        if step is None:
            settings = settings.with_context(settings.contexts[0])
        batches = None if step is None else step * jnp.float32(settings.batches_per_update)
        embed = ConvEmbedding(
            settings.dims[0],
            settings.embed_channels,
            settings.dropout_rates,
            mask_padding=settings.mask_padding,
            regularise=settings.regularise,
            skip=settings.skip,
            dtype=self.dtype,
            name="embed",
        )
        cache = Cache(state and {"embed": state["embed"]})
        x = embed(frames.values, frames.lengths, step=batches, extend=cache.extend("embed", ahead=NEIGHBOURS))
        lengths = jnp.minimum(embedding_length(frames.lengths), x.shape[1])
        past, after = state and state["frames"], {}
        inner, outputs = {"embed": x}, []
        masks = feature_masks(
            self.make_rng("dropout") if settings.skip and step is not None else None,
            x.shape[0],
            widths=settings.dims,
            unmasked=settings.unmasked_dims,
            dtype=self.dtype,
        )
        for number, (sizes, feature_mask) in enumerate(zip(settings.stacks(), masks, strict=True)):
            skip_rates = layer_skip_rates(number, len(masks), sizes, step=batches)
            stack = ZipformerStack(settings, sizes, self.dtype, name=f"stack_{number}")
            x = to_width(x, sizes.width)
            x, after[f"stack_{number}"] = stack(
                x,
                lengths,
                state and state[f"stack_{number}"],
                past,
                skip_rates=skip_rates,
                feature_mask=feature_mask,
                context=context,
                step=batches,
            )
            inner[f"stack_{number}"] = x
            outputs.append(x)
        x = widest(outputs)
        if settings.output_downsampling > 1:
            x = Downsample(settings.output_downsampling, settings.mask_padding, name="downsample")(x, lengths)
        taps = {name: Frames(inner[name], lengths) for name in settings.taps}
        encoded = Encoded(frames=Frames(x, -(-lengths // settings.output_downsampling)), taps=taps)
        return encoded, state and {**after, **(cache.after or {}), "frames": state["frames"] + lengths}

    def output_length(self, num_frames: Any) -> Any:
        return -(-embedding_length(num_frames) // self.settings.output_downsampling)

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        return dict.fromkeys(self.settings.taps, embedding_length(num_frames))


class ZipformerStack(nn.Module):
    """Stack of layers at 1/`downsampling` of the input's frame rate.

    The output is upsampled to the input's frame rate and combined with the input by a learned bypass.
    """

    settings: Zipformer
    sizes: StackSizes
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        lengths: Int[Array, " B"],
        before: dict[str, Float[Array, "B L _ _"]] | None,
        past: Int[Array, " B"] | None,
        *,
        skip_rates: Float[Array, " L"],
        feature_mask: Float[Array, "B 1 D"] | None,
        context: Int[Array, ""] | None,
        step: Step,
    ) -> tuple[Float[Array, "B T D"], dict[str, Float[Array, "B L _ _"]] | None]:
        """Applies the layers.

        Args:
            lengths: Length of each row in frames.
            before: Frames that the layers kept from former windows of streams. None: rows are whole.
            past: Number of frames of each stream in former windows. None: rows are whole.
            skip_rates: Probability that a row skips each layer in training.
            feature_mask: 0 for the masked channels of each row, otherwise 1. None: no masks.
            context: Index of the context that was drawn. None: the first one.

        Returns:
            Output frames at the input's frame rate, and the frames that the layers keep for the next window.
        """
        factor, original = self.sizes.downsampling, x
        if factor > 1:
            x = Downsample(factor, self.settings.mask_padding, name="downsample")(x, lengths)
            lengths = -(-lengths // factor)
        left = 0 if before is None else before["key"].shape[2]
        if past is None:
            allowed = self._allowed(x.shape[1], lengths, context)
        else:
            seen = jnp.arange(left)[None] >= left - (past // factor)[:, None]
            allowed = jnp.concatenate([seen, length_mask(lengths, x.shape[1])], axis=1)[:, None]
        positions = self._positions(x.shape[1], left, step)
        x = x if feature_mask is None else x * feature_mask
        layers = layer_stack(
            ZipformerLayer, self.sizes.num_layers, self.settings.remat, in_axes=(0, 1, nn.broadcast), out_axes=1
        )(self.settings, self.sizes, self.dtype, name="layers")
        inputs = LayerInputs(allowed, lengths, step, positions, feature_mask=feature_mask, context=context)
        x, after = layers(x, skip_rates, before, inputs)
        if factor == 1:
            return x, after
        regularise = Regulariser.of(self, step=step, use=self.settings.regularise)
        x = upsample(x, factor=factor, num_frames=original.shape[1])
        return Bypass(name="bypass")(original, x, regularise=regularise), after

    def _positions(self, num_frames: DimSize, left: int, step: Step) -> Float[Array, "R P"]:
        """Encodings of the offsets of all keys, which are `left` frames before the queries, and the queries' frames."""
        encodings = compact_positions(left + num_frames, self.settings.positions_dim)[: left + 2 * num_frames - 1]
        positions = jnp.asarray(encodings, self.dtype)
        if step is None or not self.settings.skip:
            return positions
        return nn.Dropout(POSITION_DROPOUT)(positions, deterministic=False)  # shared by the rows

    def _allowed(
        self, num_frames: DimSize, lengths: Int[Array, " B"], context: Int[Array, ""] | None
    ) -> Bool[Array, "B #T T"]:
        """Keys (last axis) within the row's length and, with chunks, in the query's chunk or its left context."""
        keys = length_mask(lengths, num_frames)[:, None, :]
        if set(self.sizes.chunks) == {None}:
            return keys
        chunks = [num_frames if chunk is None else chunk for chunk in self.sizes.chunks]
        left = [num_frames if frames is None else frames for frames in self.sizes.left]
        chunk, before = of_context(chunks, context), of_context(left, context)
        return keys & chunk_mask(num_frames, num_frames, chunk, before)[None]


class ZipformerLayer(nn.Module):
    """Zipformer layer: feed-forward, attention and convolution modules, which share one set of attention weights.

    The signature is that of a body of `nn.scan`.
    """

    settings: Zipformer
    sizes: StackSizes
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        skip_rate: Float[Array, ""],
        before: dict[str, Float[Array, "B _ _"]] | None,
        inputs: LayerInputs,
    ) -> tuple[Float[Array, "B T D"], dict[str, Float[Array, "B _ _"]] | None]:
        """Applies the layer.

        Args:
            skip_rate: Probability that a row skips the layer in training.
            before: Frames that the layer kept from former windows of streams. None: rows are whole.
            inputs: Inputs of all layers of the stack.

        Returns:
            Output frames, and the frames that the layer keeps for the next window, which the scan collects.
        """
        settings, step, original, cache = self.settings, inputs.step, x, Cache(before)
        mask = length_mask(inputs.lengths, x.shape[1]) if settings.mask_padding else None
        regularise = Regulariser.of(self, step=step, use=settings.regularise, mask=mask)
        keep = self._keep(x, skip_rate, step)

        weights = self._attention_weights(x, inputs, regularise, cache)
        x += self._feed_forward(1, x, step, regularise)
        y = NonlinearAttention(self.dtype, name="nonlinear_attention")(
            x, self._first_head(weights[0], step), regularise=regularise, extend=cache.extend("nonlinear")
        )
        x += keep["attention"] * regularise.balance(y, **ADDED_BY_NONLINEAR_ATTENTION)
        x += keep["attention"] * self._attention(1, x, weights, regularise, cache)
        x += keep["convolution_1"] * self._convolution(1, x, inputs, regularise, cache)
        y = self._feed_forward(2, x, step, regularise)
        x += keep["feed_forward_2"] * regularise.balance(y, **ADDED_BY_FEED_FORWARD_2)
        x = Bypass(name="bypass_middle")(original, x, regularise=regularise)

        x += keep["attention"] * self._attention(2, x, weights, regularise, cache)
        x += keep["convolution_2"] * self._convolution(2, x, inputs, regularise, cache)
        y = self._feed_forward(3, x, step, regularise)
        x += keep["feed_forward_3"] * regularise.balance(y, **ADDED_BY_FEED_FORWARD_3)
        x = regularise.balance(x, min_positive=0.45, max_positive=0.55, min_abs=0.2, max_abs=4.0)
        x = BiasNorm(name="norm")(x, regularise=regularise)
        x = Bypass(name="bypass")(original, x, keep=keep["layer"], regularise=regularise)
        x = regularise.balance(x, min_positive=0.45, max_positive=0.55, min_abs=0.1, max_abs=4.0)
        x = regularise.whiten(x, limit=whitening_limit(4.0, ratio=3.0))
        return x if inputs.feature_mask is None else x * inputs.feature_mask, cache.after

    def _keep(self, x: Array, skip_rate: Array, step: Step) -> dict[str, Any]:
        """Draws, for each part of the layer, 0 for the rows that skip it and 1 for the others, [B 1 1]."""
        parts = ("attention", "convolution_1", "convolution_2", "feed_forward_2", "feed_forward_3", "layer")
        if step is None or not self.settings.skip:
            return dict.fromkeys(parts, 1.0)
        convolution, feed_forward = SKIP_CONVOLUTION(step), SKIP_FEED_FORWARD(step)
        rates = [SKIP_ATTENTION(step), convolution, convolution, feed_forward, feed_forward, skip_rate]
        drawn = kept_of_rows(self.make_rng("dropout"), jnp.stack(rates)[None], (len(x), len(parts)))
        return dict(zip(parts, drawn.T.astype(x.dtype)[:, :, None, None], strict=True))

    def _first_head(self, weights: Float[Array, "B T S"], step: Step) -> Float[Array, "B T S"]:
        """Returns the weights of the first head or, in some calls in training, uniform weights over the same keys."""
        if step is None or not self.settings.skip:
            return weights
        visible = (weights > 0).astype(jnp.float32)
        constant = visible / visible.sum(axis=-1, keepdims=True)
        use = kept(self.make_rng("dropout"), CONSTANT_ATTENTION(step), ())
        return jnp.where(use, weights, constant.astype(weights.dtype))

    def _attention_weights(
        self, x: Array, inputs: LayerInputs, regularise: Regulariser, cache: Cache
    ) -> Float[Array, "H B T S"]:
        sizes = self.sizes
        module = AttentionWeights(
            sizes.num_heads,
            sizes.query_dim,
            sizes.position_dim,
            skip_positions=self.settings.skip,
            dtype=self.dtype,
            name="attention_weights",
        )
        assert inputs.positions is not None
        return module(
            x,
            inputs.positions,
            inputs.allowed,
            step=inputs.step,
            regularise=regularise,
            extend=cache.extend("key"),
        )

    def _feed_forward(self, number: int, x: Array, step: Step, regularise: Regulariser) -> Array:
        hidden_dim = self.sizes.feedforward_dim * (number + 2) // 4  # 3/4, 4/4 and 5/4 of feedforward_dim
        module = FeedForward(hidden_dim, self.settings.dropout_rates, self.dtype, name=f"feed_forward_{number}")
        return module(x, step=step, regularise=regularise)

    def _attention(self, number: int, x: Array, weights: Array, regularise: Regulariser, cache: Cache) -> Array:
        module = SelfAttention(self.sizes.value_dim, self.dtype, name=f"attention_{number}")
        return module(x, weights, regularise=regularise, extend=cache.extend(f"value_{number}"))

    def _convolution(self, number: int, x: Array, inputs: LayerInputs, regularise: Regulariser, cache: Cache) -> Array:
        module = ConvolutionModule(
            self.sizes.kernel_size,
            causal=self.settings.causal,
            chunks=self.sizes.chunks,
            ends_at_batch=not self.settings.mask_padding,
            dtype=self.dtype,
            name=f"convolution_{number}",
        )
        return module(
            x,
            inputs.lengths,
            regularise=regularise,
            context=inputs.context,
            extend=cache.extend(f"convolution_{number}"),
        )

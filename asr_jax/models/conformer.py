"""Conformer and FastConformer: layers of attention and convolution between two halves of a feed-forward module.

Source: Gulati et al. 2020, "Conformer: Convolution-augmented Transformer for Speech Recognition" (arXiv:2005.08100);
Rekesh et al. 2023, "Fast Conformer with Linearly Scalable Attention for Efficient Speech Recognition"
(arXiv:2305.05084); NeMo's nemo/collections/asr/modules/conformer_encoder.py at commit 8cfedd72. Streaming: Noroozi et
al. 2023, "Stateful Conformer with Cache-based Inference for Streaming Automatic Speech Recognition" (arXiv:2312.17279).
"""

from collections.abc import Iterator
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Encoded, Frames, length_mask
from asr_jax.core.pytrees import Tree
from asr_jax.core.settings import ShareBelow1, settings
from asr_jax.core.shapes import DimSize, numbers
from asr_jax.models.encoder import Context, Encoder, StreamingEncoder, StreamWindow, SubsamplingEncoder
from asr_jax.nn.attention import chunk_mask, of_context
from asr_jax.nn.cache import Cache
from asr_jax.nn.conformer.modules import ConformerConvolution, ConformerFeedForward, RelativeAttention
from asr_jax.nn.conformer.striding import Subsample, initial_cache, strided_length
from asr_jax.nn.layer_stack import LayerInputs, layer_stack, tied_biases
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import normed
from asr_jax.nn.positions import relative_sinusoids, sinusoids
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout

FastSize = Literal["small", "medium", "large", "xlarge", "xxlarge"]
FAST: dict[FastSize, dict[str, Any]] = {
    "small": {"dim": 176, "num_layers": 16, "num_heads": 4},
    "medium": {"dim": 256, "num_layers": 16, "num_heads": 4},
    "large": {"dim": 512, "num_layers": 18, "num_heads": 8},
    "xlarge": {"dim": 1024, "num_layers": 24, "num_heads": 8, "scale_input": False},
    "xxlarge": {"dim": 1024, "num_layers": 42, "num_heads": 8, "scale_input": False, "kernel_size": 5},
}
STREAMING = tuple(Context(chunk_frames, 70) for chunk_frames in (14, 7, 2, 1))
"""Contexts of NeMo's streaming FastConformer, `att_context_size` [[70, 13], [70, 6], [70, 1], [70, 0]]."""
UNLIMITED = 2**30
"""Number of frames that is larger than any utterance."""
ParaformerVariant = Literal["xs", "s", "small", "sm", "m", "medium", "ml", "l", "large"]
PARAFORMER: dict[str, int] = {
    **dict.fromkeys(("xs", "s", "small"), 256),
    **dict.fromkeys(("sm", "m", "medium"), 384),
    **dict.fromkeys(("ml", "l", "large"), 512),
}
"""Widths of the Rust trainer's Paraformer."""


@settings
class Conformer(StreamingEncoder, SubsamplingEncoder):
    """Settings of Conformer. The defaults are the large Conformer-CTC of NeMo."""

    num_layers = 18
    use_bias: bool = True
    """Whether the feed-forward and attention modules have biases."""
    convolution_bias: bool = True
    """Whether the convolution modules have biases."""
    input_dropout: ShareBelow1 = 0.1
    """Dropout rate before the first layer."""
    causal: bool = False
    """Whether subsampling and convolutions see no later frames, for streaming."""
    position_dropout: ShareBelow1 = 0.0
    """Dropout rate of the position encodings."""
    attention: Literal["auto", "xla"] = "auto"
    """Implementation of the attention with relative positions (see `kernels.relative_attention`). xla keeps no scores
    of all queries and keys in memory, and needs attention_dropout 0."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.attention != "auto" and self.positions != "rel_pos":
            yield f"attention is {self.attention}: expected auto for positions {self.positions}"
        if self.attention != "auto" and self.attention_dropout:
            yield f"attention_dropout is {self.attention_dropout}: expected 0 for attention {self.attention}"
        if self.attention != "auto" and self.has_chunks:
            yield f"attention is {self.attention}: expected auto for contexts with chunk_frames"

    @property
    def has_chunks(self) -> bool:
        """Whether attention is limited by some context."""
        return self.contexts != (Context(),)

    @classmethod
    def tiny(cls, **changes: Any) -> "Conformer":
        """Four layers at 25 Hz with 1.0 M parameters, for two CPU cores and a few hours of speech; not published."""
        sizes = {
            "dim": 96,
            "num_layers": 4,
            "num_heads": 4,
            "kernel_size": 15,
            "subsampling": "dw_striding",
            "subsampling_channels": 64,
        }
        return cls(**{**sizes, **changes})

    @classmethod
    def small(cls, **changes: Any) -> "Conformer":
        """NeMo's small Conformer-CTC: 13.0 M parameters without the head."""
        return cls(**{"dim": 176, "num_layers": 16, "num_heads": 4, **changes})

    @classmethod
    def medium(cls, **changes: Any) -> "Conformer":
        """NeMo's medium Conformer-CTC: 30.5 M parameters without the head."""
        return cls(**{"dim": 256, "num_heads": 4, **changes})

    @classmethod
    def large(cls, **changes: Any) -> "Conformer":
        """NeMo's large Conformer-CTC: 121.4 M parameters without the head."""
        return cls(**changes)

    @classmethod
    def xlarge(cls, **changes: Any) -> "Conformer":
        """NeMo's extra large Conformer-CTC: 635.3 M parameters without the head."""
        return cls(**{"dim": 1024, "num_layers": 24, "kernel_size": 5, **changes})

    @classmethod
    def fast(cls, size: FastSize = "large", **changes: Any) -> "Conformer":
        """FastConformer at 12.5 Hz in the sizes of NeMo's configurations.

        The sizes small, medium, large, xlarge (Parakeet 0.6B) and xxlarge (Parakeet 1.1B) have 12.6, 26.1, 115.1, 607.7
        and 1061.3 M parameters without the head. Published files may differ from these configurations:
        `pretrained.encoders.encoder_of` reads the settings of a file.

        Raises:
            ValueError: If there is no such size.
        """
        if size not in FAST:
            raise ValueError(f"FastConformer has no size {size!r}: expected one of {', '.join(FAST)}")
        sizes = {"kernel_size": 9, "subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_channels": 256}
        return cls(**{**sizes, **FAST[size], **changes})

    @classmethod
    def fast_streaming(cls, size: FastSize = "large", **changes: Any) -> "Conformer":
        """NeMo's streaming FastConformer at 12.5 Hz with chunks of 14, 7, 2 and 1 frames; evaluation uses the first.

        The size large (109 M parameters without the head) has 17 layers, as published. The others are those of `fast`.

        Source: examples/asr/conf/fastconformer/cache_aware_streaming in NeMo.

        Raises:
            ValueError: If there is no such size.
        """
        sizes = {
            "causal": True,
            "norm": "layer",
            "contexts": STREAMING,
            **({"num_layers": 17} if size == "large" else {}),
        }
        return cls.fast(size, **{**sizes, **changes})

    @classmethod
    def paraformer(cls, variant: ParaformerVariant = "medium", **changes: Any) -> "Conformer":
        """Encoder of the Rust trainer's Paraformer-v2 (`--architecture paraformer --variant VARIANT`), at 25 Hz.

        The sizes small (xs, s), medium (sm, m) and large (ml, l) have 256, 384 and 512 channels. The features are those
        of the preset `rust_squeezeformer`.

        Args:
            variant: Name of the size.

        Raises:
            ValueError: If there is no such size.
        """
        if variant not in PARAFORMER:
            raise ValueError(f"Paraformer has no variant {variant!r}: expected one of {', '.join(PARAFORMER)}")
        dim = PARAFORMER[variant]
        sizes = {
            "dim": dim,
            "num_layers": 12,
            "num_heads": dim // 64,
            "feedforward_dim": 2048,
            "kernel_size": 15,
            "positions": "none",
            "scale_input": False,
            "input_dropout": 0.0,
        }
        return cls(**{**sizes, **changes})

    @staticmethod
    def paraformer_tap(num_layers: int = 12) -> str:
        """Name of the tap that the shallow CTC head of the Rust trainer's enhanced Paraformer-v2 reads."""
        return f"layer_{max(0, num_layers // 2 - 1)}"

    def depths(self, path: str) -> tuple[int, ...]:
        """Depths: 0 for the subsampling, 1 to num_layers for the layers, and 1 for tied biases."""
        if path.startswith("layers/"):
            return tuple(range(1, 1 + self.num_layers))
        return (0,) if path.startswith(("subsample/", "embed/")) else (1,)

    def build(self, *, dtype: DTypeLike) -> "ConformerEncoder":
        return ConformerEncoder(self, dtype)


class ConformerEncoder(Encoder):
    """Conformer encoder, [B T num_mels] to [B S dim].

    S is ⌈T / f⌉, where f is the subsampling factor, or ⌈(T + f - 1) / f⌉ with causal subsampling, as in NeMo.
    """

    settings: Conformer
    dtype: DTypeLike = jnp.float32

    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        encoded, inner = self._encode(frames, None, step=step)
        taps = {name: encoded.replace(values=inner[int(name.removeprefix("layer_"))]) for name in self.settings.taps}
        return Encoded(frames=encoded, taps=taps)

    def output_length(self, num_frames: Any) -> Any:
        if self.settings.causal:
            return strided_length(num_frames, self.settings.subsampling_factor, before=2) * (num_frames > 0)
        return strided_length(num_frames, self.settings.subsampling_factor)

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        return dict.fromkeys(self.settings.taps, self.output_length(num_frames))

    @property
    def stream_window(self) -> StreamWindow:
        factor = self.settings.subsampling_factor
        chunk_frames, _ = self.settings.check_streams(causal=(True,), positions=("rel_pos", "none"))
        return StreamWindow(chunk_frames * factor, chunk_frames * factor, chunk_frames, before=factor - 1)

    def initial_state(self, num_rows: int) -> Tree:
        self.stream_window  # noqa: B018  raises
        settings, left_frames = self.settings, self.settings.contexts[0].left_frames
        keys = (num_rows, settings.num_layers, left_frames, settings.num_heads, settings.dim // settings.num_heads)
        convolution = (num_rows, settings.num_layers, settings.kernel_size - 1, settings.dim)
        sizes = {"keys": keys, "values": keys, "convolution": convolution}
        return {
            "num_frames": jnp.zeros(num_rows, jnp.int32),
            "subsample": initial_cache(
                num_rows, settings.num_mels, self._channels, settings.subsampling_factor, dtype=self.dtype
            ),
            "layers": {name: jnp.zeros(size, self.dtype) for name, size in sizes.items()},
        }

    def stream(self, state: Tree, frames: Frames) -> tuple[Tree, Frames]:
        window = self.stream_window
        if frames.values.shape[1] != window.size:
            raise ValueError(f"a window has {frames.values.shape[1]} frames, expected {window.size}")
        encoded, after = self._encode(frames, state, step=None)
        return after, encoded

    @nn.compact
    def _encode(self, frames: Frames, state: Tree | None, *, step: Step) -> tuple[Frames, Any]:
        """Encodes whole utterances, or the next window of each stream with the state before it.

        Returns:
            Output frames, and the outputs of all layers if there are taps, or the state after the window.
        """
        settings = self.settings
        settings.check_frames(frames.values)
        subsample = Subsample(
            self._channels,
            settings.subsampling_factor,
            settings.subsampling,
            before=2 if settings.causal else 1,
            mask_padding=settings.mask_padding,
            dtype=self.dtype,
            name="subsample",
        )
        cache, is_first = Cache(state and state["subsample"]), state and state["num_frames"] == 0
        lengths, before = self._lengths(frames.lengths, is_first), state["layers"]["keys"].shape[2] if state else 0
        x = subsample(frames.values, frames.lengths, cache=cache, is_first=is_first)
        x = Linear(settings.dim, dtype=self.dtype, name="embed")(x)
        if settings.scale_input:
            x *= settings.dim**0.5
        positions = None if settings.positions == "none" else self._positions(x.shape[1], step, before=before)
        if settings.positions == "abs_pos":
            assert positions is not None
            x, positions = x + positions[None], None
        x = Dropout(settings.input_dropout)(x, step=step)
        biases = tied_biases(self, settings.num_heads, settings.dim) if settings.tied_biases else None
        inputs = LayerInputs(self._allowed(lengths, x.shape[1], state, step), lengths, step, positions, biases)
        axes = {"in_axes": (nn.broadcast, 1), "out_axes": 1 if state else 0}
        stack = layer_stack(ConformerLayer, settings.num_layers, settings.remat, **axes)
        x, inner = stack(settings, self.dtype, name="layers")(x, inputs, state and state["layers"])
        if state is None:
            return Frames(x, lengths), inner
        num_frames = state["num_frames"] + lengths
        return Frames(x, lengths), {"num_frames": num_frames, "subsample": cache.after, "layers": inner}

    @property
    def _channels(self) -> int:
        return self.settings.subsampling_channels or self.settings.dim

    def _lengths(self, lengths: Int[Array, " B"], is_first: Bool[Array, " B"] | None) -> Int[Array, " B"]:
        """Returns the numbers of subsampled frames of whole rows, or of windows with `is_first`."""
        if is_first is None:
            return self.output_length(lengths)
        factor = self.settings.subsampling_factor
        is_empty = is_first & (lengths < factor)  # it has only frames before the stream
        return jnp.where(is_empty, 0, -(-lengths // factor))

    def _allowed(
        self, lengths: Int[Array, " B"], num_frames: DimSize, state: Tree | None, step: Step
    ) -> Bool[Array, "B #T S"]:
        """Keys (last axis) within the row's length and, with chunks, in the query's chunk or its left context.

        With a state, the first keys are those of the windows before.
        """
        allowed = length_mask(lengths, num_frames)[:, None]
        if state is not None:
            before = state["layers"]["keys"].shape[2]
            exist = jnp.arange(before)[None] >= before - state["num_frames"][:, None]
            allowed = jnp.concatenate([exist[:, None], allowed], axis=-1)
        if self.settings.has_chunks:
            allowed &= chunk_mask(num_frames, allowed.shape[-1], *self._context(step))[None]
        return allowed

    def _context(self, step: Step) -> tuple[Any, Any]:
        """Chunk length and number of frames before a chunk: those of the first context, in training of a drawn one."""
        contexts, drawn = self.settings.contexts, self.settings.draw_context(self, step=step)
        chunks = [each.chunk_frames or UNLIMITED for each in contexts]
        left = [UNLIMITED if each.left_frames is None else each.left_frames for each in contexts]
        return of_context(chunks, drawn), of_context(left, drawn)

    def _positions(self, num_frames: DimSize, step: Step, *, before: int) -> Float[Array, "R D"]:
        width = self.settings.dim
        if self.settings.positions == "rel_pos":
            encodings = relative_sinusoids(num_frames, width, before=before)
        else:
            encodings = sinusoids(numbers(0, num_frames), width)
        dropout = nn.Dropout(self.settings.position_dropout)  # shared by the rows
        return dropout(jnp.asarray(encodings, self.dtype), deterministic=step is None)


class ConformerLayer(nn.Module):
    """Conformer layer: half-step feed-forward, attention, convolution, half-step feed-forward, norm.

    The signature is that of a body of `nn.scan`. The layer also returns an output for the scan to collect: in streaming
    the frames that it keeps for the next window, otherwise its output frames if there are taps.
    """

    settings: Conformer
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], inputs: LayerInputs, before: dict[str, Float[Array, "B K ..."]] | None
    ) -> tuple[Float[Array, "B T D"], Any]:
        settings, step, cache = self.settings, inputs.step, Cache(before)
        x += 0.5 * Dropout(settings.dropout)(self._feed_forward("feed_forward_1", x, step=step), step=step)
        attention = RelativeAttention(
            settings.num_heads,
            settings.use_bias,
            settings.attention_dropout,
            implementation=settings.attention,
            dtype=self.dtype,
            name="attention",
        )
        attended = attention(
            normed("attention_norm", x),
            inputs.positions,
            inputs.allowed,
            step=step,
            biases=inputs.biases,
            lengths=inputs.lengths,
            extend_keys=cache.extend("keys"),
            extend_values=cache.extend("values"),
        )
        x += Dropout(settings.dropout)(attended, step=step)
        convolution = ConformerConvolution(
            settings.kernel_size,
            norm=settings.norm,
            causal=settings.causal,
            use_bias=settings.convolution_bias,
            dtype=self.dtype,
            name="convolution",
        )
        extend = cache.extend("convolution")
        convolved = convolution(normed("convolution_norm", x), inputs.lengths, step=step, extend=extend)
        x += Dropout(settings.dropout)(convolved, step=step)
        x += 0.5 * Dropout(settings.dropout)(self._feed_forward("feed_forward_2", x, step=step), step=step)
        x = normed("norm", x)
        return x, cache.after or (x if settings.taps else None)

    def _feed_forward(self, name: str, x: Float[Array, "B T D"], *, step: Step) -> Float[Array, "B T D"]:
        settings = self.settings
        hidden_dim = settings.hidden_dim
        module = ConformerFeedForward(hidden_dim, settings.dropout, settings.use_bias, self.dtype, name=name)
        return module(normed(f"{name}_norm", x), step=step)

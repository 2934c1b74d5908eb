"""W2V-BERT 2.0: a Conformer with causal convolutions on stacked mel bins, pre-trained on 4.5 million hours.

Source: Chung et al. 2021, "w2v-BERT" (arXiv:2108.06209); Seamless Communication 2023 (arXiv:2312.05187), section 3.2.1;
`Wav2Vec2BertModel` in transformers 5.23, src/transformers/models/wav2vec2_bert/modeling_wav2vec2_bert.py.
"""

from collections.abc import Iterator
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Encoded, Frames, length_mask, zero_padding
from asr_jax.core.settings import NonNegativeInt, PositiveFloat, PositiveInt, ShareBelow1, settings
from asr_jax.core.shapes import DimSize
from asr_jax.core.sharding import ModelRules
from asr_jax.models.encoder import Encoder, EncoderOfMels, MaskedEncoder
from asr_jax.nn.activations import ActivationName
from asr_jax.nn.conformer.modules import ConformerConvolution, ConformerFeedForward, RelativeAttention
from asr_jax.nn.conformer.striding import GatedConv, gated_length
from asr_jax.nn.layer_stack import LayerInputs, layer_stack
from asr_jax.nn.linear import Linear
from asr_jax.nn.model_axis import ATTENTION, FEED_FORWARD
from asr_jax.nn.normalization import layer_norm, normed
from asr_jax.nn.positions import relative_sinusoids, rotated
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout, unless_left_out
from asr_jax.nn.wav2vec.span_masks import SpanMask

Positions = Literal["relative_key", "relative", "rotary", "none"]
RATES = ("input_dropout", "dropout", "activation_dropout", "attention_dropout", "convolution_dropout", "layer_drop")
EMBED = "embed"
"""Name of the tap of the first layer's input."""


@settings
class W2VBert(MaskedEncoder, EncoderOfMels):
    """Settings of W2V-BERT. The defaults are the released model of 600 M parameters.

    Taps: embed (input of the first layer), layer_0, … Without `mask_padding`, padding enters the adapters, as in
    transformers, and changes the last frames of an utterance; all frames if adapter_kernel_size // 2 and
    adapter_stride // 2 differ, because attention then attends to padding.
    """

    num_mels = 160
    dim = 1024
    num_layers = 24
    num_heads = 16
    feedforward_dim = 4096
    kernel_size: PositiveInt = 31
    """Taps of the depthwise convolutions, which are causal. Must be odd."""
    activation = "silu"
    norm_eps: PositiveFloat = 1e-5
    """Epsilon of all norms."""
    positions: Positions = "relative_key"
    """Positions in attention. relative_key: a learned key embedding for each distance (Shaw). relative: encodings of
    distances (Transformer-XL). rotary: rotary position embeddings. none: no positions."""
    left_distance: NonNegativeInt = 64
    """Largest distance in frames to a key before the query, with relative_key. Larger distances are clipped."""
    right_distance: NonNegativeInt = 8
    """Largest distance in frames to a key behind the query, with relative_key. Larger distances are clipped."""
    rotary_base: PositiveInt = 10000
    """Base of the rotation angles, with rotary. The slowest channels rotate once in about 2π · rotary_base frames."""
    input_dropout = 0.0
    dropout = 0.0
    attention_dropout = 0.0
    convolution_dropout: ShareBelow1 = 0.1
    """Dropout rate after each convolution module."""
    layer_drop = 0.1
    masks: bool = True
    """Whether frames and channels are masked in training. Otherwise time_mask and channel_mask have no effect."""
    time_mask = SpanMask(0.05, 10, min_spans=2, same_count=False, draws_last_start=True)
    channel_mask = SpanMask(0.0, 10, min_spans=0, same_count=False, draws_last_start=True)
    num_adapters: NonNegativeInt = 0
    """Number of adapters after the last layer, each of which lowers the frame rate."""
    adapter_kernel_size: PositiveInt = 3
    """Taps of the convolutions in adapters."""
    adapter_stride: PositiveInt = 2
    """Ratio of the frame rates before and after an adapter."""
    adapter_dim: PositiveInt | None = None
    """Width of adapters and of the output. Must be a multiple of num_heads. None: dim."""
    adapter_activation: ActivationName = "relu"
    """Activation of the feed-forward modules in adapters."""
    intermediate: bool = False
    """Whether a half-step feed-forward module precedes the adapters."""

    def tap_names(self) -> tuple[str, ...]:
        return (EMBED, *super().tap_names())

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.positions == "relative" and self.dim % 2:
            yield f"dim is {self.dim}: expected an even number with positions relative"
        if self.positions == "rotary" and self.dim % (2 * self.num_heads):
            yield f"dim is {self.dim}: expected a multiple of {2 * self.num_heads} with rotary positions"
        if self.output_dim % self.num_heads:
            yield f"adapter_dim is {self.adapter_dim}: expected a multiple of num_heads, {self.num_heads}"
        if self.kernel_size % 2 == 0:
            yield f"kernel_size is {self.kernel_size}: expected an odd number"
        if not self.num_adapters and (self.adapter_dim is not None or self.intermediate):
            yield "num_adapters is 0: expected at least 1 with adapter_dim or intermediate"

    @classmethod
    def tiny(cls, **changes: Any) -> "W2VBert":
        """Four layers with 0.9 M parameters, for two CPU cores and a few hours of speech; not published."""
        sizes = {"dim": 96, "num_layers": 4, "num_heads": 4, "feedforward_dim": 384, "kernel_size": 15}
        return cls(**{**sizes, **changes})

    @classmethod
    def rust(cls, **changes: Any) -> "W2VBert":
        """Settings of the Rust trainer.

        They differ from the released model by distances of 72 frames to the left and 0 to the right, GELU, dropout
        rates of 0.1, and no LayerDrop.
        """
        rates = {**dict.fromkeys(RATES, 0.1), "layer_drop": 0.0}
        return cls(**{"left_distance": 72, "right_distance": 0, "activation": "gelu", **rates, **changes})

    @property
    def masks_anything(self) -> bool:
        """Whether a mask has a probability above 0. The model then has a learned vector for masked frames."""
        return self.time_mask.probability > 0 or self.channel_mask.probability > 0

    @property
    def output_dim(self) -> int:
        return self.adapter_dim or self.dim

    def depths(self, path: str) -> tuple[int, ...]:
        """Depths: 0 for the projection, 1 to num_layers for the layers, and one more for each adapter.

        The modules between the layers and the first adapter have the depth of the first adapter.
        """
        if path.startswith("layers/"):
            return tuple(range(1, 1 + self.num_layers))
        module = path.partition("/")[0]
        if module.startswith(("adapter_", "intermediate")):
            number = module.removeprefix("adapter_")
            return (1 + self.num_layers + (int(number) if number.isdecimal() else 0),)
        return (0,)

    def num_depths(self) -> int:
        return 1 + self.num_layers + self.num_adapters

    def model_axis_rules(self) -> ModelRules:
        return ATTENTION + FEED_FORWARD

    def build(self, *, dtype: DTypeLike) -> "W2VBertEncoder":
        return W2VBertEncoder(self, dtype)


class W2VBertEncoder(Encoder):
    """W2V-BERT encoder, [B T num_mels] to [B T dim]. Adapters reduce T and change the width to adapter_dim."""

    settings: W2VBert
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        settings, lengths = self.settings, frames.lengths
        settings.check_frames(frames.values)
        x = layer_norm(settings.norm_eps, name="embed_norm")(frames.values)
        x = Linear(settings.dim, dtype=self.dtype, name="embed")(x)
        x = Dropout(settings.input_dropout)(x, step=step)
        x = zero_padding(self._masked(x, lengths, step), lengths)
        x = embedded = Dropout(settings.dropout)(x, step=step)
        layers = layer_stack(W2VBertLayer, settings.num_layers, settings.remat)(settings, self.dtype, name="layers")
        allowed = length_mask(lengths, x.shape[1])[:, None]
        x, inner = layers(x, LayerInputs(allowed, lengths, step, self._positions(x.shape[1])))
        taps = {
            name: Frames(embedded if name == EMBED else inner[int(name.removeprefix("layer_"))], lengths)
            for name in settings.taps
        }
        return Encoded(frames=self._adapted(x, lengths, step), taps=taps)

    def output_length(self, num_frames: Any) -> Any:
        settings = self.settings
        for _ in range(settings.num_adapters):
            num_frames = gated_length(num_frames, settings.adapter_kernel_size, settings.adapter_stride)
        return num_frames

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        return dict.fromkeys(self.settings.taps, num_frames)

    def _masked(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], step: Step) -> Float[Array, "B T D"]:
        settings = self.settings
        if not settings.masks_anything:
            return x
        mask = self.param("mask", nn.initializers.uniform(1.0), x.shape[-1:])
        if not settings.masks or step is None:
            return x
        if settings.time_mask.probability:
            hidden = settings.time_mask(self.make_rng("dropout"), lengths, x.shape[1])
            x = jnp.where(hidden[:, :, None], mask.astype(x.dtype)[None, None], x)
        if settings.channel_mask.probability:
            hidden = settings.channel_mask(self.make_rng("dropout"), jnp.full_like(lengths, x.shape[2]), x.shape[2])
            x = jnp.where(hidden[:, None], 0, x)
        return x

    def _positions(self, num_frames: DimSize) -> Float[Array, "R D"] | None:
        if self.settings.positions != "relative":
            return None
        return jnp.asarray(relative_sinusoids(num_frames, self.settings.dim), self.dtype)

    def _adapted(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], step: Step) -> Frames:
        settings = self.settings
        if settings.intermediate:
            module = ConformerFeedForward(
                settings.hidden_dim,
                settings.activation_dropout,
                dtype=self.dtype,
                activation="relu",
                name="intermediate",
            )
            x += 0.5 * Dropout(settings.dropout)(module(x, step=step), step=step)
        if settings.output_dim != settings.dim:
            x = Linear(settings.output_dim, dtype=self.dtype, name="adapter_embed")(x)
            x = normed("adapter_embed_norm", x, settings.norm_eps)
        sizes, attended = (settings.adapter_kernel_size, settings.adapter_stride), lengths
        for number in range(settings.num_adapters):
            shorter = gated_length(lengths, *sizes)
            attended = shorter if settings.mask_padding else gated_length(attended, *sizes, of_peer=True)
            x = Adapter(settings, self.dtype, name=f"adapter_{number}")(x, lengths, attended, step=step)
            lengths = shorter
        return Frames(x, lengths)


class W2VBertLayer(nn.Module):
    """W2V-BERT layer: half-step feed-forward, attention, convolution, half-step feed-forward, norm.

    The signature is that of a body of `nn.scan`. With taps, the layer also returns its output for the scan to collect.
    """

    settings: W2VBert
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], inputs: LayerInputs
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"] | None]:
        x = unless_left_out(
            self, lambda layer, x: layer.transformed(x, inputs), x, rate=self.settings.layer_drop, step=inputs.step
        )
        return x, x if self.settings.taps else None

    @nn.nowrap
    def transformed(self, x: Float[Array, "B T D"], inputs: LayerInputs) -> Float[Array, "B T D"]:
        """Computes the layer's output without LayerDrop."""
        settings, step = self.settings, inputs.step
        x += 0.5 * self._feed_forward("feed_forward_1", x, step)
        x += Dropout(settings.attention_dropout)(self._attention(x, inputs), step=step)
        convolution = ConformerConvolution(
            settings.kernel_size,
            norm="layer",
            norm_eps=settings.norm_eps,
            causal=True,
            activation=settings.activation,
            use_bias=False,
            dtype=self.dtype,
            name="convolution",
        )
        convolved = convolution(normed("convolution_norm", x, self.settings.norm_eps), inputs.lengths, step=step)
        x += Dropout(settings.convolution_dropout)(convolved, step=step)
        x += 0.5 * self._feed_forward("feed_forward_2", x, step)
        return normed("norm", x, self.settings.norm_eps)

    def _attention(self, x: Float[Array, "B T D"], inputs: LayerInputs) -> Float[Array, "B T D"]:
        settings, x = self.settings, normed("attention_norm", x, self.settings.norm_eps)
        distances = (settings.left_distance, settings.right_distance)
        attention = RelativeAttention(
            settings.num_heads,
            dropout=settings.attention_dropout,
            distances=distances if settings.positions == "relative_key" else None,
            dtype=self.dtype,
            name="attention",
        )
        turned = None
        if settings.positions == "rotary":
            heads = x.reshape(*x.shape[:2], settings.num_heads, -1)
            turned = rotated(heads, settings.rotary_base).reshape(x.shape)
        return attention(x, inputs.positions, inputs.allowed, step=inputs.step, turned=turned)

    def _feed_forward(self, name: str, x: Float[Array, "B T D"], step: Step) -> Float[Array, "B T D"]:
        settings = self.settings
        module = ConformerFeedForward(
            settings.hidden_dim,
            settings.activation_dropout,
            dtype=self.dtype,
            activation=settings.activation,
            name=name,
        )
        x = module(normed(f"{name}_norm", x, settings.norm_eps), step=step)
        return Dropout(settings.dropout)(x, step=step)


class Adapter(nn.Module):
    """Adapter: a layer of attention and a feed-forward module at a lower frame rate.

    Two gated convolutions shorten the residual and the input of attention.

    Differs from: transformers may skip an adapter in training (LayerDrop), which changes the frame rate. Here adapters
    are never skipped.
    """

    settings: W2VBert
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], keys: Int[Array, " B"], *, step: Step
    ) -> Float[Array, "B S D"]:
        """Applies the adapter.

        Args:
            lengths: Number of valid frames of each row.
            keys: Number of output frames of each row that attention may attend to, which may exceed S.
        """
        settings = self.settings
        attended = self._shortened("attention", x, lengths)
        x = self._shortened("residual", x, lengths)
        allowed = length_mask(keys, x.shape[1])[:, None]
        attention = RelativeAttention(
            settings.num_heads, dropout=settings.attention_dropout, dtype=self.dtype, name="attention"
        )
        attended = attention(attended, None, allowed, step=step)
        x += Dropout(settings.convolution_dropout)(attended, step=step)
        module = ConformerFeedForward(
            settings.hidden_dim,
            settings.activation_dropout,
            dtype=self.dtype,
            activation=settings.adapter_activation,
            name="feed_forward",
        )
        fed = module(normed("feed_forward_norm", x, settings.norm_eps), step=step)
        return x + Dropout(settings.dropout)(fed, step=step)

    def _shortened(self, name: str, x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B S D"]:
        settings = self.settings
        x = normed(f"{name}_norm", x, settings.norm_eps)
        x = zero_padding(x, lengths) if settings.mask_padding else x
        conv = GatedConv(settings.adapter_kernel_size, settings.adapter_stride, self.dtype, name=f"{name}_conv")
        return conv(x)

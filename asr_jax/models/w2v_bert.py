"""W2V-BERT 2.0: a Conformer with causal convolutions on stacked mel bins, pre-trained on 4.5 million hours.

Source: Chung et al. 2021, "w2v-BERT" (arXiv:2108.06209); Seamless Communication 2023 (arXiv:2312.05187), section 3.2.1;
`Wav2Vec2BertModel` in transformers 5.23, src/transformers/models/wav2vec2_bert/modeling_wav2vec2_bert.py.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Encoded, Frames, length_mask, zero_padding
from asr_jax.models.base import Encoder, EncoderOfMels
from asr_jax.nn.activations import ActivationName
from asr_jax.nn.conformer import ConformerConvolution, ConformerFeedForward, RelativeAttention
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import layer_norm
from asr_jax.nn.positions import relative_sinusoids, rotated
from asr_jax.nn.remat import Remat, rematerialised
from asr_jax.nn.schedules import Step
from asr_jax.nn.span_masks import SpanMask
from asr_jax.nn.stochastic import unless_left_out
from asr_jax.nn.striding import GatedConv, gated_length

Positions = Literal["relative_key", "relative", "rotary", "none"]
RATES = ("input_dropout", "dropout", "activation_dropout", "attention_dropout", "convolution_dropout", "layer_drop")
EMBED = "embed"
"""The tap of what the first layer sees."""


@dataclass(frozen=True)
class W2VBert(EncoderOfMels):
    """Sizes and training behaviour; the defaults are the released model of 600 M parameters."""

    num_mels: int = 160
    """Values of a frame: 80 mel bins of two frames after one another."""
    dim: int = 1024
    """Width of the layers; a multiple of num_heads."""
    num_layers: int = 24
    """Layers."""
    num_heads: int = 16
    """Attention heads."""
    feedforward_dim: int = 4096
    """Hidden width of the feed-forward modules."""
    kernel_size: int = 31
    """Taps of the depthwise convolutions, odd; they see a frame and those before it."""
    activation: ActivationName = "silu"
    """Of feed-forward modules and convolutions."""
    norm_eps: float = 1e-5
    """Of all norms."""
    positions: Positions = "relative_key"
    """How attention knows where frames are. relative_key: by a learned key for each distance (Shaw); relative: by
    encodings of distances (Transformer-XL); rotary: queries and keys are turned; none: not at all."""
    left_distance: int = 64
    """With relative_key, the largest distance to a frame before; those beyond count as this one ..."""
    right_distance: int = 8
    """... and behind."""
    rotary_base: int = 10000
    """With rotary, the frames that the slowest channels take for a turn, over 2π."""
    input_dropout: float = 0.0
    """Of the projected frames."""
    dropout: float = 0.0
    """Before the first layer and after each feed-forward module."""
    activation_dropout: float = 0.0
    """Within the feed-forward modules."""
    attention_dropout: float = 0.0
    """Of attention weights and of what attention gives."""
    convolution_dropout: float = 0.1
    """After each convolution module."""
    layer_drop: float = 0.1
    """How often a layer is left out while training."""
    masks: bool = True
    """Hide frames and channels while training; without it, time_mask and channel_mask change nothing."""
    time_mask: SpanMask = SpanMask(0.05, 10, min_spans=2, same_count=False, draws_last_start=True)
    """Frames that a learned one stands for."""
    channel_mask: SpanMask = SpanMask(0.0, 10, min_spans=0, same_count=False, draws_last_start=True)
    """Channels that are 0."""
    num_adapters: int = 0
    """Layers after the last, each of which lowers the frame rate."""
    adapter_kernel_size: int = 3
    """Taps of the convolutions in adapters."""
    adapter_stride: int = 2
    """Frames before an adapter for one after it."""
    adapter_dim: int | None = None
    """Width of adapters and of the output; a multiple of num_heads. None: dim."""
    adapter_activation: ActivationName = "relu"
    """Of the feed-forward modules in adapters."""
    intermediate: bool = False
    """Half a feed-forward module between the last layer and the adapters."""
    mask_padding: bool = True
    """An utterance gives the same output alone as in a padded batch. Without it, padding enters the adapters, as in
    transformers: the last frames of an utterance hear what lies behind them."""
    remat: Remat = "elementwise"
    """What of each layer is computed again in the backward pass instead of being kept: of the policies of `nn.remat`,
    each of which takes less memory than the one before it, none, elementwise, products and layers."""
    taps: tuple[str, ...] = ()
    """Inner outputs to give to heads: "embed", what the first layer sees, or "layer_0", "layer_1", ... With any, those
    of all layers are kept."""

    def __post_init__(self) -> None:
        known_taps = {EMBED, *(f"layer_{number}" for number in range(self.num_layers))}
        sizes = (
            "num_mels",
            "dim",
            "num_layers",
            "num_heads",
            "feedforward_dim",
            "adapter_kernel_size",
            "adapter_stride",
        )
        checks = {f"{name} is {getattr(self, name)}, expected at least 1": getattr(self, name) >= 1 for name in sizes}
        checks |= {
            f"{name} is {getattr(self, name)}, expected at least 0": getattr(self, name) >= 0
            for name in ("left_distance", "right_distance", "num_adapters")
        }
        if self.num_heads >= 1:
            unit = self.num_heads * (2 if self.positions == "rotary" else 1)
            checks[f"dim is {self.dim}, expected a multiple of {unit}, for {self.num_heads} heads"] = (
                not self.dim % unit
            )
            width = self.adapter_dim or self.dim
            checks[f"adapter_dim is {width}, expected a multiple of num_heads, {self.num_heads}"] = (
                width > 0 and not width % self.num_heads
            )
        checks |= {
            f"dim is {self.dim}, expected an even one with positions relative": self.positions != "relative"
            or not self.dim % 2,
            f"kernel_size is {self.kernel_size}, expected an odd number": self.kernel_size > 0 and self.kernel_size % 2,
            "adapter_dim and intermediate are of adapters, of which there are none: expected num_adapters above 0": (
                self.num_adapters > 0 or (self.adapter_dim is None and not self.intermediate)
            ),
            f"norm_eps is {self.norm_eps} and rotary_base {self.rotary_base}, expected more than 0": (
                self.norm_eps > 0 and self.rotary_base > 0
            ),
            f"taps are {self.taps}, expected some of {EMBED} and layer_0 to layer_{self.num_layers - 1}": known_taps
            >= set(self.taps),
        }
        checks |= {
            f"{name} is {getattr(self, name)}, expected at least 0 and less than 1": 0 <= getattr(self, name) < 1
            for name in RATES
        }
        if problems := [problem for problem, good in checks.items() if not good]:
            raise ValueError("; ".join(problems))

    @classmethod
    def tiny(cls, **changes: Any) -> "W2VBert":
        """Four layers, of no paper: 0.9 M parameters, for two CPU cores and a few hours of speech."""
        sizes = {"dim": 96, "num_layers": 4, "num_heads": 4, "feedforward_dim": 384, "kernel_size": 15}
        return cls(**{**sizes, **changes})

    @classmethod
    def rust(cls, **changes: Any) -> "W2VBert":
        """The Rust trainer's: the released sizes, but causal attention keys, GELU and dropout, and no layers left
        out.
        """
        rates = {**dict.fromkeys(RATES, 0.1), "layer_drop": 0.0}
        return cls(**{"left_distance": 72, "right_distance": 0, "activation": "gelu", **rates, **changes})

    @property
    def masks_anything(self) -> bool:
        """Whether the model has a learned frame for those that are hidden."""
        return self.time_mask.probability > 0 or self.channel_mask.probability > 0

    @property
    def output_dim(self) -> int:
        return self.adapter_dim or self.dim

    def depths(self, path: str) -> tuple[int, ...]:
        """The projection is 0, then the layers, then each adapter with what comes before the first."""
        if path.startswith("layers/"):
            return tuple(range(1, 1 + self.num_layers))
        module = path.partition("/")[0]
        if module.startswith(("adapter_", "intermediate")):
            number = module.removeprefix("adapter_")
            return (1 + self.num_layers + (int(number) if number.isdecimal() else 0),)
        return (0,)

    def num_depths(self) -> int:
        return 1 + self.num_layers + self.num_adapters

    def build(self, *, dtype: DTypeLike) -> "W2VBertEncoder":
        return W2VBertEncoder(self, dtype)


@struct.dataclass
class Shared:
    """What all layers get."""

    positions: Float[Array, "R D"] | None
    """Of relative positions."""
    allowed: Bool[Array, "B 1 T"]
    """Keys (last axis) that queries may see."""
    lengths: Int[Array, " B"]
    step: Step


class W2VBertEncoder(Encoder):
    """[B T num_mels] to [B T dim]; with adapters shorter, and of their width."""

    settings: W2VBert
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        settings, lengths = self.settings, frames.lengths
        settings.check_frames(frames.values)
        x = layer_norm(settings.norm_eps, name="embed_norm")(frames.values)
        x = Linear(settings.dim, dtype=self.dtype, name="embed")(x)
        x = nn.Dropout(settings.input_dropout)(x, deterministic=step is None)
        x = zero_padding(self._masked(x, lengths, step), lengths)
        x = embedded = nn.Dropout(settings.dropout)(x, deterministic=step is None)
        layers = nn.scan(
            rematerialised(W2VBertLayer, settings.remat),
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=settings.num_layers,
            check_constancy_invariants=False,  # True would trace the layer a second time
        )(settings, self.dtype, name="layers")
        allowed = length_mask(lengths, x.shape[1])[:, None]
        x, inner = layers(x, Shared(self._positions(x.shape[1]), allowed, lengths, step))
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

    def _positions(self, num_frames: int) -> Float[Array, "R D"] | None:
        if self.settings.positions != "relative":
            return None
        return jnp.asarray(relative_sinusoids(num_frames, self.settings.dim), self.dtype)

    def _adapted(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], step: Step) -> Frames:
        settings = self.settings
        if settings.intermediate:
            module = ConformerFeedForward(
                settings.feedforward_dim, settings.activation_dropout, dtype=self.dtype, activation="relu",
                name="intermediate",
            )  # fmt: skip
            x += 0.5 * nn.Dropout(settings.dropout)(module(x, step=step), deterministic=step is None)
        if settings.output_dim != settings.dim:
            x = Linear(settings.output_dim, dtype=self.dtype, name="adapter_embed")(x)
            x = layer_norm(settings.norm_eps, name="adapter_embed_norm")(x).astype(x.dtype)
        for number in range(settings.num_adapters):
            x = Adapter(settings, self.dtype, name=f"adapter_{number}")(x, lengths, step=step)
            lengths = gated_length(lengths, settings.adapter_kernel_size, settings.adapter_stride)
        return Frames(x, lengths)


class W2VBertLayer(nn.Module):
    """Half a feed-forward module, attention, convolution, half a feed-forward module, a norm. It has the signature that
    `nn.scan` asks for, and gives its output twice where there are taps.
    """

    settings: W2VBert
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], shared: Shared
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"] | None]:
        x = unless_left_out(
            self, lambda layer, x: layer.transformed(x, shared), x, rate=self.settings.layer_drop, step=shared.step
        )
        return x, x if self.settings.taps else None

    @nn.nowrap
    def transformed(self, x: Float[Array, "B T D"], shared: Shared) -> Float[Array, "B T D"]:
        """The layer's output."""
        settings, step = self.settings, shared.step
        x += 0.5 * self._feed_forward("feed_forward_1", x, step)
        x += self._dropout(self._attention(x, shared), settings.attention_dropout, step)
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
        convolved = convolution(self._norm("convolution_norm", x), shared.lengths, step=step)
        x += self._dropout(convolved, settings.convolution_dropout, step)
        x += 0.5 * self._feed_forward("feed_forward_2", x, step)
        return self._norm("norm", x)

    def _attention(self, x: Float[Array, "B T D"], shared: Shared) -> Float[Array, "B T D"]:
        settings, x = self.settings, self._norm("attention_norm", x)
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
        return attention(x, shared.positions, shared.allowed, step=shared.step, turned=turned)

    def _feed_forward(self, name: str, x: Float[Array, "B T D"], step: Step) -> Float[Array, "B T D"]:
        settings = self.settings
        module = ConformerFeedForward(
            settings.feedforward_dim,
            settings.activation_dropout,
            dtype=self.dtype,
            activation=settings.activation,
            name=name,
        )
        return self._dropout(module(self._norm(f"{name}_norm", x), step=step), settings.dropout, step)

    def _norm(self, name: str, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return layer_norm(self.settings.norm_eps, name=name)(x).astype(x.dtype)

    def _dropout(self, x: Float[Array, "B T D"], rate: float, step: Step) -> Float[Array, "B T D"]:
        return nn.Dropout(rate)(x, deterministic=step is None)


class Adapter(nn.Module):
    """A layer of attention and a feed-forward module on fewer frames: its input and what is added to it go through a
    gated convolution each. Differs from transformers: it is never left out, which would give frames of another rate.
    """

    settings: W2VBert
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, step: Step) -> Float[Array, "B S D"]:
        settings = self.settings
        attended = self._shortened("attention", x, lengths)
        x = self._shortened("residual", x, lengths)
        lengths = gated_length(lengths, settings.adapter_kernel_size, settings.adapter_stride)
        allowed = length_mask(lengths, x.shape[1])[:, None]
        attention = RelativeAttention(
            settings.num_heads, dropout=settings.attention_dropout, dtype=self.dtype, name="attention"
        )
        attended = attention(attended, None, allowed, step=step)
        x += nn.Dropout(settings.convolution_dropout)(attended, deterministic=step is None)
        module = ConformerFeedForward(
            settings.feedforward_dim,
            settings.activation_dropout,
            dtype=self.dtype,
            activation=settings.adapter_activation,
            name="feed_forward",
        )
        fed = module(layer_norm(settings.norm_eps, name="feed_forward_norm")(x).astype(x.dtype), step=step)
        return x + nn.Dropout(settings.dropout)(fed, deterministic=step is None)

    def _shortened(self, name: str, x: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B S D"]:
        settings = self.settings
        x = layer_norm(settings.norm_eps, name=f"{name}_norm")(x).astype(x.dtype)
        x = zero_padding(x, lengths) if settings.mask_padding else x
        conv = GatedConv(settings.adapter_kernel_size, settings.adapter_stride, self.dtype, name=f"{name}_conv")
        return conv(x)

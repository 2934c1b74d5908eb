"""Squeezeformer: a Conformer variant whose middle layers have half the frame rate, with norms after the modules.

Source: Kim et al. 2022, "Squeezeformer: An Efficient Transformer for Automatic Speech Recognition" (arXiv:2206.00888);
kssteven418/Squeezeformer at commit ab49eec5, NVIDIA/NeMo's SqueezeformerEncoder at commit 8cfedd72, and the Rust
trainer (RustedBytes/w2v-bert-uk at commit adec09e4): see `Squeezeformer.variant`.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Encoded, Frames, length_mask
from asr_jax.core.settings import settings
from asr_jax.core.shapes import DimSize, numbers
from asr_jax.models.encoder import Encoder, SubsamplingEncoder
from asr_jax.nn.conformer.modules import ConformerConvolution, ConformerFeedForward, RelativeAttention
from asr_jax.nn.conformer.squeezeformer import (
    DETAILS,
    Details,
    RecoverTime,
    ReduceTime,
    ScaleBias,
    Variant,
    peer_lengths,
)
from asr_jax.nn.conformer.striding import Subsample, strided_length
from asr_jax.nn.layer_stack import LayerInputs, layer_stack, tied_biases
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import normed
from asr_jax.nn.positions import relative_sinusoids, sinusoids
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout

STACKS = ("stack_0", "stack_1", "stack_2")
"""Names of the stacks of layers, which have the full, half and full frame rate."""
Size = Literal["xs", "s", "sm", "m", "ml", "l"]
PUBLISHED: dict[Size, tuple[int, int, int]] = {
    "xs": (144, 16, 4),
    "s": (196, 18, 4),
    "sm": (256, 16, 4),
    "m": (324, 20, 4),
    "ml": (512, 18, 8),
    "l": (640, 22, 8),
}
"""dim, num_layers and num_heads of the paper's table 2."""


@settings
class Squeezeformer(SubsamplingEncoder):
    """Settings of Squeezeformer. The defaults are the paper's SM.

    Taps: embed, layer_0, … Layers from reduce_at to before recover_at have half the frame rate.
    """

    dim = 256
    num_layers = 16
    num_heads = 4
    subsampling = "dw_striding"
    attention_dropout = 0.0
    reduce_time: bool = True
    """Whether layers in the middle have half the frame rate."""
    reduce_at: int | None = None
    """Index of the first layer at half the frame rate. None: num_layers // 2 - 1, as in all published sizes."""
    recover_at: int | None = None
    """Index of the first layer after the recovery of the frame rate, at least reduce_at. None: the last layer, as in
    all published sizes."""
    adaptive_scale: bool = True
    """Whether each module has a learned scale and bias of its input channels."""
    gated_convolution: bool = False
    """Whether a gated linear unit follows the first projection of the convolution modules, as in Conformer (the
    authors' conv_use_glu). Otherwise SiLU follows it, and the inner width is twice dim, as in all published sizes."""
    variant: Variant = "paper"
    """Implementation whose details are used. paper: the authors' code. nemo: NeMo's code, with zero padding on both
    sides in subsampling and reduction, and with another epsilon and momentum of norms. rust: the Rust trainer's code,
    with three taps in the reduction."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        reduce_at, recover_at = self.reduced
        if self.num_mels < self.subsampling_factor:
            yield f"num_mels is {self.num_mels}: expected at least subsampling_factor, {self.subsampling_factor}"
        if self.positions == "none":
            yield "positions is none: expected rel_pos or abs_pos"
        if not self.reduce_time and (self.reduce_at is not None or self.recover_at is not None):
            yield (
                f"reduce_at is {self.reduce_at} and recover_at is {self.recover_at}: expected None without reduce_time"
            )
        if self.reduce_time and not 0 <= reduce_at <= recover_at < self.num_layers:
            yield (
                f"reduce_at is {reduce_at} and recover_at is {recover_at}: expected 0 <= reduce_at <= recover_at < "
                f"num_layers, {self.num_layers}"
            )

    def tap_names(self) -> tuple[str, ...]:
        return ("embed", *super().tap_names())

    @classmethod
    def published(cls, size: Size, **changes: Any) -> "Squeezeformer":
        """Returns a size of the paper's table 2.

        Raises:
            ValueError: If there is no such size.
        """
        if size not in PUBLISHED:
            raise ValueError(f"Squeezeformer has no size {size!r}: expected one of {', '.join(PUBLISHED)}")
        return cls(**{**dict(zip(("dim", "num_layers", "num_heads"), PUBLISHED[size], strict=True)), **changes})

    @classmethod
    def tiny(cls, **changes: Any) -> "Squeezeformer":
        """Six layers with 1.1 M parameters, for two CPU cores and a few hours of speech; not published."""
        sizes = {"dim": 80, "num_layers": 6, "subsampling_channels": 32, "kernel_size": 15}
        return cls(**{**sizes, **changes})

    @classmethod
    def xs(cls, **changes: Any) -> "Squeezeformer":
        """Squeezeformer-XS of the paper: 9.0 M parameters."""
        return cls.published("xs", **changes)

    @classmethod
    def s(cls, **changes: Any) -> "Squeezeformer":
        """Squeezeformer-S of the paper: 18.6 M parameters."""
        return cls.published("s", **changes)

    @classmethod
    def sm(cls, **changes: Any) -> "Squeezeformer":
        """Squeezeformer-SM of the paper: 28.2 M parameters."""
        return cls.published("sm", **changes)

    @classmethod
    def m(cls, **changes: Any) -> "Squeezeformer":
        """Squeezeformer-M of the paper: 55.6 M parameters."""
        return cls.published("m", **changes)

    @classmethod
    def ml(cls, **changes: Any) -> "Squeezeformer":
        """Squeezeformer-ML of the paper: 125.1 M parameters."""
        return cls.published("ml", **changes)

    @classmethod
    def l(cls, **changes: Any) -> "Squeezeformer":  # noqa: E743 (the paper's name)
        """Squeezeformer-L of the paper: 236.3 M parameters."""
        return cls.published("l", **changes)

    @classmethod
    def rust(cls, size: Size = "sm", **changes: Any) -> "Squeezeformer":
        """Settings of the Rust trainer (`--architecture squeezeformer --variant SIZE`).

        The features are those of the preset `rust_squeezeformer`.

        Differs from: the Rust trainer recovers frames by repeating the whole half-rate sequence instead of each frame,
        a defect; it ignores the last of an odd number of frames in the reduction; its running statistics include
        padding (`norm="batch_padded"`).
        """
        return cls.published(size, **{"variant": "rust", "attention_dropout": 0.1, **changes})

    @property
    def reduced(self) -> tuple[int, int]:
        """Indices of the first layer at half the frame rate and of the first after it.

        Both are `num_layers` without `reduce_time`.
        """
        if not self.reduce_time:
            return self.num_layers, self.num_layers
        first = max(self.num_layers // 2 - 1, 0) if self.reduce_at is None else self.reduce_at
        return first, self.num_layers - 1 if self.recover_at is None else self.recover_at

    @property
    def stack_sizes(self) -> tuple[int, int, int]:
        """Number of layers of each stack in `STACKS`."""
        first, last = self.reduced
        return first, last - first, self.num_layers - last

    @property
    def layer_places(self) -> list[tuple[str, int]]:
        """Path of the scanned layers that contain each layer, and the layer's index there."""
        return [(f"{stack}/layers", n) for stack, num in zip(STACKS, self.stack_sizes, strict=True) for n in range(num)]

    @property
    def details(self) -> Details:
        return DETAILS[self.variant]

    def subsampled(self, num_frames: Any) -> Any:
        """Number of frames after the subsampling for a number of frames of features; for ints and arrays."""
        return strided_length(num_frames, self.subsampling_factor, before=self.details.frames_before)

    def depths(self, path: str) -> tuple[int, ...]:
        """Depths: 0 for the embedding, 1 to num_layers for the layers.

        The reduction and the recovery have the depth of the layer before them.
        """
        first, last = self.reduced
        if found := re.match(rf"({'|'.join(STACKS)})/", path):
            stack = STACKS.index(found[1])
            start = 1 + sum(self.stack_sizes[:stack])
            return tuple(range(start, start + self.stack_sizes[stack]))
        return ({"reduce": first, "recover": last}.get(path.split("/")[0], 0),)

    def build(self, *, dtype: DTypeLike) -> "SqueezeformerEncoder":
        return SqueezeformerEncoder(self, dtype)


class SqueezeformerEncoder(Encoder):
    """Squeezeformer encoder, [B T num_mels] to [B S dim] with S = output_length(T).

    By default it divides the frame rate by 4, such as from 100 Hz to 25 Hz.
    """

    settings: Squeezeformer
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        """Encodes frames.

        Raises:
            ValueError: If frames do not have `num_mels` values, or if the batch is too short for one output frame.
        """
        settings = self.settings
        x = Embedding(settings, self.dtype, name="embed")(frames.values, frames.lengths, step=step)
        lengths = self.output_length(frames.lengths)
        masked = lengths
        if settings.variant == "paper" and not settings.mask_padding:
            masked = jnp.minimum(peer_lengths(frames.lengths, settings.subsampling_factor), x.shape[1])
        biases = tied_biases(self, settings.num_heads, settings.dim) if settings.tied_biases else None

        def stack(number: int, x: Array, masked: Array) -> tuple[Array, list[Array]]:
            if not settings.stack_sizes[number]:
                return x, []
            inputs = LayerInputs(self._allowed(masked, x.shape[1]), masked, step, self._positions(x.shape[1]), biases)
            x, inner = SqueezeformerStack(settings, number, self.dtype, name=STACKS[number])(x, inputs)
            return x, [] if inner is None else [*inner]

        outputs = [x]
        x, inner = stack(0, x, masked)
        outputs += inner
        if settings.reduce_time:
            before = x
            x = ReduceTime(settings.details, settings.mask_padding, self.dtype, name="reduce")(x, masked)
            x, inner = stack(1, x, (masked + 1) // 2)
            outputs += inner
            x = RecoverTime(self.dtype, name="recover")(x, before)
            x, inner = stack(2, x, masked)
            outputs += inner
        named = dict(zip(settings.tap_names(), outputs, strict=False))
        taps = {name: Frames(named[name], num) for name, num in self.tap_lengths(frames.lengths).items()}
        return Encoded(frames=Frames(x, lengths), taps=taps)

    def _positions(self, num_frames: DimSize) -> Float[Array, "R D"] | None:
        if self.settings.positions == "abs_pos":
            return None
        return jnp.asarray(relative_sinusoids(num_frames, self.settings.dim), self.dtype)

    def _allowed(self, lengths: Int[Array, " B"], num_frames: DimSize) -> Bool[Array, "B #T T"]:
        keys = length_mask(lengths, num_frames)
        return keys[:, None] if self.settings.mask_padding else keys[:, None] & keys[:, :, None]

    def output_length(self, num_frames: Any) -> Any:
        return self.settings.subsampled(num_frames)

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        num, (before, within, _) = self.output_length(num_frames), self.settings.stack_sizes
        halved = {f"layer_{layer}" for layer in range(before, before + within)} if self.settings.reduce_time else ()
        return {name: (num + 1) // 2 if name in halved else num for name in self.settings.taps}


class Embedding(nn.Module):
    """Embedding: subsampling, projection to `dim`, absolute positions with abs_pos, dropout and norm."""

    settings: Squeezeformer
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T F"], lengths: Int[Array, " B"], *, step: Step) -> Float[Array, "B S D"]:
        settings = self.settings
        settings.check_frames(x)
        if not settings.subsampled(x.shape[1]):
            raise ValueError(
                f"the subsampling needs batches of at least {settings.subsampling_factor} frames, got {x.shape[1]}: "
                "pad the batch"
            )
        subsample = Subsample(
            settings.subsampling_channels or settings.dim,
            settings.subsampling_factor,
            settings.subsampling,
            settings.details.frames_before,
            settings.mask_padding or settings.details.masks,
            self.dtype,
            name="subsample",
        )
        x = Linear(settings.dim, dtype=self.dtype, name="out")(subsample(x, lengths))
        if settings.scale_input:
            x *= settings.dim**0.5
        if settings.positions == "abs_pos":
            x += jnp.asarray(sinusoids(numbers(0, x.shape[1]), settings.dim), self.dtype)[None]
        x = Dropout(settings.dropout)(x, step=step)
        return normed("norm", x, settings.details.eps)


class SqueezeformerStack(nn.Module):
    """Stack of layers. Returns the last output and, with taps, the outputs of all layers."""

    settings: Squeezeformer
    number: int
    """Index of the stack in `STACKS`."""
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], inputs: LayerInputs
    ) -> tuple[Float[Array, "B T D"], Float[Array, "L B T D"] | None]:
        settings = self.settings
        layers = layer_stack(SqueezeformerLayer, settings.stack_sizes[self.number], settings.remat)
        return layers(settings, self.dtype, name="layers")(x, inputs)


class SqueezeformerLayer(nn.Module):
    """Attention, feed-forward, convolution and feed-forward modules, each as norm(x + module(x · scale + bias)).

    The signature is that of a body of `nn.scan`. With taps, the layer also returns its output for the scan to collect.
    """

    settings: Squeezeformer
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], inputs: LayerInputs
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"] | None]:
        settings, details, step = self.settings, self.settings.details, inputs.step
        attention = RelativeAttention(
            settings.num_heads,
            dropout=settings.attention_dropout,
            blind=details.blind,
            dtype=self.dtype,
            name="attention",
        )
        convolution = ConformerConvolution(
            settings.kernel_size,
            gated=settings.gated_convolution,
            norm=settings.norm,
            norm_eps=details.eps,
            norm_momentum=details.momentum,
            norm_ddof=details.ddof,
            dtype=self.dtype,
            name="convolution",
        )
        y = attention(self._scaled(x, "attention"), inputs.positions, inputs.allowed, step=step, biases=inputs.biases)
        x = self._added(x, y, step, "attention")
        x = self._feed_forward(x, step, "feed_forward_1")
        y = convolution(self._scaled(x, "convolution"), inputs.lengths, step=step)
        x = self._added(x, y, step, "convolution")
        x = self._feed_forward(x, step, "feed_forward_2")
        return x, x if settings.taps else None

    def _feed_forward(self, x: Array, step: Step, name: str) -> Array:
        settings = self.settings
        module = ConformerFeedForward(settings.hidden_dim, dropout=settings.dropout, dtype=self.dtype, name=name)
        return self._added(x, module(self._scaled(x, name), step=step), step, name)

    def _scaled(self, x: Array, name: str) -> Array:
        return ScaleBias(name=f"{name}_scale")(x) if self.settings.adaptive_scale else x

    def _added(self, x: Array, y: Array, step: Step, name: str) -> Array:
        x += Dropout(self.settings.dropout)(y, step=step)
        return normed(f"{name}_norm", x, self.settings.details.eps)

"""Squeezeformer: a Conformer whose middle layers work at half the frame rate, with one order of modules and norms.

Source: Kim et al. 2022, "Squeezeformer: An Efficient Transformer for Automatic Speech Recognition" (arXiv:2206.00888);
kssteven418/Squeezeformer at commit ab49eec5, NVIDIA/NeMo's SqueezeformerEncoder at commit 8cfedd72, and seed 003's
trainer (RustedBytes/w2v-bert-uk at commit adec09e4): see `Squeezeformer.variant`.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Encoded, Frames, length_mask
from asr_jax.models.base import Encoder, EncoderOfMels
from asr_jax.nn.conformer import ConvNorm
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import layer_norm
from asr_jax.nn.positions import relative_sinusoids, sinusoids
from asr_jax.nn.remat import Remat
from asr_jax.nn.schedules import Step
from asr_jax.nn.squeezeformer_layer import (
    DETAILS,
    Details,
    LayerSizes,
    RecoverTime,
    ReduceTime,
    Shared,
    SqueezeformerStack,
    Variant,
    peer_lengths,
)
from asr_jax.nn.striding import Subsample, Subsampling, strided_length

STACKS = ("stack_0", "stack_1", "stack_2")
"""Names of the stacks of layers: at the full frame rate, at half of it, at the full one again."""
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


@dataclass(frozen=True)
class Squeezeformer(EncoderOfMels):
    """Sizes and training behaviour; the defaults are the paper's SM."""

    num_mels: int = 80
    """Mel bins of the input."""
    dim: int = 256
    """Width of all layers and of the output; even."""
    num_layers: int = 16
    """Layers."""
    num_heads: int = 4
    """Attention heads; they divide `dim`."""
    feedforward_dim: int | None = None
    """Hidden width of feed-forward modules. None: four times `dim`."""
    kernel_size: int = 31
    """Taps of the depthwise convolutions, odd."""
    reduce_time: bool = True
    """Whether layers in the middle work at half the frame rate."""
    reduce_at: int | None = None
    """Layer, from 0, before which the frame rate is halved. None: num_layers // 2 - 1, as in all published sizes."""
    recover_at: int | None = None
    """Layer before which it is recovered, not before `reduce_at`. None: the last, as in all published sizes."""
    subsampling: Subsampling = "dw_striding"
    """The convolutions that lower the frame rate: full ones (striding), or behind the first depthwise and then
    pointwise ones (dw_striding)."""
    subsampling_factor: int = 4
    """Frames of the input for one of the encoder; a power of 2."""
    subsampling_channels: int | None = None
    """Channels of the subsampling; None: `dim`."""
    positions: Literal["rel_pos", "abs_pos"] = "rel_pos"
    """How attention knows where frames are: by their distances (Transformer-XL), or by encodings added to the input."""
    tied_biases: bool = False
    """With rel_pos, one pair of biases of queries for all layers."""
    scale_input: bool = True
    """Multiply the frames by √dim before the first layer."""
    adaptive_scale: bool = True
    """A learned scale and bias of each channel before each module."""
    norm: ConvNorm = "batch"
    """Of convolution modules. batch: over the valid frames; batch_padded: over all frames of the padded batch, as the
    peers train; layer: over the channels of a frame."""
    dropout: float = 0.1
    """Of the embedding, of each module's output and in feed-forward modules."""
    attention_dropout: float = 0.0
    """Of attention weights."""
    variant: Variant = "paper"
    """Whose details. paper: the authors' code; nemo: NeMo's, with zeros on both sides in subsampling and reduction and
    another eps and momentum of norms; rust: seed 003's trainer, with three taps in the reduction."""
    mask_padding: bool = True
    """An utterance gives the same output alone as in a padded batch. Without it, padding enters exactly as it does in
    the code of the variant."""
    remat: Remat = "elementwise"
    """What of each layer is computed again in the backward pass instead of being kept: of the
    policies of `nn.remat`, each of which takes less memory than the one before it, none, elementwise, products and
    layers. elementwise is the fastest, too."""
    taps: tuple[str, ...] = ()
    """Inner outputs to give to heads: "embed", "layer_0", ..., those between `reduce_at` and `recover_at` at half the
    frame rate."""

    def __post_init__(self) -> None:
        factor, reduce_at, recover_at = self.subsampling_factor, *self.reduced
        known_taps = {"embed", *(f"layer_{number}" for number in range(self.num_layers))}
        sizes = ("num_mels", "dim", "num_layers", "num_heads", "kernel_size")
        problems = [
            f"{name} is {getattr(self, name)}, expected at least 1" for name in sizes if getattr(self, name) < 1
        ]
        checks = {
            f"dim is {self.dim}, expected a multiple of num_heads, {self.num_heads}": self.num_heads > 0
            and self.dim % self.num_heads == 0,
            f"dim is {self.dim}, expected an even number": self.dim % 2 == 0,
            f"kernel_size is {self.kernel_size}, expected an odd number": self.kernel_size % 2 == 1,
            f"subsampling_factor is {factor}, expected 2, 4, 8, ...": factor > 1 and factor & (factor - 1) == 0,
            **{
                f"{name} is {getattr(self, name)}, expected None or at least 1": getattr(self, name) is None
                or getattr(self, name) > 0
                for name in ("subsampling_channels", "feedforward_dim")
            },
            f"num_mels is {self.num_mels}, expected at least {factor}, subsampling_factor": self.num_mels >= factor,
            f"reduce_at is {reduce_at} and recover_at {recover_at}, expected 0 <= reduce_at <= recover_at < "
            f"{self.num_layers}, num_layers": not self.reduce_time or 0 <= reduce_at <= recover_at < self.num_layers,
            f"reduce_at is {self.reduce_at} and recover_at {self.recover_at}, expected None without reduce_time": (
                self.reduce_time or (self.reduce_at is None and self.recover_at is None)
            ),
            f"dropout is {self.dropout} and attention_dropout {self.attention_dropout}, expected within 0 and 1": all(
                0 <= rate < 1 for rate in (self.dropout, self.attention_dropout)
            ),
            "tied_biases is True, expected False with abs_pos, which has none": self.positions == "rel_pos"
            or not self.tied_biases,
            f"taps are {self.taps}, expected some of {sorted(known_taps)}": known_taps >= set(self.taps),
        }
        problems += [problem for problem, good in checks.items() if not good]
        if problems:
            raise ValueError("; ".join(problems))

    @classmethod
    def published(cls, size: Size, **changes: Any) -> "Squeezeformer":
        """A size of the paper's table 2 by its name.

        Raises: ValueError for another name.
        """
        if size not in PUBLISHED:
            raise ValueError(f"Squeezeformer has no size {size!r}: expected one of {', '.join(PUBLISHED)}")
        return cls(**{**dict(zip(("dim", "num_layers", "num_heads"), PUBLISHED[size], strict=True)), **changes})

    @classmethod
    def tiny(cls, **changes: Any) -> "Squeezeformer":
        """Six layers, not of the paper: 1.1 M parameters, for two CPU cores and a few hours of speech."""
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
        """As seed 003's trainer has it (`--architecture squeezeformer --variant SIZE`), for features of the preset
        `rust_squeezeformer`.

        Differs from: there, recovered frames are those of the whole half-rate sequence twice over, and not each twice
        in order, a defect; of an odd number of frames the last is left out of the reduction; running statistics count
        padding (`norm="batch_padded"`).
        """
        return cls.published(size, **{"variant": "rust", "attention_dropout": 0.1, **changes})

    @property
    def reduced(self) -> tuple[int, int]:
        """First layer at half the frame rate, and the first after it: both `num_layers` where there are none."""
        if not self.reduce_time:
            return self.num_layers, self.num_layers
        first = max(self.num_layers // 2 - 1, 0) if self.reduce_at is None else self.reduce_at
        return first, self.num_layers - 1 if self.recover_at is None else self.recover_at

    @property
    def stack_sizes(self) -> tuple[int, int, int]:
        """Layers of each of `STACKS`."""
        first, last = self.reduced
        return first, last - first, self.num_layers - last

    @property
    def layer_places(self) -> list[tuple[str, int]]:
        """Of each layer the path of the scanned layers that it is one of, and its place there."""
        return [(f"{stack}/layers", n) for stack, num in zip(STACKS, self.stack_sizes, strict=True) for n in range(num)]

    @property
    def details(self) -> Details:
        return DETAILS[self.variant]

    def subsampled(self, num_frames: Any) -> Any:
        """Frames of the encoder for frames of features; for ints and arrays."""
        return strided_length(num_frames, self.subsampling_factor, before=self.details.frames_before)

    def depths(self, path: str) -> tuple[int, ...]:
        """The embedding is 0, and layers follow; what changes the frame rate is as deep as the layer before it."""
        first, last = self.reduced
        if found := re.match(rf"({'|'.join(STACKS)})/", path):
            stack = STACKS.index(found[1])
            start = 1 + sum(self.stack_sizes[:stack])
            return tuple(range(start, start + self.stack_sizes[stack]))
        return ({"reduce": first, "recover": last}.get(path.split("/")[0], 0),)

    def num_depths(self) -> int:
        return 1 + self.num_layers

    def build(self, *, dtype: DTypeLike) -> "SqueezeformerEncoder":
        return SqueezeformerEncoder(self, dtype)

    def layer_sizes(self, dtype: DTypeLike) -> LayerSizes:
        """The sizes of each layer."""
        return LayerSizes(
            num_heads=self.num_heads,
            feedforward_dim=self.feedforward_dim or 4 * self.dim,
            kernel_size=self.kernel_size,
            norm=self.norm,
            adaptive_scale=self.adaptive_scale,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            details=self.details,
            dtype=dtype,
        )


class SqueezeformerEncoder(Encoder):
    """[B T num_mels] to [B S dim], S = output_length(T): 25 Hz from 100 Hz by default."""

    settings: Squeezeformer
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        """Raises ValueError for frames of another width, and for batches too short for one frame of the encoder."""
        settings = self.settings
        x = Embedding(settings, self.dtype, name="embed")(frames.values, frames.lengths, step=step)
        lengths = self.output_length(frames.lengths)
        masked = lengths
        if settings.variant == "paper" and not settings.mask_padding:
            masked = jnp.minimum(peer_lengths(frames.lengths, settings.subsampling_factor), x.shape[1])
        biases = self._biases()

        def stack(number: int, x: Array, masked: Array) -> tuple[Array, dict[str, Array]]:
            shared = Shared(self._positions(x.shape[1]), biases, self._allowed(masked, x.shape[1]), masked, step)
            return self._stack(number, x, shared)

        taps = {"embed": x}
        x, inner = stack(0, x, masked)
        if settings.reduce_time:
            before, taps = x, taps | inner
            x = ReduceTime(settings.details, settings.mask_padding, self.dtype, name="reduce")(x, masked)
            x, inner = stack(1, x, (masked + 1) // 2)
            taps |= inner
            x = RecoverTime(self.dtype, name="recover")(x, before)
            x, inner = stack(2, x, masked)
        taps |= inner
        tapped = {name: Frames(taps[name], num) for name, num in self.tap_lengths(frames.lengths).items()}
        return Encoded(frames=Frames(x, lengths), taps=tapped)

    def _stack(
        self, number: int, x: Float[Array, "B T D"], shared: Shared
    ) -> tuple[Float[Array, "B T D"], dict[str, Array]]:
        """What comes out of one of `STACKS`, and the taps within it."""
        settings, num_layers = self.settings, self.settings.stack_sizes[number]
        if not num_layers:
            return x, {}
        first = sum(settings.stack_sizes[:number])
        tapped = [layer for layer in range(num_layers) if f"layer_{first + layer}" in settings.taps]
        sizes = settings.layer_sizes(self.dtype)
        x, inner = SqueezeformerStack(sizes, num_layers, settings.remat, bool(tapped), name=STACKS[number])(x, shared)
        return x, {f"layer_{first + layer}": inner[layer] for layer in tapped}

    def _biases(self) -> tuple[Float[Array, "H C"], Float[Array, "H C"]] | None:
        settings, zeros = self.settings, nn.initializers.zeros
        if not settings.tied_biases:
            return None
        shape = (settings.num_heads, settings.dim // settings.num_heads)
        return self.param("content_bias", zeros, shape), self.param("position_bias", zeros, shape)

    def _positions(self, num_frames: int) -> Float[Array, "R D"] | None:
        if self.settings.positions == "abs_pos":
            return None
        return jnp.asarray(relative_sinusoids(num_frames, self.settings.dim), self.dtype)

    def _allowed(self, lengths: Int[Array, " B"], num_frames: int) -> Bool[Array, "B #T T"]:
        keys = length_mask(lengths, num_frames)
        return keys[:, None] if self.settings.mask_padding else keys[:, None] & keys[:, :, None]

    def output_length(self, num_frames: Any) -> Any:
        return self.settings.subsampled(num_frames)

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        num, (before, within, _) = self.output_length(num_frames), self.settings.stack_sizes
        halved = {f"layer_{layer}" for layer in range(before, before + within)} if self.settings.reduce_time else ()
        return {name: (num + 1) // 2 if name in halved else num for name in self.settings.taps}


class Embedding(nn.Module):
    """Subsampling, a projection to `dim`, positions where they are absolute, and a norm."""

    settings: Squeezeformer
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T F"], lengths: Int[Array, " B"], *, step: Step) -> Float[Array, "B S D"]:
        settings = self.settings
        settings.check_frames(x)
        if not settings.subsampled(x.shape[1]):
            raise ValueError(
                f"the subsampling needs batches of at least {settings.subsampling_factor} frames, got {x.shape[1]}"
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
            places = np.arange(x.shape[1], dtype=np.float64)
            x += jnp.asarray(sinusoids(places, settings.dim), self.dtype)[None]
        x = nn.Dropout(settings.dropout)(x, deterministic=step is None)
        return layer_norm(settings.details.eps, name="norm")(x).astype(x.dtype)

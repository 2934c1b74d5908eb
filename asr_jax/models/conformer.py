"""Conformer and FastConformer: layers of attention and convolution between two halves of a feed-forward module.

Source: Gulati et al. 2020, "Conformer: Convolution-augmented Transformer for Speech Recognition" (arXiv:2005.08100);
Rekesh et al. 2023, "Fast Conformer with Linearly Scalable Attention for Efficient Speech Recognition"
(arXiv:2305.05084); NeMo's nemo/collections/asr/modules/conformer_encoder.py at commit 8cfedd72.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Encoded, Frames, length_mask
from asr_jax.core.sharding import ModelRules
from asr_jax.models.base import Encoder, EncoderOfMels
from asr_jax.nn.conformer.modules import ConformerConvolution, ConformerFeedForward, ConvNorm, RelativeAttention
from asr_jax.nn.conformer.striding import Subsample, Subsampling, strided_length
from asr_jax.nn.layer_stack import LayerInputs, layer_stack, tied_biases
from asr_jax.nn.linear import Linear
from asr_jax.nn.model_axis import ATTENTION, FEED_FORWARD
from asr_jax.nn.normalization import normed
from asr_jax.nn.positions import relative_sinusoids, sinusoids
from asr_jax.nn.remat import Remat
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
ParaformerVariant = Literal["xs", "s", "small", "sm", "m", "medium", "ml", "l", "large"]
PARAFORMER: dict[ParaformerVariant, int] = {
    "xs": 256, "s": 256, "small": 256, "sm": 384, "m": 384, "medium": 384, "ml": 512, "l": 512, "large": 512,
}  # fmt: skip
"""Widths of the Rust trainer's Paraformer."""
RATES = ("dropout", "input_dropout", "position_dropout", "attention_dropout")


@dataclass(frozen=True)
class Conformer(EncoderOfMels):
    """Settings of Conformer. The defaults are the large Conformer-CTC of NeMo."""

    num_mels: int = 80
    """Number of mel bins of the input."""
    dim: int = 512
    """Width of the layers and of the output. Must be even and a multiple of num_heads."""
    num_layers: int = 18
    """Number of layers."""
    num_heads: int = 8
    """Number of attention heads."""
    feedforward_dim: int | None = None
    """Hidden width of the feed-forward modules. None: four times dim."""
    kernel_size: int = 31
    """Taps of the depthwise convolutions. Must be odd."""
    subsampling: Subsampling = "striding"
    """Convolutions that lower the frame rate. striding: full convolutions, as in Conformer. dw_striding:
    depthwise-separable convolutions, as in FastConformer."""
    subsampling_factor: int = 4
    """Ratio of the input's to the output's frame rate. Must be a power of 2, at least 2."""
    subsampling_channels: int | None = None
    """Channels of the subsampling. None: dim."""
    positions: Literal["rel_pos", "abs_pos", "none"] = "rel_pos"
    """Position encodings. rel_pos: relative positions in attention (Transformer-XL). abs_pos: sinusoids that are added
    to the input. none: convolutions alone depend on positions, as in the Rust trainer's Paraformer."""
    tied_biases: bool = False
    """Whether all layers share one pair of query biases. Requires rel_pos."""
    scale_input: bool = True
    """Whether the output of the subsampling is multiplied by √dim."""
    norm: ConvNorm = "batch"
    """Norm of the convolution modules. batch: batch norm over the valid frames. batch_padded: batch norm that includes
    padding, as in NeMo. layer: layer norm over the channels of a frame."""
    use_bias: bool = True
    """Whether the feed-forward and attention modules have biases."""
    convolution_bias: bool = True
    """Whether the convolution modules have biases."""
    dropout: float = 0.1
    """Dropout rate within the feed-forward modules and after each module of a layer."""
    input_dropout: float = 0.1
    """Dropout rate before the first layer."""
    position_dropout: float = 0.0
    """Dropout rate of the position encodings."""
    attention_dropout: float = 0.1
    """Dropout rate of the attention weights."""
    attention: Literal["auto", "xla"] = "auto"
    """Implementation of the attention with relative positions (see `kernels.relative_attention`). xla keeps no scores
    of all queries and keys in memory, and needs attention_dropout 0."""
    mask_padding: bool = True
    """Whether the output of an utterance is independent of padding. Otherwise padding enters the subsampling, as in
    NeMo before version 2.5."""
    remat: Remat = "elementwise"
    """Rematerialisation policy of the layers (see `nn.remat`): none, elementwise, products or layers, in the order of
    decreasing memory. elementwise is also the fastest."""
    taps: tuple[str, ...] = ()
    """Inner outputs for heads: "layer_0", "layer_1", ... With any, the outputs of all layers are stored."""

    def __post_init__(self) -> None:
        factor = self.subsampling_factor
        known_taps = {f"layer_{number}" for number in range(self.num_layers)}
        checks = {
            f"{name} is {getattr(self, name)}, expected at least 1": getattr(self, name) is None
            or getattr(self, name) >= 1
            for name in ("num_mels", "dim", "num_layers", "num_heads", "feedforward_dim", "subsampling_channels")
        }
        if self.num_heads >= 1:
            divisible = self.dim % 2 == 0 and self.dim % self.num_heads == 0
            checks[f"dim is {self.dim}, expected an even multiple of num_heads, {self.num_heads}"] = divisible
        checks |= {
            f"kernel_size is {self.kernel_size}, expected an odd number": self.kernel_size > 0 and self.kernel_size % 2,
            f"subsampling_factor is {factor}, expected a power of 2, at least 2": factor > 1
            and factor.bit_count() == 1,
            f"taps is {self.taps}, expected names from layer_0 to layer_{self.num_layers - 1}": known_taps
            >= set(self.taps),
            "tied_biases is True, expected False without rel_pos, whose biases they are": not self.tied_biases
            or self.positions == "rel_pos",
        }
        if self.attention != "auto":
            checks |= {
                f"attention is {self.attention}, expected auto for positions {self.positions}": self.positions
                == "rel_pos",
                f"attention_dropout is {self.attention_dropout}, expected 0 for attention {self.attention}": (
                    self.attention_dropout == 0
                ),
            }
        checks |= {
            f"{name} is {getattr(self, name)}, expected at least 0 and less than 1": 0 <= getattr(self, name) < 1
            for name in RATES
        }
        if problems := [problem for problem, good in checks.items() if not good]:
            raise ValueError("; ".join(problems))

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

        Args:
            changes: Other fields.

        Raises:
            ValueError: If there is no such size.
        """
        if size not in FAST:
            raise ValueError(f"FastConformer has no size {size!r}: expected one of {', '.join(FAST)}")
        sizes = {"kernel_size": 9, "subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_channels": 256}
        return cls(**{**sizes, **FAST[size], **changes})

    @classmethod
    def paraformer(cls, variant: ParaformerVariant = "medium", **changes: Any) -> "Conformer":
        """Encoder of the Rust trainer's Paraformer-v2 (`--architecture paraformer --variant VARIANT`), at 25 Hz.

        The sizes small (xs, s), medium (sm, m) and large (ml, l) have 256, 384 and 512 channels. The features are those
        of the preset `rust_squeezeformer`.

        Args:
            variant: Name of the size.
            changes: Other fields.

        Raises:
            ValueError: If there is no such size.
        """
        if variant not in PARAFORMER:
            raise ValueError(f"Paraformer has no variant {variant!r}: expected one of {', '.join(PARAFORMER)}")
        dim = PARAFORMER[variant]
        sizes = {
            "dim": dim, "num_layers": 12, "num_heads": dim // 64, "feedforward_dim": 2048, "kernel_size": 15,
            "positions": "none", "scale_input": False, "input_dropout": 0.0,
        }  # fmt: skip
        return cls(**{**sizes, **changes})

    def depths(self, path: str) -> tuple[int, ...]:
        """Depths: 0 for the subsampling, 1 to num_layers for the layers, and 1 for tied biases."""
        if path.startswith("layers/"):
            return tuple(range(1, 1 + self.num_layers))
        return (0,) if path.startswith(("subsample/", "embed/")) else (1,)

    def num_depths(self) -> int:
        return 1 + self.num_layers

    def model_axis_rules(self) -> ModelRules:
        return ATTENTION + FEED_FORWARD

    def build(self, *, dtype: DTypeLike) -> "ConformerEncoder":
        return ConformerEncoder(self, dtype)


class ConformerEncoder(Encoder):
    """Conformer encoder, [B T num_mels] to [B S dim] with S = ⌈T / subsampling_factor⌉."""

    settings: Conformer
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        settings = self.settings
        settings.check_frames(frames.values)
        subsample = Subsample(
            settings.subsampling_channels or settings.dim,
            settings.subsampling_factor,
            settings.subsampling,
            mask_padding=settings.mask_padding,
            dtype=self.dtype,
            name="subsample",
        )
        x = Linear(settings.dim, dtype=self.dtype, name="embed")(subsample(frames.values, frames.lengths))
        lengths = self.output_length(frames.lengths)
        if settings.scale_input:
            x *= settings.dim**0.5
        positions = None if settings.positions == "none" else self._positions(x.shape[1], step)
        if settings.positions == "abs_pos":
            assert positions is not None
            x, positions = x + positions[None], None
        x = Dropout(settings.input_dropout)(x, step=step)
        biases = tied_biases(self, settings.num_heads, settings.dim) if settings.tied_biases else None
        allowed = length_mask(lengths, x.shape[1])[:, None]
        layers = layer_stack(ConformerLayer, settings.num_layers, settings.remat)(settings, self.dtype, name="layers")
        x, inner = layers(x, LayerInputs(allowed, lengths, step, positions, biases))
        taps = {
            name: Frames(inner[int(name.removeprefix("layer_"))], tap_lengths)
            for name, tap_lengths in self.tap_lengths(frames.lengths).items()
        }
        return Encoded(frames=Frames(x, lengths), taps=taps)

    def output_length(self, num_frames: Any) -> Any:
        return strided_length(num_frames, self.settings.subsampling_factor)

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        return dict.fromkeys(self.settings.taps, self.output_length(num_frames))

    def _positions(self, num_frames: int, step: Step) -> Float[Array, "R D"]:
        width = self.settings.dim
        if self.settings.positions == "rel_pos":
            encodings = relative_sinusoids(num_frames, width)
        else:
            encodings = sinusoids(np.arange(num_frames, dtype=np.float64), width)
        dropout = nn.Dropout(self.settings.position_dropout)  # shared by the rows
        return dropout(jnp.asarray(encodings, self.dtype), deterministic=step is None)


class ConformerLayer(nn.Module):
    """Conformer layer: half-step feed-forward, attention, convolution, half-step feed-forward, norm.

    The signature is that of a body of `nn.scan`. With taps, the layer also returns its output for the scan to collect.
    """

    settings: Conformer
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], inputs: LayerInputs
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"] | None]:
        settings, step = self.settings, inputs.step
        x += 0.5 * self._dropout(self._feed_forward("feed_forward_1", x, step=step), step)
        attention = RelativeAttention(
            settings.num_heads, settings.use_bias, settings.attention_dropout, implementation=settings.attention,
            dtype=self.dtype, name="attention",
        )  # fmt: skip
        attended = attention(
            normed("attention_norm", x), inputs.positions, inputs.allowed, step=step, biases=inputs.biases,
            lengths=inputs.lengths,
        )  # fmt: skip
        x += self._dropout(attended, step)
        convolution = ConformerConvolution(
            settings.kernel_size,
            norm=settings.norm,
            use_bias=settings.convolution_bias,
            dtype=self.dtype,
            name="convolution",
        )
        x += self._dropout(convolution(normed("convolution_norm", x), inputs.lengths, step=step), step)
        x += 0.5 * self._dropout(self._feed_forward("feed_forward_2", x, step=step), step)
        x = normed("norm", x)
        return x, x if settings.taps else None

    def _feed_forward(self, name: str, x: Float[Array, "B T D"], *, step: Step) -> Float[Array, "B T D"]:
        settings = self.settings
        hidden_dim = settings.feedforward_dim or 4 * settings.dim
        module = ConformerFeedForward(hidden_dim, settings.dropout, settings.use_bias, self.dtype, name=name)
        return module(normed(f"{name}_norm", x), step=step)

    def _dropout(self, x: Float[Array, "B T D"], step: Step) -> Float[Array, "B T D"]:
        return Dropout(self.settings.dropout)(x, step=step)

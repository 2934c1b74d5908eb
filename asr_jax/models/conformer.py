"""Conformer and FastConformer: layers of attention and convolution between two halves of a feed-forward module.

Source: Gulati et al. 2020, "Conformer: Convolution-augmented Transformer for Speech Recognition" (arXiv:2005.08100);
Rekesh et al. 2023, "Fast Conformer with Linearly Scalable Attention for Efficient Speech Recognition"
(arXiv:2305.05084); NeMo's nemo/collections/asr/modules/conformer_encoder.py at commit 8cfedd72.
"""

from collections.abc import Iterator
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Encoded, Frames, length_mask
from asr_jax.core.settings import ShareBelow1, settings
from asr_jax.core.shapes import DimSize, numbers
from asr_jax.models.encoder import Encoder, SubsamplingEncoder
from asr_jax.nn.conformer.modules import ConformerConvolution, ConformerFeedForward, RelativeAttention
from asr_jax.nn.conformer.striding import Subsample, strided_length
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
ParaformerVariant = Literal["xs", "s", "small", "sm", "m", "medium", "ml", "l", "large"]
PARAFORMER: dict[str, int] = {
    **dict.fromkeys(("xs", "s", "small"), 256),
    **dict.fromkeys(("sm", "m", "medium"), 384),
    **dict.fromkeys(("ml", "l", "large"), 512),
}
"""Widths of the Rust trainer's Paraformer."""


@settings
class Conformer(SubsamplingEncoder):
    """Settings of Conformer. The defaults are the large Conformer-CTC of NeMo."""

    num_layers = 18
    use_bias: bool = True
    """Whether the feed-forward and attention modules have biases."""
    convolution_bias: bool = True
    """Whether the convolution modules have biases."""
    input_dropout: ShareBelow1 = 0.1
    """Dropout rate before the first layer."""
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

    def depths(self, path: str) -> tuple[int, ...]:
        """Depths: 0 for the subsampling, 1 to num_layers for the layers, and 1 for tied biases."""
        if path.startswith("layers/"):
            return tuple(range(1, 1 + self.num_layers))
        return (0,) if path.startswith(("subsample/", "embed/")) else (1,)

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
        taps = {name: Frames(inner[int(name.removeprefix("layer_"))], lengths) for name in settings.taps}
        return Encoded(frames=Frames(x, lengths), taps=taps)

    def output_length(self, num_frames: Any) -> Any:
        return strided_length(num_frames, self.settings.subsampling_factor)

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        return dict.fromkeys(self.settings.taps, self.output_length(num_frames))

    def _positions(self, num_frames: DimSize, step: Step) -> Float[Array, "R D"]:
        width = self.settings.dim
        if self.settings.positions == "rel_pos":
            encodings = relative_sinusoids(num_frames, width)
        else:
            encodings = sinusoids(numbers(0, num_frames), width)
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
        )
        x += Dropout(settings.dropout)(attended, step=step)
        convolution = ConformerConvolution(
            settings.kernel_size,
            norm=settings.norm,
            use_bias=settings.convolution_bias,
            dtype=self.dtype,
            name="convolution",
        )
        convolved = convolution(normed("convolution_norm", x), inputs.lengths, step=step)
        x += Dropout(settings.dropout)(convolved, step=step)
        x += 0.5 * Dropout(settings.dropout)(self._feed_forward("feed_forward_2", x, step=step), step=step)
        x = normed("norm", x)
        return x, x if settings.taps else None

    def _feed_forward(self, name: str, x: Float[Array, "B T D"], *, step: Step) -> Float[Array, "B T D"]:
        settings = self.settings
        hidden_dim = settings.hidden_dim
        module = ConformerFeedForward(hidden_dim, settings.dropout, settings.use_bias, self.dtype, name=name)
        return module(normed(f"{name}_norm", x), step=step)

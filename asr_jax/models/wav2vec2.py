"""wav2vec 2.0: convolutions of samples and a Transformer, whose middle layers may have fewer frames (Hourglass).

Source: Baevski et al. 2020, "wav2vec 2.0: A Framework for Self-Supervised Learning of Speech Representations"
(arXiv:2006.11477); Nawrot et al. 2022, "Hierarchical Transformers Are More Efficient Language Models"
(arXiv:2110.13711); fairseq's models/wav2vec/wav2vec2.py at commit 3d262bb2; NVIDIA's wav2vec2/model.py in
DeepLearningExamples at commit 729963dd.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from asr_jax.audio.features import FrontEnd, Waveform
from asr_jax.core.batch import Encoded, Frames, length_mask, zero_padding
from asr_jax.core.settings import NonNegativeFloat, NonNegativeInt, PositiveInt, ShareBelow1, check, settings
from asr_jax.core.sharding import ModelRules
from asr_jax.models.encoder import MaskedEncoder, MaskingEncoder
from asr_jax.nn.activations import ACTIVATIONS
from asr_jax.nn.gradients import scale_gradient
from asr_jax.nn.layer_stack import LayerInputs, layer_stack
from asr_jax.nn.linear import Linear
from asr_jax.nn.model_axis import ATTENTION
from asr_jax.nn.normalization import layer_norm, normed
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout, unless_left_out
from asr_jax.nn.wav2vec.quantizer import QUANTIZER, GumbelQuantizer, Quantizer
from asr_jax.nn.wav2vec.transformer import (
    INITIAL_DEVIATION,
    Lengthen,
    MultiHeadAttention,
    PositionalConv,
    Resample,
    Shorten,
)
from asr_jax.nn.wav2vec.waveform_convs import ConvExtractor, ExtractorNorm, WaveformConv, extracted

BASE_EXTRACTOR = (WaveformConv(512, 10, 5), *(WaveformConv(512, 3, 2),) * 4, *(WaveformConv(512, 2, 2),) * 2)


@settings
class Hourglass:
    """Settings of an hourglass: layers at the full frame rate, at a lower rate, and again at the full rate.

    The output of the first layers is added to the input of the last ones.
    """

    before: NonNegativeInt = 0
    """Number of layers before the frames are shortened."""
    middle: NonNegativeInt = 0
    """Number of layers on shortened frames. 0: no hourglass."""
    factor: PositiveInt = 4
    """Number of frames that are shortened to one."""
    after: NonNegativeInt = 0
    """Number of layers after the frames are lengthened."""
    resample: Resample = "naive"
    """Method of shortening and lengthening. naive: means and repeated frames. linear: projected concatenated frames."""

    def problems(self) -> Iterator[str]:
        if (self.before or self.after) and not self.middle:
            yield (
                f"before is {self.before}, after is {self.after} and middle is 0: expected middle of at least 1, or 0 "
                "for all three for no hourglass"
            )

    def __bool__(self) -> bool:
        """Whether the model has an hourglass."""
        return self.middle > 0


@settings
class Wav2Vec2(MaskedEncoder):
    """Settings of wav2vec 2.0. The defaults are Base in pre-training.

    The extractor and the positional convolution always have GELU. Taps: extractor (output of the convolutions),
    features (normalised output of the convolutions, from which pre-training computes its targets), and layer_0, … at
    the full frame rate.
    """

    extractor: tuple[WaveformConv, ...] = BASE_EXTRACTOR
    """Channels, taps and stride of each convolution of the samples. Empty: the front-end computes features."""
    extractor_norm: ExtractorNorm = "group"
    """Norm of the extractor. group: each channel over an utterance's frames, after the first convolution. group_padded:
    as group, including padding, as published models were trained. layer: layer norm after each convolution."""
    extractor_bias: bool = False
    """Whether the convolutions of the extractor have biases."""
    extractor_gradient: NonNegativeFloat = 0.1
    """Factor of the extractor's gradient. 0: the extractor is not trained; set optim.freeze_updates accordingly."""
    num_features: PositiveInt = 1
    """Number of values per frame of the front-end: 1 for samples."""
    feature_dropout: ShareBelow1 = 0.1
    """Dropout rate of the features from which pre-training computes its targets."""
    projected: bool = True
    """Whether features are projected to dim. Otherwise their width must be dim."""
    quantized_input: bool = False
    """Whether the input of the layers is quantised, before it is projected. Training draws the entries."""
    input_quantizer: Quantizer = Quantizer()
    """Settings of the quantiser of quantized_input."""
    input_codes_dim: PositiveInt = 256
    """Width of the quantised input. Must be a multiple of input_quantizer.groups."""
    dim = 768
    num_heads = 12
    feedforward_dim = 3072
    norm_first: bool = False
    """Whether norms precede the modules of a layer, with another norm after the last layer. Otherwise norms follow the
    modules."""
    position_kernel: PositiveInt = 128
    """Taps of the positional convolution."""
    position_groups: PositiveInt = 16
    """Number of channel groups of the positional convolution."""
    rotary: bool = False
    """Whether attention also has rotary position embeddings."""
    hourglass: Hourglass = Hourglass()
    """Layers with fewer frames in the middle, which replace num_layers. hourglass.middle 0: no hourglass."""
    mask_padding: bool = True
    """Whether the output of an utterance is independent of padding. Otherwise, with an hourglass, padding enters the
    last shortened frame of an utterance, as in NVIDIA's training."""
    channel_mask_first: bool = False
    """Whether channels are masked before frames. Otherwise they are masked after frames."""
    fused_attention: bool = False
    """Whether attention uses one fused kernel: cuDNN's on NVIDIA's GPUs in half precision, which does not store the
    scores in memory, and XLA's elsewhere. It has no dropout: attention_dropout must be 0."""
    remat = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "extractor", tuple(WaveformConv(*layer) for layer in self.extractor))
        check(self)

    def tap_names(self) -> tuple[str, ...]:
        return (*["extractor"] * bool(self.extractor), "features", *(f"layer_{n}" for n in self.tapped_layers()))

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.dim % self.position_groups:
            yield f"position_groups is {self.position_groups}: expected a divisor of dim, {self.dim}"
        if any(min(layer) < 1 for layer in self.extractor):
            yield f"extractor is {self.extractor}: expected channels, taps and strides of at least 1"
        if not self.projected and self.feature_dim != self.dim:
            yield f"features have {self.feature_dim} values: expected dim, {self.dim}, because projected is False"
        if not self.projected and self.quantized_input:
            yield "projected is False: expected True with quantized_input"
        if self.input_codes_dim % self.input_quantizer.groups:
            groups = self.input_quantizer.groups
            yield f"input_codes_dim is {self.input_codes_dim}: expected a multiple of input_quantizer.groups, {groups}"
        if self.extractor and self.num_features != 1:
            yield f"num_features is {self.num_features}: expected 1 with an extractor, which reads samples"
        if self.fused_attention and self.attention_dropout:
            yield (
                f"attention_dropout is {self.attention_dropout}: expected 0 with fused_attention, which has no dropout"
            )
        if self.norm_first and self.hourglass:
            yield "norm_first is True: expected False with an hourglass"

    @classmethod
    def tiny(cls, **changes: Any) -> "Wav2Vec2":
        """Four layers at 50 Hz with 1.0 M parameters, for two CPU cores and a few hours of speech; not published."""
        sizes = {
            "extractor": (WaveformConv(64, 10, 5), *(WaveformConv(64, 3, 2),) * 4, *(WaveformConv(64, 2, 2),) * 2),
            "dim": 128,
            "num_layers": 4,
            "num_heads": 4,
            "feedforward_dim": 512,
            "position_kernel": 64,
            "position_groups": 8,
        }
        return cls(**{**sizes, **changes})

    @classmethod
    def base(cls, **changes: Any) -> "Wav2Vec2":
        """Base model of the paper: 94.4 M parameters."""
        return cls(**changes)

    @classmethod
    def large(cls, **changes: Any) -> "Wav2Vec2":
        """Large model of the paper, with the settings for 60,000 hours of audio: 315.4 M parameters."""
        sizes = {
            "dim": 1024,
            "num_layers": 24,
            "num_heads": 16,
            "feedforward_dim": 4096,
            "norm_first": True,
            "extractor_norm": "layer",
            "extractor_bias": True,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "input_dropout": 0.0,
            "feature_dropout": 0.0,
            "layer_drop": 0.0,
            "extractor_gradient": 1.0,
        }
        return cls(**{**sizes, **changes})

    @classmethod
    def base_hourglass(cls, factor: int = 4, **changes: Any) -> "Wav2Vec2":
        """NVIDIA's Base model with an hourglass: 2 layers, 8 layers at 1/`factor` of the frame rate, 2 layers."""
        return cls(**{"hourglass": Hourglass(2, 8, factor, 2), **changes})

    @property
    def feature_dim(self) -> int:
        """Number of values of a frame before the projection."""
        return self.extractor[-1].channels if self.extractor else self.num_features

    def check(self, front_end: FrontEnd) -> None:
        if self.extractor and not isinstance(front_end, Waveform):
            raise ValueError(
                f"the front-end is {type(front_end).__name__}, expected Waveform with an extractor: use "
                "presets.wav2vec2()"
            )
        if front_end.num_features != self.num_features:
            raise ValueError(
                f"encoder.num_features is {self.num_features}, but frames of the front-end have "
                f"{front_end.num_features} values: set both to the same number"
            )

    def depths(self, path: str) -> tuple[int, ...]:
        """Depths: 0 for the extractor and the other modules before the layers, then 1 and more for the layers.

        The modules that change the frame rate and the last norm have the depth of the layer before them.
        """
        start = 1
        for name, num in self.stacks().items():
            if path.startswith(f"{name}/"):
                return tuple(range(start, start + num))
            start += num
            if (name, path.split("/")[0]) in (("before", "shorten"), ("middle", "lengthen")):
                return (start - 1,)
        return (start - 1,) if self.norm_first and path.startswith("norm/") else (0,)

    def num_depths(self) -> int:
        return 1 + sum(self.stacks().values())

    def stacks(self) -> dict[str, int]:
        """Names of the stacks of layers, with the number of layers of each."""
        if not self.hourglass:
            return {"transformer": self.num_layers}
        return {"before": self.hourglass.before, "middle": self.hourglass.middle, "after": self.hourglass.after}

    def tapped_layers(self) -> list[int]:
        """Indices of the layers that can have taps: those at the full frame rate."""
        if not self.hourglass:
            return list(range(self.num_layers))
        glass = self.hourglass
        return [*range(glass.before), *range(glass.before + glass.middle, self.num_depths() - 1)]

    def model_axis_rules(self) -> ModelRules:
        return (*ATTENTION, (r".*/layers/in/(kernel|bias)", -1), (r".*/layers/out/kernel", -2))

    def build(self, *, dtype: DTypeLike) -> "Wav2Vec2Encoder":
        return Wav2Vec2Encoder(self, dtype)


class Wav2Vec2Encoder(MaskingEncoder):
    """wav2vec 2.0 encoder, samples [B S 1], or features [B T num_features] without an extractor, to [B T dim]."""

    settings: Wav2Vec2
    dtype: DTypeLike = jnp.float32

    def draw_mask(
        self, key: PRNGKeyArray, lengths: Int[Array, " B"], size: int, *, sub_batches: int
    ) -> Bool[Array, "B T"]:
        lengths, size = self.output_length(lengths), self.output_length(size)
        return self.settings.time_mask(key, lengths, size, sub_batches=sub_batches)

    @nn.compact
    def __call__(
        self, frames: Frames, *, step: Int[Array, ""] | None, mask: Bool[Array, "B T"] | None = None
    ) -> Encoded:
        settings = self.settings
        lengths = self.output_length(frames.lengths)
        x, taps = self._features(frames, lengths, step)
        shared = {}
        if settings.quantized_input:
            quantizer = GumbelQuantizer(settings.input_quantizer, settings.input_codes_dim, name="input_quantizer")
            x = quantizer(Dropout(settings.input_dropout)(x, step=step), step=step).values.astype(self.dtype)
            shared = {QUANTIZER: quantizer.variables["params"]}
        if settings.projected:
            x = Linear(settings.dim, dtype=self.dtype, name="project")(x)
        x = x if settings.quantized_input else Dropout(settings.input_dropout)(x, step=step)
        x = zero_padding(self._masked(x, mask, step), lengths)
        x += PositionalConv(settings.position_kernel, settings.position_groups, name="positions")(x)
        norm = layer_norm(1e-5, name="norm")
        x = x if settings.norm_first else norm(x).astype(x.dtype)
        x, inner = self._layers(Dropout(settings.dropout)(x, step=step), lengths, step)
        x = norm(x).astype(x.dtype) if settings.norm_first else x
        taps |= dict(zip((f"layer_{number}" for number in settings.tapped_layers()), inner, strict=False))
        named = {name: Frames(taps[name], lengths) for name in settings.taps}
        return Encoded(frames=Frames(x, lengths), taps=named, mask=mask, shared=shared)

    def output_length(self, num_frames: Any) -> Any:
        return extracted(num_frames, self.settings.extractor)

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        return dict.fromkeys(self.settings.taps, self.output_length(num_frames))

    def _features(
        self, frames: Frames, lengths: Int[Array, " B"], step: Step
    ) -> tuple[Float[Array, "B T D"], dict[str, Array]]:
        """Computes the normalised features, and the taps before the layers."""
        settings, x, taps = self.settings, frames.values, {}
        if settings.extractor:
            extractor = ConvExtractor(
                settings.extractor, settings.extractor_norm, settings.extractor_bias, self.dtype, name="extractor"
            )
            x = extractor(x, frames.lengths)
            x = (
                scale_gradient(x, settings.extractor_gradient)
                if settings.extractor_gradient
                else jax.lax.stop_gradient(x)
            )
            taps["extractor"] = x.astype(jnp.float32)
        elif x.shape[-1] != settings.num_features:
            raise ValueError(f"frames have {x.shape[-1]} values, expected num_features, {settings.num_features}")
        x = layer_norm(1e-5, name="feature_norm")(x).astype(self.dtype)
        taps["features"] = Dropout(settings.feature_dropout)(x, step=step)
        return x, taps

    def _masked(self, x: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None, step: Step) -> Float[Array, "B T D"]:
        """Replaces the frames of `mask` with a learned vector and, in training, sets random channels to 0."""
        hidden = self.param("mask", nn.initializers.uniform(1.0), x.shape[-1:]).astype(x.dtype)
        channels = self.settings.channel_mask
        silent = jnp.zeros((x.shape[0], x.shape[-1]), bool)
        if step is not None and channels.probability:
            silent = channels(self.make_rng("mask"), jnp.full(len(x), x.shape[-1]), x.shape[-1])
        silent = silent[:, None]
        if self.settings.channel_mask_first:
            x = jnp.where(silent, 0, x)
        if mask is not None:
            x = jnp.where(mask[..., None], hidden[None, None], x)
        return x if self.settings.channel_mask_first else jnp.where(silent, 0, x)

    def _layers(
        self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], step: Step
    ) -> tuple[Float[Array, "B T D"], list[Float[Array, "B T D"]]]:
        """Applies the layers."""
        glass, stacks, num_frames = self.settings.hourglass, self.settings.stacks(), x.shape[1]
        if not glass:
            x, inner = self._stack("transformer", stacks["transformer"])(x, lengths, step=step)
            return x, [*inner] if inner is not None else []
        inner_before = inner_after = None
        if glass.before:
            x, inner_before = self._stack("before", glass.before)(x, lengths, step=step)
        short = zero_padding(x, lengths) if self.settings.mask_padding else x
        short = Shorten(glass.factor, glass.resample, self.dtype, name="shorten")(short)
        short, _ = self._stack("middle", glass.middle)(short, -(-lengths // glass.factor), step=step)
        x += Lengthen(glass.factor, glass.resample, self.dtype, name="lengthen")(short, num_frames)
        if glass.after:
            x, inner_after = self._stack("after", glass.after)(x, lengths, step=step)
        return x, [layer for inner in (inner_before, inner_after) if inner is not None for layer in inner]

    def _stack(self, name: str, num_layers: int) -> "Transformer":
        return Transformer(self.settings, num_layers, self.dtype, name=name)


class Transformer(nn.Module):
    """Stack of Transformer layers."""

    settings: Wav2Vec2
    num_layers: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], lengths: Int[Array, " B"], *, step: Step
    ) -> tuple[Float[Array, "B T D"], Float[Array, "L B T D"] | None]:
        """Returns the output of the last layer, and the outputs of all layers (None without taps of layers)."""
        stack = layer_stack(TransformerLayer, self.num_layers, self.settings.remat)
        layers = stack(self.settings, self.dtype, name="layers")
        x, inner = layers(x, LayerInputs(length_mask(lengths, x.shape[1])[:, None], lengths, step))
        return x, inner


class TransformerLayer(nn.Module):
    """Transformer layer: attention and a feed-forward module, each with a norm and a residual connection.

    Training skips the layer in some calls (LayerDrop). The signature is that of a body of `nn.scan`.

    Source: `TransformerSentenceEncoderLayer` in fairseq/models/wav2vec/wav2vec2.py at commit 3d262bb2.
    """

    settings: Wav2Vec2
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], inputs: LayerInputs
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"] | None]:
        x = unless_left_out(
            self, lambda layer, x: layer.transformed(x, inputs), x, rate=self.settings.layer_drop, step=inputs.step
        )
        return x, x if any(tap.startswith("layer_") for tap in self.settings.taps) else None

    @nn.nowrap
    def transformed(self, x: Float[Array, "B T D"], inputs: LayerInputs) -> Float[Array, "B T D"]:
        """Computes the layer's output without LayerDrop."""
        settings, step = self.settings, inputs.step
        attention = MultiHeadAttention(
            settings.num_heads,
            settings.attention_dropout,
            settings.rotary,
            settings.fused_attention,
            self.dtype,
            name="attention",
        )
        y = normed("attention_norm", x) if settings.norm_first else x
        x += Dropout(settings.dropout)(attention(y, inputs.allowed, step=step), step=step)
        x = x if settings.norm_first else normed("attention_norm", x)
        y = normed("norm", x) if settings.norm_first else x
        y = ACTIVATIONS[settings.activation](self._linear("in", settings.hidden_dim, y))
        y = self._linear("out", x.shape[-1], Dropout(settings.activation_dropout)(y, step=step))
        x += Dropout(settings.dropout)(y, step=step)
        return x if settings.norm_first else normed("norm", x)

    def _linear(self, name: str, width: int, x: Float[Array, "B T D"]) -> Float[Array, "B T _"]:
        return Linear(width, deviation=INITIAL_DEVIATION, dtype=self.dtype, name=name)(x)

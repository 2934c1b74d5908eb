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
from jaxtyping import Array, Int

from asr_jax.core.batch import Encoded, Frames
from asr_jax.core.settings import PositiveFloat, PositiveInt, ShareBelow1, between, settings
from asr_jax.core.sharding import ModelRules
from asr_jax.models.encoder import Encoder, EncoderOfMels, LayeredEncoder
from asr_jax.nn.model_axis import FEED_FORWARD
from asr_jax.nn.zipformer.layer import StackSizes, ZipformerPolicy
from asr_jax.nn.zipformer.stack import ZipformerStack, feature_masks, layer_skip_rates, to_width, widest
from asr_jax.nn.zipformer.subsampling import ConvEmbedding, Downsample, embedding_length

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
class Zipformer(LayeredEncoder, EncoderOfMels):
    """Settings of Zipformer, with tuples of one value per stack. The defaults are the medium size."""

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
    chunk_frames: PositiveInt | None = None
    """Length of a chunk in frames of the embedding. Must be a multiple of every downsampling. Requires causal. None:
    one chunk."""
    left_context_frames: PositiveInt | None = None
    """Left context of attention before a chunk in frames of the embedding, rounded down to whole chunks, at least one.
    Requires chunk_frames. None: unlimited."""
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
        num_stacks, chunk, context = len(self.downsampling), self.chunk_frames, self.left_context_frames
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
        if chunk is not None and not self.causal:
            yield f"chunk_frames is {chunk}: expected None without causal"
        if chunk is not None and any(chunk % factor for factor in self.downsampling):
            yield f"chunk_frames is {chunk}: expected a multiple of each downsampling, {self.downsampling}"
        if context is not None and chunk is None:
            yield f"left_context_frames is {context}: expected None without chunk_frames"

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

        Args:
            changes: Other fields.

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
        chunk, context = self.chunk_frames, self.left_context_frames
        left_chunks = None if chunk is None or context is None else max(context // chunk, 1)
        stacks = []
        for values in zip(*(getattr(self, name) for name in PER_STACK), strict=True):
            sizes = dict(zip(StackSizes.__dataclass_fields__, values, strict=False))
            chunk_frames = chunk and chunk // sizes["downsampling"]
            stacks.append(StackSizes(**sizes, chunk_frames=chunk_frames, left_chunks=left_chunks))
        return stacks

    def policy(self, dtype: DTypeLike) -> ZipformerPolicy:
        """Settings that all stacks share."""
        return ZipformerPolicy(
            positions_dim=self.positions_dim,
            dropout=(self.dropout_start, self.dropout_end),
            causal=self.causal,
            mask_padding=self.mask_padding,
            regularise=self.regularise,
            skip=self.skip,
            remat=self.remat,
            dtype=dtype,
        )


class ZipformerEncoder(Encoder):
    """Zipformer encoder, [B T num_mels] to [B S max(dims)] with S = output_length(T).

    By default it divides the frame rate by 4, such as from 100 Hz to 25 Hz.
    """

    settings: Zipformer
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        settings, policy = self.settings, self.settings.policy(self.dtype)
        settings.check_frames(frames.values)
        batches = None if step is None else step * jnp.float32(settings.batches_per_update)
        embed = ConvEmbedding(
            settings.dims[0],
            settings.embed_channels,
            policy.dropout,
            mask_padding=policy.mask_padding,
            regularise=policy.regularise,
            skip=policy.skip,
            dtype=self.dtype,
            name="embed",
        )
        x = embed(frames.values, frames.lengths, step=batches)
        lengths = embedding_length(frames.lengths)
        inner, outputs = {"embed": x}, []
        masks = feature_masks(
            self.make_rng("dropout") if policy.skip and step is not None else None,
            len(x),
            widths=settings.dims,
            unmasked=settings.unmasked_dims,
            dtype=self.dtype,
        )
        for number, (sizes, feature_mask) in enumerate(zip(settings.stacks(), masks, strict=True)):
            skip_rates = layer_skip_rates(number, len(masks), sizes, step=batches)
            stack = ZipformerStack(sizes, policy, name=f"stack_{number}")
            x = to_width(x, sizes.width)
            x = stack(x, lengths, skip_rates=skip_rates, feature_mask=feature_mask, step=batches)
            inner[f"stack_{number}"] = x
            outputs.append(x)
        x = widest(outputs)
        if settings.output_downsampling > 1:
            x = Downsample(settings.output_downsampling, policy.mask_padding, name="downsample")(x, lengths)
        tap_lengths = self.tap_lengths(frames.lengths)
        taps = {name: Frames(inner[name], tap_lengths[name]) for name in settings.taps}
        return Encoded(frames=Frames(x, self.output_length(frames.lengths)), taps=taps)

    def output_length(self, num_frames: Any) -> Any:
        return -(-embedding_length(num_frames) // self.settings.output_downsampling)

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        return dict.fromkeys(self.settings.taps, embedding_length(num_frames))

"""Zipformer: an encoder whose stacks of layers work at different frame rates.

Source: Yao et al. 2023, "Zipformer: A faster and better encoder for automatic speech recognition" (arXiv:2310.11230);
icefall's egs/librispeech/ASR/zipformer at commit 36e0420c.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Encoded, Frames
from asr_jax.models.base import Encoder, EncoderSettings
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import kept
from asr_jax.nn.subsampling import ConvEmbedding, Downsample, embedding_length
from asr_jax.nn.zipformer_layer import Policy, StackSizes, ZipformerStack

WARM_UP_BATCHES = 4000.0
MASK_FEATURES = 0.125


@dataclass(frozen=True)
class Zipformer(EncoderSettings):
    """Sizes and training behaviour. Fields that are tuples have a value per stack; the defaults are the medium size."""

    num_mels: int = 80
    """Mel bins of the input; at least 7."""
    embed_channels: tuple[int, int, int] = (8, 32, 128)
    """Channels of the embedding's three convolutions."""
    downsampling: tuple[int, ...] = (1, 2, 4, 8, 4, 2)
    """Frame rate of each stack: the embedding's (half of the input's) divided by this."""
    dims: tuple[int, ...] = (192, 256, 384, 512, 384, 256)
    """Width of each stack; the output has the largest."""
    num_layers: tuple[int, ...] = (2, 2, 3, 4, 3, 2)
    """Layers of each stack."""
    unmasked_dims: tuple[int, ...] = (192, 192, 256, 256, 256, 192)
    """The first channels, which are never masked; of the others, whole rows are masked at random while training."""
    num_heads: tuple[int, ...] = (4, 4, 4, 8, 4, 4)
    """Attention heads."""
    query_dims: tuple[int, ...] = (32,) * 6
    """Width of queries and keys, per head."""
    value_dims: tuple[int, ...] = (12,) * 6
    """Width of values, per head."""
    position_dims: tuple[int, ...] = (4,) * 6
    """Width of what a query and a relative position are compared by, per head."""
    feedforward_dims: tuple[int, ...] = (512, 768, 1024, 1536, 1024, 768)
    """Hidden width of the second feed-forward module; the first has 3/4 of it, the third 5/4."""
    kernel_sizes: tuple[int, ...] = (31, 31, 15, 15, 15, 31)
    """Taps of the depthwise convolutions, odd."""
    positions_dim: int = 48
    """Width of the encoding of relative positions; even."""
    output_downsampling: int = 2
    """Frame rate of the output: the embedding's divided by this. 1 keeps it."""
    dropout_start: float = 0.3
    """Dropout of feed-forward modules and of the embedding at the first update ..."""
    dropout_end: float = 0.1
    """... and after 20000 batches of the peer, linear between."""
    causal: bool = False
    """Convolutions that see no frame beyond their chunk, for streaming: with parameters of their own."""
    chunk_frames: int | None = None
    """With `causal`, frames of the embedding that see each other; a multiple of every downsampling. None: all."""
    left_context_frames: int | None = None
    """With `chunk_frames`, frames before a chunk that it attends to, in whole chunks, at least one. None: all."""
    batches_per_update: float = 1.0
    """Batches of the peer (about 600 s of audio each) that one update counts for in the published schedules of dropout,
    skipping and regularisers, which run over 4000 to 50000 batches."""
    skip: bool = True
    """Skip layers, modules, positions and features at random while training, as published."""
    regularise: bool = True
    """Balancer and Whitener: regularisers that act on gradients alone."""
    mask_padding: bool = True
    """An utterance gives the same output alone as in a padded batch. Without it, padding enters exactly as it does in
    the peer's code."""
    remat: bool = False
    """Compute each layer's inner values again in the backward pass instead of keeping them: slower, less memory."""
    taps: tuple[str, ...] = ()
    """Inner outputs to give to heads: "embed", "stack_0", ... at the embedding's rate."""

    def __post_init__(self) -> None:
        num_stacks = len(self.downsampling)
        per_stack = ("dims", "num_layers", "unmasked_dims", "num_heads", "query_dims", "value_dims", "position_dims")
        problems = [
            f"{name} has {len(getattr(self, name))} values, expected {num_stacks}, one per stack of downsampling"
            for name in (*per_stack, "feedforward_dims", "kernel_sizes")
            if len(getattr(self, name)) != num_stacks
        ]
        allowed_taps = {"embed", *(f"stack_{i}" for i in range(num_stacks))}
        checks = {
            f"num_mels is {self.num_mels}, expected at least 7": self.num_mels >= 7,
            f"positions_dim is {self.positions_dim}, expected an even number": self.positions_dim % 2 == 0,
            f"kernel_sizes are {self.kernel_sizes}, expected odd ones": all(k % 2 for k in self.kernel_sizes),
            f"unmasked_dims are {self.unmasked_dims}, expected none above dims {self.dims}": all(
                u <= d for u, d in zip(self.unmasked_dims, self.dims, strict=False)
            ),
            f"chunk_frames is {self.chunk_frames} without causal": self.causal or self.chunk_frames is None,
            f"chunk_frames is {self.chunk_frames}, expected a multiple of each of {self.downsampling}": all(
                (self.chunk_frames or 0) % factor == 0 for factor in self.downsampling
            ),
            f"taps are {self.taps}, expected some of {sorted(allowed_taps)}": allowed_taps >= set(self.taps),
            f"batches_per_update is {self.batches_per_update}, expected more than 0": self.batches_per_update > 0,
        }
        problems += [problem for problem, good in checks.items() if not good]
        if problems:
            raise ValueError("; ".join(problems))

    @classmethod
    def small(cls, **changes: Any) -> "Zipformer":
        """Zipformer-S of the paper's table 2: 22.1 M parameters with a CTC head of 500 tokens."""
        return cls(
            **{
                "dims": (192, 256, 256, 256, 256, 256),
                "num_layers": (2,) * 6,
                "unmasked_dims": (192,) * 6,
                "feedforward_dims": (512, 768, 768, 768, 768, 768),
                **changes,
            }
        )

    @classmethod
    def medium(cls, **changes: Any) -> "Zipformer":
        """Zipformer-M of the paper's table 2: 64.3 M parameters with a CTC head of 500 tokens."""
        return cls(**changes)

    @classmethod
    def large(cls, **changes: Any) -> "Zipformer":
        """Zipformer-L of the paper's table 2: 147.0 M parameters with a CTC head of 500 tokens."""
        return cls(
            **{
                "dims": (192, 256, 512, 768, 512, 256),
                "num_layers": (2, 2, 4, 5, 4, 2),
                "unmasked_dims": (192, 192, 256, 320, 256, 192),
                "feedforward_dims": (512, 768, 1536, 2048, 1536, 768),
                **changes,
            }
        )

    def build(self, *, dtype: DTypeLike) -> "ZipformerEncoder":
        return ZipformerEncoder(self, dtype)

    def stacks(self) -> list[StackSizes]:
        """The sizes of each stack."""
        per_stack = zip(
            self.dims,
            self.num_layers,
            self.downsampling,
            self.num_heads,
            self.query_dims,
            self.position_dims,
            self.value_dims,
            self.feedforward_dims,
            self.kernel_sizes,
            strict=True,
        )
        return [StackSizes(*values, *self._chunks(values[2])) for values in per_stack]

    def _chunks(self, factor: int) -> tuple[int | None, int | None]:
        """Frames of a chunk at 1/`factor` of the rate, and how many chunks are seen before it."""
        if self.chunk_frames is None:
            return None, None
        context = self.left_context_frames
        return self.chunk_frames // factor, None if context is None else max(context // self.chunk_frames, 1)

    def policy(self, dtype: DTypeLike) -> Policy:
        """What is the same for all stacks."""
        return Policy(
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
    """[B T num_mels] to [B S max(dims)], S = output_length(T): 25 Hz from 100 Hz by default."""

    settings: Zipformer
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, frames: Frames, *, step: Int[Array, ""] | None) -> Encoded:
        settings, policy = self.settings, self.settings.policy(self.dtype)
        batches = None if step is None else step * jnp.float32(settings.batches_per_update)
        embed = ConvEmbedding(
            settings.dims[0],
            settings.embed_channels,
            policy.dropout,
            mask_padding=settings.mask_padding,
            regularise=settings.regularise,
            dtype=self.dtype,
            name="embed",
        )
        x = embed(frames.values, frames.lengths, step=batches)
        lengths = embedding_length(frames.lengths)
        inner = {"embed": x}
        feature_masks = self._feature_masks(len(x), step)
        for number, sizes in enumerate(settings.stacks()):
            stack = ZipformerStack(sizes, policy, name=f"stack_{number}")
            x = stack(
                _to_width(x, sizes.width),
                lengths,
                skip_rates=self._skip_rates(number, batches),
                feature_mask=feature_masks[number],
                step=batches,
            )
            inner[f"stack_{number}"] = x
        taps = {name: Frames(inner[name], lengths) for name in settings.taps}
        x = _widest([inner[f"stack_{number}"] for number in range(len(settings.dims))])
        if settings.output_downsampling > 1:
            x = Downsample(settings.output_downsampling, settings.mask_padding, name="downsample")(x, lengths)
        return Encoded(frames=Frames(x, self.output_length(frames.lengths)), taps=taps)

    def output_length(self, num_frames: Any) -> Any:
        return -(-embedding_length(num_frames) // self.settings.output_downsampling)

    def _feature_masks(self, num_rows: int, step: Step) -> list[Float[Array, "B 1 D"] | None]:
        """Per stack, 0 for the channels that a row goes without: the same rows in every stack, so that the masks agree.

        An eighth of the rows goes without all channels beyond the unmasked ones, another eighth without half of them.
        """
        if step is None or not self.settings.skip:
            return [None] * len(self.settings.dims)
        drawn = kept(self.make_rng("dropout"), MASK_FEATURES, (2, num_rows, 1, 1))
        first, second = drawn[0], drawn[0] & drawn[1]
        masks = []
        for width, unmasked in zip(self.settings.dims, self.settings.unmasked_dims, strict=True):
            channel = jnp.arange(width)
            middle = unmasked + (width - unmasked) // 2
            keep = (channel < unmasked) | ((channel < middle) & first) | second
            masks.append(keep.astype(self.dtype))
        return masks

    def _skip_rates(self, number: int, batches: Step) -> Float[Array, " L"]:
        """How often a row skips each layer of a stack: half the time, until the stacks before it have warmed up."""
        num_layers, num_stacks = self.settings.num_layers[number], len(self.settings.dims)
        if batches is None:
            return jnp.zeros(num_layers)
        per_stack = WARM_UP_BATCHES / (num_stacks + 1)
        starts = per_stack * (number + 1 + jnp.arange(num_layers) / num_layers)
        end = 0.035 * self.settings.downsampling[number] ** 0.5
        return 0.5 + (end - 0.5) * jnp.clip((batches - starts) / (per_stack / num_layers), 0.0, 1.0)


def _to_width(x: Float[Array, "B T D"], width: int) -> Float[Array, "B T E"]:
    """Channels cut off, or zeros added."""
    return jnp.pad(x[..., :width], ((0, 0), (0, 0), (0, max(width - x.shape[-1], 0))))


def _widest(outputs: list[Float[Array, "B T _"]]) -> Float[Array, "B T D"]:
    """The channels of the last output, then those that only earlier ones have, each from the latest."""
    x = outputs[-1]
    for earlier in reversed(outputs[:-1]):
        x = jnp.concatenate([x, earlier[..., x.shape[-1] :]], axis=-1)
    return x

"""A stack of Zipformer layers at one frame rate, and functions that join stacks of different widths.

Source: Yao et al. 2023 (arXiv:2310.11230), figure 1; `Zipformer2Encoder`, `DownsampledZipformer2Encoder` and parts of
`Zipformer2` in icefall's egs/librispeech/ASR/zipformer/zipformer.py, with their schedules.
"""

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from asr_jax.core.batch import length_mask
from asr_jax.nn.layer_stack import LayerInputs, layer_stack
from asr_jax.nn.positions import compact_positions
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Regulariser, kept_of_rows
from asr_jax.nn.zipformer.layer import Bypass, StackSizes, ZipformerLayer, ZipformerPolicy
from asr_jax.nn.zipformer.subsampling import Downsample, upsample

WARM_UP_BATCHES = 4000.0
POSITION_DROPOUT = 0.15
MASKED_FEATURES = 0.125


class ZipformerStack(nn.Module):
    """Stack of layers at 1/`downsampling` of the input's frame rate.

    The output is upsampled to the input's frame rate and combined with the input by a learned bypass.
    """

    sizes: StackSizes
    policy: ZipformerPolicy

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        lengths: Int[Array, " B"],
        *,
        skip_rates: Float[Array, " L"],
        feature_mask: Float[Array, "B 1 D"] | None,
        step: Step,
    ) -> Float[Array, "B T D"]:
        """Applies the layers.

        Args:
            lengths: Length of each row in frames.
            skip_rates: Probability that a row skips each layer in training.
            feature_mask: 0 for the masked channels of each row, otherwise 1. None: no masks.

        Returns:
            Output frames at the input's frame rate.
        """
        factor, original = self.sizes.downsampling, x
        if factor > 1:
            x = Downsample(factor, self.policy.mask_padding, name="downsample")(x, lengths)
            lengths = -(-lengths // factor)
        positions, allowed = self._positions(x.shape[1], step), self._allowed(x.shape[1], lengths)
        x = x if feature_mask is None else x * feature_mask
        layers = layer_stack(ZipformerLayer, self.sizes.num_layers, self.policy.remat, in_axes=(0, nn.broadcast))(
            self.sizes, self.policy, name="layers"
        )
        x, _ = layers(x, skip_rates, LayerInputs(allowed, lengths, step, positions, feature_mask=feature_mask))
        if factor == 1:
            return x
        regularise = Regulariser.of(self, step=step, use=self.policy.regularise)
        x = upsample(x, factor=factor, num_frames=original.shape[1])
        return Bypass(name="bypass")(original, x, regularise=regularise)

    def _positions(self, num_frames: int, step: Step) -> Float[Array, "R P"]:
        positions = jnp.asarray(compact_positions(num_frames, self.policy.positions_dim), self.policy.dtype)
        if step is None or not self.policy.skip:
            return positions
        return nn.Dropout(POSITION_DROPOUT)(positions, deterministic=False)  # shared by the rows

    def _allowed(self, num_frames: int, lengths: Int[Array, " B"]) -> Bool[Array, "B #T T"]:
        """Keys (last axis) within the row's length and, with chunks, in the query's chunk or its left context."""
        keys = length_mask(lengths, num_frames)[:, None, :]
        if self.sizes.chunk_frames is None:
            return keys
        chunk = jnp.arange(num_frames) // self.sizes.chunk_frames
        behind = chunk[:, None] - chunk[None, :]
        most = num_frames if self.sizes.left_chunks is None else self.sizes.left_chunks
        return keys & ((behind >= 0) & (behind <= most))[None]


def layer_skip_rates(number: int, num_stacks: int, sizes: StackSizes, *, step: Step) -> Float[Array, " L"]:
    """Probability that a row skips each layer of a stack in training.

    It is 0.5 at the start and decreases linearly to 0.035 · √downsampling during the layer's part of the warm-up. The
    warm-up has num_stacks + 1 equal parts. The first belongs to the embedding, and each of the others to a stack, whose
    layers divide it equally.

    Args:
        number: Index of the stack, from 0.

    Returns:
        Probability for each layer of the stack; 0 in evaluation.
    """
    if step is None:
        return jnp.zeros(sizes.num_layers)
    part = WARM_UP_BATCHES / (num_stacks + 1)
    starts = part * (number + 1 + jnp.arange(sizes.num_layers) / sizes.num_layers)
    end = 0.035 * sizes.downsampling**0.5
    return 0.5 + (end - 0.5) * jnp.clip((step - starts) / (part / sizes.num_layers), 0.0, 1.0)


def feature_masks(
    key: PRNGKeyArray | None, num_rows: int, *, widths: tuple[int, ...], unmasked: tuple[int, ...], dtype: DTypeLike
) -> list[Float[Array, "B 1 _"] | None]:
    """Draws masks of channels, which are consistent across stacks: the same rows are masked in every stack.

    On average, 1/8 of the rows have all maskable channels masked, and about another 1/9 have the upper half of them
    masked.

    Args:
        key: Random key. None: no masks.
        unmasked: Number of channels of each stack that are never masked.

    Returns:
        Mask of each stack, 0 for masked channels and otherwise 1; None without a key.
    """
    if key is None:
        return [None] * len(widths)
    drawn = kept_of_rows(key, MASKED_FEATURES, (num_rows, 2, 1))
    first, second = drawn[:, :1], drawn[:, :1] & drawn[:, 1:]
    masks: list[Float[Array, "B 1 _"] | None] = []
    for width, always in zip(widths, unmasked, strict=True):
        channel = jnp.arange(width)[None, None]
        middle = always + (width - always) // 2
        masks.append(((channel < always) | ((channel < middle) & first) | second).astype(dtype))
    return masks


def to_width(x: Float[Array, "B T D"], width: int) -> Float[Array, "B T E"]:
    """Truncates the channels to `width`, or pads them with zeros."""
    return jnp.pad(x[..., :width], ((0, 0), (0, 0), (0, max(width - x.shape[-1], 0))))


def widest(outputs: list[Float[Array, "B T _"]]) -> Float[Array, "B T D"]:
    """Returns the last output, extended by the further channels of wider earlier outputs, each from the latest one."""
    x = outputs[-1]
    for earlier in reversed(outputs[:-1]):
        x = jnp.concatenate([x, earlier[..., x.shape[-1] :]], axis=-1)
    return x

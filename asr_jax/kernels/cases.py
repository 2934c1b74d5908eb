"""Operations of the kernels with random arguments, for their tests, benchmarks and the check of a GPU.

Arguments are NumPy arrays of 32 bits. Rows have lengths of all kinds, and padding is NaN where it may be arbitrary.
With `whole`, all rows are full.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from asr_jax.kernels.bias_norm.api import bias_norm
from asr_jax.kernels.ctc_sweep.api import ctc_sweep
from asr_jax.kernels.ctc_viterbi.api import ctc_viterbi
from asr_jax.kernels.depthwise_conv.api import depthwise_conv
from asr_jax.kernels.glu.api import glu
from asr_jax.kernels.lattice_sweep.api import lattice_sweep
from asr_jax.kernels.lattice_sweep.reference import Start
from asr_jax.kernels.log_space import NEVER
from asr_jax.kernels.masked_batch_norm.api import masked_batch_norm
from asr_jax.kernels.masking import api as masking
from asr_jax.kernels.pairwise_downsample.api import pairwise_downsample
from asr_jax.kernels.relative_attention.api import relative_attention
from asr_jax.kernels.relative_shift.api import relative_shift
from asr_jax.kernels.swoosh import api as swoosh
from asr_jax.kernels.transducer_joint.api import transducer_joint

Arrays = tuple[Any, ...]
REFERENCE, REFERENCE_AND_XLA = ("reference",), ("reference", "xla")


class Case(NamedTuple):
    """An operation with its arguments."""

    kernel: str
    """Folder of the kernel."""
    function: Callable[..., Any]
    """Function of the arguments, and of the keyword `implementation`."""
    arguments: Arrays
    num_gradients: int
    """Number of the first arguments that have gradients. 0: a recursion of losses, which is computed in float32, or a
    mask."""
    portable: tuple[str, ...] = REFERENCE
    """Implementations that run on all devices."""

    def in_dtype(self, dtype: Any) -> "Case":
        """Returns the case with its arguments that have gradients in another dtype."""
        number = self.num_gradients
        low = [np.asarray(each).astype(dtype) for each in self.arguments[:number]]
        return self._replace(arguments=(*low, *self.arguments[number:]))


class Sizes(NamedTuple):
    """Sizes of the arguments."""

    rows: int = 8
    frames: int = 512
    channels: int = 512
    heads: int = 8
    """Heads of attention, which must divide the channels."""
    labels: int = 64
    """Labels of each row, for the recursions of losses and for the joint network."""
    vocab_size: int = 1024
    """Labels of the vocabulary, for the joint network, whose frames are a quarter as many."""
    taps: int = 31


def cases(sizes: Sizes, *, whole: bool = False) -> dict[str, Case]:
    """Returns all operations by their names."""
    rows, frames, channels, heads, labels, vocab_size, taps = sizes
    width, shapes = channels // heads, (rows, frames, channels)
    x, _, lengths, bias, gain, *_ = norms(*shapes, whole=whole)
    convolved = partial(depthwise_conv, padding=((taps - 1) // 2, taps // 2))
    attend = partial(relative_attention, scale=width**-0.5)
    sweep = partial(lattice_sweep, spans=(1, 1), moves=(0, 1))
    transduced = partial(transducer_joint, blank_id=0, activation="tanh")
    of_heads, of_joint = (width,) * 3, (-(-frames // 4), labels + 1, channels, vocab_size)
    of_paths = paths(rows, frames, labels, 500, whole=whole)
    return small(*shapes, heads=heads, whole=whole) | {
        "depthwise_conv": Case("depthwise_conv", convolved, convolution(*shapes, taps), 2, REFERENCE_AND_XLA),
        "bias_norm": Case("bias_norm", bias_norm, (x, bias, np.float32(0.3)), 3),
        "masked_batch_norm": Case("masked_batch_norm", _batch_norm, (x, gain, bias, lengths), 3),
        "relative_attention": Case(
            "relative_attention", attend, attention(rows, frames, heads, *of_heads, whole=whole), 5, REFERENCE_AND_XLA
        ),
        "ctc_sweep": Case("ctc_sweep", ctc_sweep, ctc(frames, rows, labels, 2, whole=whole), 0),
        "lattice_sweep": Case("lattice_sweep", sweep, lattices(frames, rows, labels, 2, 2), 0),
        "ctc_viterbi": Case("ctc_viterbi", partial(ctc_viterbi, blank_id=0), of_paths, 0),
        "transducer_joint": Case(
            "transducer_joint", transduced, joint(rows, *of_joint, whole=whole), 4, REFERENCE_AND_XLA
        ),
    }


def _batch_norm(x: Any, gain: Any, bias: Any, lengths: Any, *, implementation: Any) -> Any:
    return masked_batch_norm(x, lengths, gain, bias, 1e-5, implementation)[0]


def small(rows: int, frames: int, channels: int, *, heads: int = 3, whole: bool = False) -> dict[str, Case]:
    """Returns the small operations. Frames of attention have a few keys more than queries, unless rows are whole."""
    random, extra = np.random.default_rng(frames), 0 if whole else 4
    lengths = random.integers(min(1, frames), frames + 1, rows).astype(np.int32)
    lengths[:2] = (0, frames)[:rows]
    if whole:
        lengths[:] = frames

    def array(*shape: int) -> Any:
        return random.normal(size=shape).astype(np.float32)

    x, padded = 4 * array(rows, frames, channels), array(rows, frames, channels)
    padded[np.arange(frames) >= lengths[:, None]] = np.nan
    update = array(*padded.shape)
    gated, gated_channels = array(rows, frames, 2 * channels), array(rows, 2 * channels, frames)
    scores = array(rows, heads, frames, max(2 * frames - 1 + extra, 0))
    keys: dict[str, Any] = {"num_queries": frames, "num_keys": frames + extra}
    names = ("swoosh_l", "swoosh_r", "shifted_swish_l", "shifted_swish_r")
    return {
        **{name: Case("swoosh", getattr(swoosh, name), (x,), 1) for name in names},
        "glu": Case("glu", glu, (gated,), 1),
        "glu of channels": Case("glu", partial(glu, axis=-2), (gated_channels,), 1),
        "relative_shift": Case("relative_shift", relative_shift, (scores,), 1),
        "pairwise_downsample": Case("pairwise_downsample", pairwise_downsample, (padded, array(2), lengths), 2),
        "mask_time": Case("masking", masking.mask_time, (padded, lengths), 1),
        "mask_channel_time": Case("masking", masking.mask_channel_time, (padded.swapaxes(1, 2), lengths), 1),
        "residual_add_mask_time": Case("masking", masking.residual_add_mask_time, (padded, update, lengths), 2),
        "sequence_mask": Case("masking", partial(masking.sequence_mask, num_frames=frames), (lengths,), 0),
        "padding_mask": Case("masking", partial(masking.padding_mask, num_frames=frames), (lengths,), 0),
        "attention_mask": Case("masking", partial(masking.attention_mask, **keys), (lengths,), 0),
        "attention_mask_4d": Case(
            "masking", partial(masking.attention_mask_4d, num_heads=heads, **keys), (lengths,), 0
        ),
    }


def convolution(rows: int, frames: int, channels: int, taps: int) -> Arrays:
    """Returns the input and the filters of a depthwise convolution over time."""
    return _normal(0, rows, frames, channels), _normal(1, taps, channels)


def norms(rows: int, frames: int, channels: int, *, whole: bool = False) -> Arrays:
    """Returns frames with a large mean, a cotangent, lengths (full, random, 0 in the last row) and five vectors."""
    random = np.random.default_rng(frames)
    x, dy = (random.normal(mean, 1, (rows, frames, channels)).astype(np.float32) for mean in (2, 0))
    lengths = random.integers(0, frames + 1, rows).astype(np.int32)
    lengths[-1:], lengths[:1] = 0, frames
    if whole:
        lengths[:] = frames
    return x, dy, lengths, *random.uniform(0.5, 2, (5, channels)).astype(np.float32)


def attention(
    rows: int, frames: int, heads: int, width: int, positions: int, values: int, *, whole: bool = False
) -> Arrays:
    """Returns queries, queries of positions, keys, values, offsets and lengths, of which the last one is 0.

    Args:
        width: Width of queries and keys of a head; `positions` and `values` are those of the others.
    """
    random = np.random.default_rng(frames)
    shapes = [(rows, frames, heads, each) for each in (width, positions, width, values)]
    of_offsets = (max(2 * frames - 1, 0), heads, positions)
    arrays = [random.normal(size=shape).astype(np.float32) for shape in (*shapes, of_offsets)]
    lengths = random.integers(min(1, frames), frames + 1, rows).astype(np.int32)
    lengths[-1:] = 0
    if rows > 2:
        lengths[0] = frames
    if whole:
        lengths[:] = frames
    return *arrays, lengths


def joint(rows: int, frames: int, positions: int, channels: int, vocab_size: int, *, whole: bool = False) -> Arrays:
    """Returns frames, predictions, weights, bias, labels, and numbers of frames and of labels: full in the last row.

    They are 0 in the first row of several.
    """
    random = np.random.default_rng(frames)
    shapes = [(rows, frames, channels), (rows, positions, channels), (channels, vocab_size), (vocab_size,)]
    arrays = [
        (scale * random.normal(size=shape)).astype(np.float32)
        for scale, shape in zip((1, 1, 0.3, 1), shapes, strict=True)
    ]
    labels = random.integers(0, vocab_size, (rows, positions - 1))
    lengths = random.integers(min(1, frames), frames + 1, rows), random.integers(0, positions, rows)
    for each, most in zip(lengths, (frames, positions - 1), strict=True):
        each[:1], each[-1:] = 0, most
        if whole:
            each[:] = most
    return *arrays, *(each.astype(np.int32) for each in (labels, *lengths))


def ctc(frames: int, rows: int, num_labels: int, directions: int, *, whole: bool = False) -> Arrays:
    """Returns emissions, the labels of each direction and their numbers. The first row has padding frames."""
    random = np.random.default_rng(frames)
    labels = random.integers(1, 4, (rows, num_labels)).astype(np.int32)
    lengths = random.integers(0, num_labels + 1, rows).astype(np.int32)
    if whole:
        lengths[:] = num_labels
    emissions = random.normal(-2, 2, (frames, rows, num_labels + 2)).astype(np.float32)
    emissions[..., -1] = emissions[..., 0]
    emissions[:, :, 1:-1][:, np.arange(num_labels)[None] >= lengths[:, None]] = NEVER
    padding = np.where(np.isin(np.arange(num_labels + 2), (0, num_labels + 1)), 0, NEVER)
    emissions[frames if whole else frames // 2 + 1 :, :1] = padding
    return emissions, np.stack([labels, labels[:, ::-1]])[:directions], lengths


def lattices(frames: int, rows: int, num_labels: int, directions: int, num_arcs: int) -> Arrays:
    """Returns the weights of each kind of arc, some of which are impossible, and the first nodes."""
    random, shape = np.random.default_rng(frames), (frames + num_labels + 1, directions, rows, num_labels + 1)
    weights = random.normal(-2, 2, (num_arcs, *shape)).astype(np.float32)
    weights[random.uniform(size=weights.shape) < 0.1] = NEVER
    column = random.integers(0, num_labels + 1, (directions, rows))
    diagonal: Any = random.integers(0, max(min(3, frames), 1), (directions, rows)).astype(np.int32)
    return tuple(weights), Start(diagonal, column[..., None] == np.arange(num_labels + 1))


def paths(rows: int, frames: int, num_labels: int, symbols: int, *, whole: bool = False) -> Arrays:
    """Returns log-probabilities, lengths, labels and their numbers. The first row is full, the last one has no frames.

    Log-probabilities are whole numbers, so that many paths are equally good, and some symbols are impossible.
    """
    random = np.random.default_rng(frames)
    log_probs = -random.integers(0, 3, (rows, frames, symbols)).astype(np.float32)
    log_probs[random.uniform(size=log_probs.shape) < 0.1] = -np.inf
    lengths, labels = random.integers(0, frames + 1, rows), random.integers(1, symbols, (rows, num_labels))
    label_lengths = random.integers(0, num_labels + 1, rows)
    lengths[:1], label_lengths[:1] = frames, min(num_labels, frames // 2)
    lengths[-1:] = 0
    if whole:
        lengths[:], label_lengths[:] = frames, num_labels
    labels = np.where(np.arange(num_labels)[None] < label_lengths[:, None], labels, 0)
    return log_probs, *(each.astype(np.int32) for each in (lengths, labels, label_lengths))


def _normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

"""Queries of Paraformer-v2: frames that a CTC path assigns to labels, averaged over each label."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Frames, length_mask
from asr_jax.core.shapes import DimSize
from asr_jax.losses.ctc_align import align

AlignmentMode = Literal["viterbi", "uniform", "greedy"]
"""Method that assigns frames to the labels of a text.

viterbi: the most probable path of CTC. uniform: labels and the blanks around them have equal numbers of frames. greedy:
the most likely label of each frame, whose runs may differ from the labels in kind and number.
"""

GATE_CENTRE, GATE_SLOPE = 0.55, 12.0
"""Probability of a frame's label at which the gate of the frame is 0.5, and the slope of the gate."""
BESIDE = 0.25
"""Target of the frames beside a boundary. The Rust trainer's documentation has it; its code has no such targets."""


class Runs(NamedTuple):
    """Runs of frames, one for each query."""

    query: Int[Array, "B T"]
    """Query that each frame belongs to; -1 for blanks and padding."""
    labels: Int[Array, "B T"]
    """Label of each frame; the blank for blanks and padding."""
    lengths: Int[Array, " B"]
    """Number of queries of each row."""


def runs_of_text(
    log_probs: Frames, labels: Int[Array, "B U"], label_lengths: Int[Array, " B"], *, mode: AlignmentMode, blank_id: int
) -> Runs:
    """Returns the frames of each label of a text. No gradient passes through them."""
    if mode == "greedy":
        return greedy_runs(log_probs, blank_id=blank_id)
    values, num_frames = jax.lax.stop_gradient(log_probs.values), log_probs.values.shape[1]
    place = jnp.arange(num_frames, dtype=jnp.int32)
    if mode == "viterbi":
        found = align(values, log_probs.lengths, labels, label_lengths, blank_id=blank_id)
        starts, ends = found.starts, found.ends
        inside = (starts[..., None] <= place[None, None]) & (place[None, None] < ends[..., None])
        query = jnp.max(jnp.where(inside, jnp.arange(labels.shape[1])[None, :, None], -1), axis=1)
    else:
        states = (2 * label_lengths + 1)[:, None]
        state = place[None] * states // jnp.maximum(log_probs.lengths, 1)[:, None]
        query = jnp.where((state % 2 == 1) & length_mask(log_probs.lengths, num_frames), state // 2, -1)
    chosen = jnp.take_along_axis(labels, jnp.maximum(query, 0), axis=1) if labels.shape[1] else query
    return Runs(query, jnp.where(query >= 0, chosen, blank_id), label_lengths)


def greedy_runs(log_probs: Frames, *, blank_id: int) -> Runs:
    """Returns the runs of equal labels among the most likely labels of all frames, without blanks."""
    is_there = length_mask(log_probs.lengths, log_probs.values.shape[1])
    path = jnp.where(is_there, jnp.argmax(jax.lax.stop_gradient(log_probs.values), axis=-1), blank_id)
    before = jnp.pad(path[:, :-1], ((0, 0), (1, 0)), constant_values=blank_id)
    is_label = path != blank_id
    number = jnp.cumsum(is_label & (path != before), axis=1)
    return Runs(jnp.where(is_label, number - 1, -1), path, jnp.max(number, axis=1, initial=0))


def members(runs: Runs, size: DimSize) -> Float[Array, "B U T"]:
    """Returns 1 for the frames of each of the first `size` queries, otherwise 0."""
    return (runs.query[:, None] == jnp.arange(size)[None, :, None]).astype(jnp.float32)


def mean_over(weights: Float[Array, "B U T"], values: Float[Array, "B T V"]) -> Float[Array, "B U V"]:
    """Returns the weighted means of frames; 0 for queries without frames."""
    total = jnp.sum(weights, axis=2, keepdims=True)
    shares = weights / jnp.where(total > 0, total, 1.0)
    return jnp.einsum("but,btv->buv", shares, values, precision=jax.lax.Precision.HIGHEST)


def spans(runs: Runs, size: DimSize) -> tuple[Int[Array, "B U"], Int[Array, "B U"]]:
    """Returns the first frame of each query, and the frame after its last one; 0 for queries without frames."""
    inside = members(runs, size) > 0
    place = jnp.arange(runs.query.shape[1], dtype=jnp.int32)[None, None]
    return jnp.argmax(inside, axis=2).astype(jnp.int32), jnp.max(jnp.where(inside, place + 1, 0), axis=2)


def gated_queries(
    shallow: Float[Array, "B T V"],
    final: Float[Array, "B T V"],
    runs: Runs,
    boundaries: Float[Array, "B T"],
    *,
    size: DimSize,
) -> tuple[Float[Array, "B U F"], Float[Array, "B U"]]:
    """Returns the features of each query of the enhanced Paraformer-v2, F = 2V + 4, and its confidence, from 0.05 to 1.

    Frames have weights that rise with the probability of their label. The features are the posteriors of both CTC
    heads, the confidence, the shallow head's probability of the label, and the probabilities of a boundary before and
    after it; uncertain boundaries amplify all of them.

    Source: `compress_confidence_gated_queries` in PositiveLoss/paraformer-v2-enhanced, src/paraformer_v2/
    better_model.py at commit 18b1ae9.

    Args:
        boundaries: Probability of a boundary after each frame.
        size: Number U of queries of the result.
    """
    inside = members(runs, size)
    of_label = [jnp.take_along_axis(each, runs.labels[..., None], axis=2)[..., 0] for each in (shallow, final)]
    confidence = 0.5 * (of_label[0] + of_label[1])
    weights = inside * (nn.sigmoid(GATE_SLOPE * (confidence - GATE_CENTRE)) + 0.05)[:, None]
    means = mean_over(inside, jnp.stack([confidence, of_label[0]], axis=-1))
    starts, ends = spans(runs, size)
    is_first = jnp.arange(size)[None] == 0
    left = jnp.where(is_first, 1.0, jnp.take_along_axis(boundaries, jnp.maximum(starts - 1, 0), axis=1))
    right = jnp.take_along_axis(boundaries, jnp.maximum(ends - 1, 0), axis=1)
    pooled = mean_over(weights, jnp.concatenate([shallow, final], axis=-1))
    features = jnp.concatenate([pooled, means, left[..., None], right[..., None]], axis=-1)
    amplified = features * (1.0 + 0.25 * (1.0 - left) + 0.25 * (1.0 - right))[..., None]
    return amplified, jnp.clip(means[..., 0], 0.05, 1.0)


def boundary_targets(labels: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Float[Array, "B T"]:
    """Returns 1 for frames before a change of the label, BESIDE for those beside them, and otherwise 0."""
    num_frames = labels.shape[1]
    changes = jnp.pad(labels[:, 1:] != labels[:, :-1], ((0, 0), (0, 1))) & length_mask(lengths - 1, num_frames)
    beside = jnp.pad(changes[:, 1:], ((0, 0), (0, 1))) | jnp.pad(changes[:, :-1], ((0, 0), (1, 0)))
    return jnp.where(changes, 1.0, jnp.where(beside, BESIDE, 0.0))

"""Losses of transducers: RNN-T with and without pruning, and TDT, from logits or from a joint network in tiles."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from asr_jax.core.errors import check_numbers
from asr_jax.losses.lattice import RNNT, Arcs, lattice_loss


@dataclass(frozen=True)
class Penalties:
    """Changes of the log-probabilities of a transducer's arcs.

    Source: Kang et al. 2022 (arXiv:2211.00490) for the delay penalty; the loss of CAIMAN-ASR 1.14 for the others.
    """

    delay: float = 0.0
    """λ of the delay penalty: λ · ((T - 1) / 2 - t) is added to the log-probability of each label at frame t of T."""
    eos: float = 0.0
    """λ of the same penalty for the label `eos_id` alone, in addition."""
    eos_id: int = -1
    """Id of the label that ends an utterance. -1: none."""
    star: float = 1.0
    """Probability with which a frame is skipped after the label `star_id`, which stands for any missing text."""
    star_id: int = -1
    """Id of the label that stands for missing text in partial transcripts. -1: none."""

    def __post_init__(self) -> None:
        check_numbers(self, "delay", "eos")
        check_numbers(self, "star", above=0, most=1)
        check_numbers(self, "eos_id", "star_id", least=-1)


NO_PENALTIES = Penalties()


def transducer_loss(
    logits: Float[Array, "B T S V"],
    num_frames: Int[Array, " B"],
    labels: Int[Array, "B U"],
    num_labels: Int[Array, " B"],
    *,
    blank_id: int,
    fast_emit: float = 0.0,
    penalties: Penalties = NO_PENALTIES,
    clamp: float = 0.0,
) -> Float[Array, " B"]:
    """Computes the RNN-T loss from the logits of all nodes.

    Padding has no influence and no gradient. The loss is computed in float32 (float64 for float64 logits).

    Source: Graves 2012 (arXiv:1211.3711).

    Args:
        logits: Logits of V labels including the blank, at S = U + 1 label positions.
        num_frames: Number of valid frames of each row. A row without frames has a loss of 0.
        labels: Label ids.
        num_labels: Number of valid labels of each row.
        blank_id: Id of the blank.
        fast_emit: λ of FastEmit.
        penalties: Changes of log-probabilities.
        clamp: Largest absolute value of the gradient of a logit. 0: no limit.

    Returns:
        Loss of each row, neither summed nor averaged.
    """
    logits = _limited(logits, clamp) if clamp else logits
    blank, label = arc_log_probs(logits, labels, blank_id=blank_id)
    blank, label = penalised(blank, label, num_frames, labels, penalties)
    return lattice_loss(blank[None], label[None], num_frames, num_labels, RNNT, fast_emit)


def arc_log_probs(
    logits: Float[Array, "B T S V"], labels: Int[Array, "B U"], *, blank_id: int
) -> tuple[Float[Array, "B T S"], Float[Array, "B T U"]]:
    """Returns the log-probabilities of the blank and of the next label at each node.

    Args:
        logits: Logits of V labels, at S = U + 1 label positions.
        labels: Label ids.
        blank_id: Id of the blank.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_norm = jax.nn.logsumexp(logits, axis=-1)
    blank = logits[..., blank_id] - log_norm
    num_labels = logits.shape[2] - 1
    ids = labels[:, None, :num_labels, None]
    label = jnp.take_along_axis(logits[:, :, :num_labels], ids, axis=-1)[..., 0] - log_norm[:, :, :num_labels]
    return blank, label


def penalised(
    blank: Float[Array, "B T S"],
    label: Float[Array, "B T U"],
    num_frames: Int[Array, " B"],
    labels: Int[Array, "B U"],
    penalties: Penalties,
) -> tuple[Float[Array, "B T S"], Float[Array, "B T U"]]:
    """Applies penalties to log-probabilities of arcs.

    Args:
        blank: Log-probabilities of blanks.
        label: Log-probabilities of labels.
        num_frames: Number of valid frames of each row.
        labels: Label ids.
        penalties: Penalties to apply.
    """
    if penalties == NO_PENALTIES:
        return blank, label
    ids = labels[:, None, : label.shape[2]]
    earliness = (num_frames[:, None, None] - 1) / 2 - jnp.arange(label.shape[1])[None, :, None]
    label += (penalties.delay * earliness).astype(label.dtype)
    if penalties.eos_id >= 0:
        label += jnp.where(ids == penalties.eos_id, penalties.eos * earliness, 0).astype(label.dtype)
    if penalties.star_id >= 0:
        # The star itself is free apart from the delay penalty; after it, any frame is skipped at the same cost.
        is_star = ids == penalties.star_id
        label = jnp.where(is_star, (penalties.delay * earliness).astype(label.dtype), label)
        after = jnp.pad(jnp.broadcast_to(is_star, label.shape), ((0, 0), (0, 0), (1, 0)))
        blank = jnp.where(after, jnp.log(jnp.asarray(penalties.star, blank.dtype)), blank)
    return blank, label


def tdt_log_probs(
    logits: Float[Array, "B T S W"], labels: Int[Array, "B U"], *, blank_id: int, arcs: Arcs, sigma: float
) -> tuple[Float[Array, "K B T S"], Float[Array, "L B T U"]]:
    """Returns the log-probabilities of the arcs of a token-and-duration transducer (TDT).

    Source: Xu et al. 2023 (arXiv:2304.06795), sections 3 and 4; NeMo's `TDTLossNumba` at commit 8cfedd72.

    Args:
        logits: Logits of V labels, followed by those of the durations `arcs.label`.
        labels: Label ids.
        blank_id: Id of the blank.
        arcs: Durations of the arcs. Those of blanks are those of labels without 0.
        sigma: Number that is subtracted from all log-probabilities of labels and blanks (logit under-normalisation).
    """
    num_durations = len(arcs.label)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    blank, label = arc_log_probs(logits[..., :-num_durations], labels, blank_id=blank_id)
    durations = jnp.moveaxis(jax.nn.log_softmax(logits[..., -num_durations:]), -1, 0)
    of_blank = jnp.stack([durations[arcs.label.index(d)] for d in arcs.blank])
    return of_blank + blank[None] - sigma, durations[:, :, :, : label.shape[2]] + label[None] - sigma


def tdt_arcs(durations: tuple[int, ...]) -> Arcs:
    """Returns the arcs of a token-and-duration transducer. A blank always consumes a frame.

    Raises:
        ValueError: If the durations are not distinct, are below 0, or lack 1.
    """
    if len({*durations}) < len(durations) or min(durations, default=-1) < 0 or 1 not in durations:
        raise ValueError(f"durations is {durations}: expected distinct numbers of frames, 0 or more, among them 1")
    return Arcs(blank=tuple(d for d in durations if d), label=durations)


def in_tiles(
    compute: Callable[[Any, Any, Any], Any],
    of_frames: Any,
    of_rows: Any,
    *,
    tile_frames: int,
    num_splits: int = 1,
) -> Any:
    """Applies a function of nodes to some frames and some rows at a time, and computes it again in the backward pass.

    Only inputs and outputs of the function are kept, so that memory does not grow with the size of its inner arrays,
    such as the logits of all nodes.

    Args:
        compute: Function of the parts of `of_frames` `[b t …]` and of `of_rows` `[b …]`, and of the number of the first
            frame. Returns a tree of arrays `[b t …]`.
        of_frames: Tree of arrays `[B T …]`.
        of_rows: Tree of arrays `[B …]`.
        tile_frames: Number of frames per tile. 0: all frames.
        num_splits: Number of parts of equal size that rows are split into. Each device keeps its own rows: part s has
            the rows s, s + num_splits, ….

    Returns:
        The outputs for all rows and frames.

    Raises:
        ValueError: If the number of rows is not a multiple of `num_splits`.
    """
    rows, num_frames = jax.tree.leaves(of_frames)[0].shape[:2]
    if rows % num_splits:
        raise ValueError(f"a batch of {rows} rows cannot be split into {num_splits} equal parts")
    if num_splits == 1 and (not tile_frames or tile_frames >= num_frames):
        return compute(of_frames, of_rows, 0)
    tile_frames = min(tile_frames or num_frames, num_frames)
    num_tiles = -(-num_frames // tile_frames)

    def split(array: Array) -> Array:
        return jnp.moveaxis(array.reshape(rows // num_splits, num_splits, *array.shape[1:]), 1, 0)

    def tiled(array: Array) -> Array:
        padding = ((0, 0), (0, num_tiles * tile_frames - num_frames), *((0, 0) for _ in array.shape[2:]))
        each = split(jnp.pad(array, padding))
        return jnp.moveaxis(each.reshape(num_splits, -1, num_tiles, tile_frames, *array.shape[2:]), 2, 1)

    parts, tiles = jax.tree.map(split, of_rows), jax.tree.map(tiled, of_frames)

    @jax.checkpoint
    def of_tile(part: Array, tile: Array) -> Any:
        rest = jax.tree.map(lambda array: lax.dynamic_index_in_dim(array, part, keepdims=False), parts)
        frames = jax.tree.map(lambda array: array[part, tile], tiles)
        return compute(frames, rest, tile * tile_frames)

    places = jnp.arange(num_splits * num_tiles)
    outputs = lax.map(lambda place: of_tile(place // num_tiles, place % num_tiles), places)

    def joined(array: Array) -> Array:
        array = array.reshape(num_splits, num_tiles, rows // num_splits, tile_frames, *array.shape[3:])
        array = jnp.moveaxis(array, (2, 0), (0, 1))  # [b parts tiles frames …]
        return array.reshape(rows, num_tiles * tile_frames, *array.shape[4:])[:, :num_frames]

    return jax.tree.map(joined, outputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _limited(x: Array, limit: float) -> Array:
    """Returns `x`, and limits the absolute values of its gradient."""
    return x


def _limited_forward(x: Array, limit: float) -> tuple[Array, None]:
    return x, None


def _limited_backward(limit: float, _: None, gradient: Array) -> tuple[Array]:
    return (jnp.clip(gradient, -limit, limit),)


_limited.defvjp(_limited_forward, _limited_backward)

"""Sums over the paths of transducer lattices, with occupancies of their arcs as gradients.

A node (t, u) of a lattice has consumed t frames and emitted u labels. Its blank arcs lead to (t + d, u) and its label
arcs to (t + d, u + 1), where d is one of the arc's durations: d = 1 for blanks and d = 0 for labels of RNN-T, several
durations for TDT. Paths lead from (0, 0) to (T, U), and their last arc is a blank.

The recursion runs over diagonals n = t + u: all arcs lead to later diagonals, and all nodes of a diagonal are computed
at once.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.kernels.lattice_sweep.api import lattice_sweep
from asr_jax.kernels.lattice_sweep.reference import Start
from asr_jax.kernels.log_space import NEVER

Durations = tuple[int, ...]


class Arcs(NamedTuple):
    """Durations of the arcs of a lattice, in frames."""

    blank: Durations = (1,)
    label: Durations = (0,)

    @property
    def span(self) -> int:
        """Largest number of diagonals that an arc crosses."""
        return max(*self.blank, *(duration + 1 for duration in self.label))


RNNT = Arcs()
"""Arcs of RNN-T: a blank consumes one frame, and a label none."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def lattice_loss(
    blank: Float[Array, "K B T S"],
    label: Float[Array, "L B T U"],
    num_frames: Int[Array, " B"],
    num_labels: Int[Array, " B"],
    arcs: Arcs = RNNT,
    fast_emit: float = 0.0,
) -> Float[Array, " B"]:
    """Computes the negative logarithm of the sum over all paths of each row.

    The gradient is minus the occupancy of each arc: the share of the paths' probability that uses the arc. Arcs outside
    of a row's frames and labels have no influence and no gradient. A row without frames has no path: its loss and
    gradient are 0, and the caller counts it.

    With `fast_emit` λ, the loss is multiplied by 1 + λ and the gradient of labels by 1 + λ, while that of blanks is
    unchanged.

    Source: Graves 2012 (arXiv:1211.3711), section 2.4; Yu et al. 2021 (arXiv:2010.11148) for FastEmit, whose loss is
    NeMo's; Xu et al. 2023 (arXiv:2304.06795) for durations.

    Args:
        blank: Log-probabilities of blank arcs for each of `arcs.blank`, at S = U + 1 label positions.
        label: Log-probabilities of label arcs for each of `arcs.label`.
        num_frames: Number of frames of each row.
        num_labels: Number of labels of each row.

    Returns:
        Loss of each row, in the dtype of `blank`.
    """
    swept = _sweep(_weights(blank, label, num_frames, num_labels, arcs), num_frames, num_labels, arcs, both=False)
    return _to_losses(swept.log_probability, num_frames, fast_emit)


def _forward(
    blank: Array, label: Array, num_frames: Array, num_labels: Array, arcs: Arcs, fast_emit: float
) -> tuple[Array, tuple[Array, Array]]:
    weights = _weights(blank, label, num_frames, num_labels, arcs)
    swept = _sweep(weights, num_frames, num_labels, arcs, both=True)
    of_blank, of_label = _occupancies(swept, weights, arcs)
    exists = (num_frames > 0)[None, :, None, None]
    of_blank = jnp.where(exists, of_blank, 0).astype(blank.dtype)
    of_label = jnp.where(exists, of_label, 0).astype(label.dtype) * (1 + fast_emit)
    return _to_losses(swept.log_probability, num_frames, fast_emit), (of_blank, of_label)


def _backward(
    arcs: Arcs, fast_emit: float, residuals: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array, None, None]:
    scale = -cotangent[None, :, None, None]
    return scale * residuals[0], scale * residuals[1], None, None


lattice_loss.defvjp(_forward, _backward)


def _to_losses(log_probability: Array, num_frames: Array, fast_emit: float) -> Array:
    possible = jnp.where(log_probability < NEVER / 2, jnp.inf, -log_probability)
    return jnp.where(num_frames > 0, possible * (1 + fast_emit), 0)


class _Weights(NamedTuple):
    """Weights of arcs by their source on skewed axes: N diagonals and U + 1 labels."""

    blank: Array
    """Weights of blank arcs [K N B U+1]."""
    label: Array
    """Weights of label arcs [L N B U+1]. The last column is `NEVER`."""


def _weights(blank: Array, label: Array, num_frames: Array, num_labels: Array, arcs: Arcs) -> _Weights:
    """Replaces the weights of arcs that no complete path uses, and skews all of them."""
    t, u = jnp.arange(blank.shape[2])[None, :, None], jnp.arange(blank.shape[3])[None, None]
    frames, labels = num_frames[:, None, None], num_labels[:, None, None]

    def masked(values: Array, allowed: Array) -> Array:
        return jnp.where(allowed, jnp.maximum(values, NEVER), NEVER)

    label = jnp.pad(label, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=NEVER)
    blanks = [
        masked(each, (u <= labels) & ((t + d < frames) | ((t + d == frames) & (u == labels))))
        for d, each in zip(arcs.blank, blank, strict=True)
    ]
    of_labels = [masked(each, (u < labels) & (t + d < frames)) for d, each in zip(arcs.label, label, strict=True)]
    return _Weights(_skewed(jnp.stack(blanks)), _skewed(jnp.stack(of_labels)))


def _skewed(values: Array) -> Array:
    """Moves values [K B T U] to diagonals [K N B U], where N = T + U and n = t + u. Others are `NEVER`."""
    kinds, rows, frames, width = values.shape
    columns = jnp.moveaxis(values, 3, 2)  # [K B U T]
    padded = jnp.pad(columns, ((0, 0), (0, 0), (0, 0), (0, width + 1)), constant_values=NEVER)
    flat = padded.reshape(kinds, rows, -1)[..., : width * (frames + width)]
    return jnp.moveaxis(flat.reshape(kinds, rows, width, frames + width), 3, 1)


def _unskewed(values: Array) -> Array:
    """Inverse of `_skewed`: [K N B U] to [K B T U]."""
    kinds, diagonals, rows, width = values.shape
    frames = diagonals - width
    flat = jnp.moveaxis(values, 1, 3).reshape(kinds, rows, -1)
    padded = jnp.pad(flat, ((0, 0), (0, 0), (0, width))).reshape(kinds, rows, width, frames + width + 1)
    return jnp.moveaxis(padded[..., :frames], 2, 3)


class _Swept(NamedTuple):
    """States of all nodes: log-sums over partial paths, scaled per row, direction and diagonal."""

    states: Array
    """[N K B U+1]: sums of paths from the start and, in reversed order, to the end. Scaled to a largest value of 0."""
    scales: Array
    """[N K B]: logarithm of the factor that each diagonal was divided by, in addition to the diagonals before."""
    log_probability: Array
    """[B]"""


def _sweep(weights: _Weights, num_frames: Array, num_labels: Array, arcs: Arcs, *, both: bool) -> _Swept:
    """Computes the states of all nodes from the start and, if `both`, from the end.

    The direction from the end is the same recursion on the reversed lattice. Directions have an axis of their own,
    which keeps the rows of a sharded batch on their devices.
    """
    size, _, width = weights.blank.shape[1:]
    last = num_frames + num_labels
    of_start = jnp.stack([jnp.zeros_like(last), size - 1 - last])[: 1 + both]
    at_label = jnp.stack([jnp.zeros_like(last), width - 1 - num_labels])[: 1 + both]
    first = jnp.arange(width)[None, None] == at_label[..., None]

    spans = (*arcs.blank, *(duration + 1 for duration in arcs.label))
    moves = (0,) * len(arcs.blank) + (1,) * len(arcs.label)
    incoming = [
        _incoming(values, span, move, both=both)
        for values, span, move in zip((*weights.blank, *weights.label), spans, moves, strict=True)
    ]
    states, scales = lattice_sweep(incoming, Start(of_start, first), spans=spans, moves=moves)
    row = jnp.arange(len(last))
    final = states[last, 0, row, num_labels]
    before = jnp.arange(size)[:, None] <= last[None]
    return _Swept(states, scales, final + jnp.sum(jnp.where(before, scales[:, 0], 0), axis=0))


def _incoming(values: Array, span: int, moves: int, *, both: bool) -> Array:
    """Returns the weights of arcs by their targets, for one direction or both: [N K B U+1]."""
    size, _, width = values.shape
    ahead = jnp.pad(values, ((span, 0), (0, 0), (moves, 0)), constant_values=NEVER)[:size, :, :width]
    if not both:
        return ahead[:, None]
    return jnp.stack([ahead, values[::-1, :, ::-1]], axis=1)  # the source of an arc is its target in reversed order


def _occupancies(swept: _Swept, weights: _Weights, arcs: Arcs) -> tuple[Array, Array]:
    """Returns the occupancies of blank arcs [K B T U+1] and of label arcs [L B T U]."""
    ahead, behind = swept.states[:, 0], swept.states[::-1, 1, :, ::-1]

    def target(span: int, *, moves: int) -> Array:
        padded = jnp.pad(behind, ((0, span), (0, 0), (0, moves)), constant_values=NEVER)
        return padded[span:, :, moves:]

    blanks = [ahead + w + target(d, moves=0) for d, w in zip(arcs.blank, weights.blank, strict=True)]
    labels = [ahead + w + target(d + 1, moves=1) for d, w in zip(arcs.label, weights.label, strict=True)]
    if arcs.span == 1:  # all arcs lead to the next diagonal, as in RNN-T
        # The arcs that leave a diagonal have a sum of 1. A softmax is more precise than a difference of large numbers.
        largest = jnp.maximum(blanks[0].max(-1), labels[0].max(-1))[..., None]
        of_blank, of_label = jnp.exp(blanks[0] - largest), jnp.exp(labels[0] - largest)
        total = of_blank.sum(-1, keepdims=True) + of_label.sum(-1, keepdims=True)
        share = jnp.where(largest > NEVER / 2, 1 / total, 0)
        found = [of_blank * share], [of_label * share]
    else:
        scale_ahead = jnp.cumsum(swept.scales[:, 0], axis=0)
        scale_behind = jnp.cumsum(swept.scales[:, 1], axis=0)[::-1]

        def occupancy(values: Array, span: int) -> Array:
            ends = jnp.pad(scale_behind, ((0, span), (0, 0)))[span:]
            log_share = values + (scale_ahead + ends - swept.log_probability[None])[..., None]
            return jnp.where(values > NEVER / 2, jnp.exp(log_share), 0)

        found = (
            [occupancy(values, d) for d, values in zip(arcs.blank, blanks, strict=True)],
            [occupancy(values, d + 1) for d, values in zip(arcs.label, labels, strict=True)],
        )
    return _unskewed(jnp.stack(found[0])), _unskewed(jnp.stack(found[1]))[..., :-1]

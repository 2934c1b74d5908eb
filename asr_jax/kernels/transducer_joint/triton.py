"""The joint network of transducers for NVIDIA GPUs: the logits of a block of nodes stay in registers (Triton).

A node is a pair of a frame and a label position. Sums over programs would have another order in each call. Each program
therefore writes its own share of a gradient, and XLA adds the shares: of frames by block of positions, of
predictions by block of frames, and of the output by part of the nodes.
"""

from typing import Any, no_type_check

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array

from asr_jax.kernels.transducer_joint.reference import Activation
from asr_jax.kernels.triton_calls import triton_call
from asr_jax.kernels.triton_frames import dot

FRAMES, POSITIONS = tl.constexpr(8), tl.constexpr(8)
"""Numbers of frames and of label positions of a block of nodes, powers of 2."""
PARTS = tl.constexpr(8)
"""Number of parts of the nodes for the gradients of the output, each with gradients of its own in memory."""
BLOCKS = {
    2: {"V_BLOCK": 64, "D_BLOCK": 32, "OUTER_BLOCK": 128, "num_stages": 2},
    4: {"V_BLOCK": 32, "D_BLOCK": 32, "OUTER_BLOCK": 64, "num_stages": 1},
}
"""Numbers of labels, of channels that are summed over and of channels of gradients in a block, powers of 2, by the size
of a value in bytes. Larger blocks spill registers (tests/kernels/test_resources.py)."""


def forward(*arrays: Array, blank_id: int, activation: Activation) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    """Computes `api.transducer_joint`, and what its gradient needs.

    Values at padding are arbitrary, and must have no gradient.
    """
    (rows, frames, _), positions = arrays[0].shape, arrays[1].shape[1]
    of_nodes = jax.ShapeDtypeStruct((rows, frames, positions), jnp.float32)
    constants = _constants(arrays, blank_id, activation)
    del constants["OUTER_BLOCK"]
    blank, label, log_norm = triton_call(
        *arrays,
        frames,
        positions,
        kernel=_forward_kernel,
        out=(of_nodes,) * 3,
        grid=(_num_blocks(frames, positions), rows),
        **constants,
    )
    return (blank, label[..., :-1]), (*arrays, log_norm)


def backward(
    kept: tuple[Array, ...], cotangents: tuple[Array, Array], *, blank_id: int, activation: Activation
) -> tuple[Array | None, ...]:
    """Computes the gradients of `api.transducer_joint`."""
    *arrays, log_norm = kept
    frames, predictions, kernel, bias = arrays[:4]
    (rows, num_frames, width), positions = frames.shape, predictions.shape[1]
    of_label = jnp.pad(cotangents[1], ((0, 0), (0, 0), (0, 1)))
    inputs = (*arrays, log_norm, cotangents[0], of_label, num_frames, positions)
    constants = _constants(arrays, blank_id, activation)
    parts_of_width, blocks = triton.cdiv(width, constants["OUTER_BLOCK"]), _num_blocks(num_frames, positions)

    def shares(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    of_frames, of_predictions = triton_call(
        *inputs,
        kernel=_node_kernel,
        grid=(blocks, rows, parts_of_width),
        **constants,
        out=(
            shares(triton.cdiv(positions, POSITIONS.value), *frames.shape),
            shares(triton.cdiv(num_frames, FRAMES.value), *predictions.shape),
        ),
    )
    of_kernel, of_bias = triton_call(
        *inputs,
        rows,
        kernel=_output_kernel,
        grid=(triton.cdiv(len(bias), constants["V_BLOCK"]), parts_of_width, PARTS.value),
        **constants,
        out=(shares(PARTS.value, *kernel.shape), shares(PARTS.value, *bias.shape)),
    )
    found = (of_frames, of_predictions, of_kernel, of_bias)
    return *(jnp.sum(each, 0).astype(of.dtype) for each, of in zip(found, arrays, strict=False)), None, None, None


def _num_blocks(frames: int, positions: int) -> int:
    """Number of blocks of nodes of a row."""
    return int(triton.cdiv(frames, FRAMES.value) * triton.cdiv(positions, POSITIONS.value))


def _constants(arrays: Any, blank_id: int, activation: Activation) -> dict[str, Any]:
    width, vocab_size = arrays[2].shape
    chosen = {"BLANK": blank_id, "RELU": activation == "relu", "num_warps": 8}
    return BLOCKS[arrays[2].dtype.itemsize] | {"D": width, "V": vocab_size} | chosen


@triton.jit
@no_type_check  # Triton's arguments have no types
def _nodes(block, num_positions):
    """Frames and positions of the nodes of a block."""
    blocks = tl.cdiv(num_positions, POSITIONS)
    node = tl.arange(0, FRAMES * POSITIONS)
    return (block // blocks) * FRAMES + node // POSITIONS, (block % blocks) * POSITIONS + node % POSITIONS


@triton.jit
@no_type_check
def _num_logits(num_frames, num_labels, row, t, s, V: tl.constexpr):
    """Number of logits to compute for the nodes of a block: V, or 0 if all of them are padding."""
    first_t, first_s = tl.min(t, 0), tl.min(s, 0)
    valid = (first_t < tl.load(num_frames + row)) & (first_s <= tl.load(num_labels + row))
    return tl.where(valid, V, 0)


@triton.jit
@no_type_check
def _hidden(frames, predictions, row, t, s, d, T, S, D: tl.constexpr, RELU: tl.constexpr):
    """Some channels of the joint network at some nodes. They are 0 outside of the width."""
    of_frames = frames + (row * T + t)[:, None] * D + d[None, :]
    of_predictions = predictions + (row * S + s)[:, None] * D + d[None, :]
    there = (d < D)[None, :]
    total = tl.load(of_frames, mask=there & (t < T)[:, None], other=0.0).to(tl.float32)
    total += tl.load(of_predictions, mask=there & (s < S)[:, None], other=0.0).to(tl.float32)
    if RELU:
        return tl.maximum(total, 0.0)
    return 1.0 - 2.0 / (tl.exp(2.0 * total) + 1.0)  # tanh


@triton.jit
@no_type_check
def _weights(kernel, d, v, D: tl.constexpr, V: tl.constexpr):
    """Weights of some channels and labels."""
    return tl.load(kernel + d[:, None] * V + v[None, :], mask=(d < D)[:, None] & (v < V)[None, :], other=0.0)


@triton.jit
@no_type_check
def _logits(
    frames,
    predictions,
    kernel,
    bias,
    row,
    t,
    s,
    v,
    T,
    S,
    D: tl.constexpr,
    V: tl.constexpr,
    D_BLOCK: tl.constexpr,
    RELU: tl.constexpr,
):
    """Logits of some labels at some nodes, and -inf outside of the vocabulary."""
    found = tl.zeros([t.shape[0], v.shape[0]], tl.float32)
    for first in range(0, D, D_BLOCK):
        d = first + tl.arange(0, D_BLOCK)
        weights = _weights(kernel, d, v, D, V)
        found += dot(_hidden(frames, predictions, row, t, s, d, T, S, D, RELU).to(weights.dtype), weights)
    found += tl.load(bias + v, mask=v < V, other=0.0).to(tl.float32)[None, :]
    return tl.where((v < V)[None, :], found, float("-inf"))


@triton.jit
@no_type_check
def _label(labels, row, s, S):
    """Next labels at positions. -1 at the last position."""
    return tl.load(labels + row * (S - 1) + s, mask=s < S - 1, other=-1)


@triton.jit
@no_type_check
def _of_logits(logits, v, label, log_norm, of_blank, of_label, row, t, s, T, S, BLANK: tl.constexpr):
    """Gradients of logits. They are 0 at nodes outside of the lattice."""
    place = (row * T + t) * S + s
    there = (t < T) & (s < S)
    norm = tl.load(log_norm + place, mask=there, other=float("inf"))
    blank = tl.load(of_blank + place, mask=there, other=0.0)
    next_label = tl.load(of_label + place, mask=there, other=0.0)
    found = -tl.exp(logits - norm[:, None]) * (blank + next_label)[:, None]
    found += tl.where((v == BLANK)[None, :], blank[:, None], 0.0)
    return found + tl.where(v[None, :] == label[:, None], next_label[:, None], 0.0)


@triton.jit
@no_type_check
def _forward_kernel(
    frames,
    predictions,
    kernel,
    bias,
    labels,
    num_frames,
    num_labels,
    T,
    S,
    of_blank,
    of_label,
    log_norm,
    BLANK: tl.constexpr,
    RELU: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    V_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr,
):
    """Computes the log-probabilities of a block of nodes."""
    row = tl.program_id(1)
    t, s = _nodes(tl.program_id(0), S)
    label = _label(labels, row, s, S)
    most = tl.full([FRAMES * POSITIONS], float("-inf"), tl.float32)
    total = tl.zeros([FRAMES * POSITIONS], tl.float32)
    blank = tl.zeros([FRAMES * POSITIONS], tl.float32)
    next_label = tl.zeros([FRAMES * POSITIONS], tl.float32)
    for first in range(0, _num_logits(num_frames, num_labels, row, t, s, V), V_BLOCK):
        v = first + tl.arange(0, V_BLOCK)
        logits = _logits(frames, predictions, kernel, bias, row, t, s, v, T, S, D, V, D_BLOCK, RELU)
        now = tl.maximum(most, tl.max(logits, 1))
        total = total * tl.exp(most - now) + tl.sum(tl.exp(logits - now[:, None]), 1)
        blank += tl.sum(tl.where((v == BLANK)[None, :], logits, 0.0), 1)
        next_label += tl.sum(tl.where(v[None, :] == label[:, None], logits, 0.0), 1)
        most = now
    norm = most + tl.log(total)
    place = (row * T + t) * S + s
    there = (t < T) & (s < S)
    tl.store(of_blank + place, blank - norm, mask=there)
    tl.store(of_label + place, next_label - norm, mask=there)
    tl.store(log_norm + place, norm, mask=there)


@triton.jit
@no_type_check
def _node_kernel(
    frames,
    predictions,
    kernel,
    bias,
    labels,
    num_frames,
    num_labels,
    log_norm,
    of_blank,
    of_label,
    T,
    S,
    of_frames,
    of_predictions,
    BLANK: tl.constexpr,
    RELU: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    V_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr,
    OUTER_BLOCK: tl.constexpr,
):
    """Computes the share of a block of nodes in some channels of the gradients of frames and predictions."""
    block, row = tl.program_id(0), tl.program_id(1)
    t, s = _nodes(block, S)
    label = _label(labels, row, s, S)
    outer = tl.program_id(2) * OUTER_BLOCK + tl.arange(0, OUTER_BLOCK)
    found = tl.zeros([FRAMES * POSITIONS, OUTER_BLOCK], tl.float32)
    for first in range(0, _num_logits(num_frames, num_labels, row, t, s, V), V_BLOCK):
        v = first + tl.arange(0, V_BLOCK)
        logits = _logits(frames, predictions, kernel, bias, row, t, s, v, T, S, D, V, D_BLOCK, RELU)
        of_logits = _of_logits(logits, v, label, log_norm, of_blank, of_label, row, t, s, T, S, BLANK)
        weights = _weights(kernel, outer, v, D, V)
        found += dot(of_logits.to(weights.dtype), tl.trans(weights))
    hidden = _hidden(frames, predictions, row, t, s, outer, T, S, D, RELU)
    if RELU:
        found = tl.where(hidden > 0, found, 0.0)
    else:
        found *= 1.0 - hidden * hidden
    found = tl.reshape(found, [FRAMES, POSITIONS, OUTER_BLOCK])
    blocks = tl.cdiv(S, POSITIONS)
    t = (block // blocks) * FRAMES + tl.arange(0, FRAMES)
    s = (block % blocks) * POSITIONS + tl.arange(0, POSITIONS)
    rows = tl.num_programs(1)
    place = (((block % blocks) * rows + row) * T + t)[:, None] * D + outer[None, :]
    tl.store(of_frames + place, tl.sum(found, 1), mask=(t < T)[:, None] & (outer < D)[None, :])
    place = (((block // blocks) * rows + row) * S + s)[:, None] * D + outer[None, :]
    tl.store(of_predictions + place, tl.sum(found, 0), mask=(s < S)[:, None] & (outer < D)[None, :])


@triton.jit
@no_type_check
def _output_kernel(
    frames,
    predictions,
    kernel,
    bias,
    labels,
    num_frames,
    num_labels,
    log_norm,
    of_blank,
    of_label,
    T,
    S,
    rows,
    of_kernel,
    of_bias,
    BLANK: tl.constexpr,
    RELU: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    V_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr,
    OUTER_BLOCK: tl.constexpr,
):
    """Computes the share of a part of the nodes in the gradients of some weights of the output."""
    v = tl.program_id(0) * V_BLOCK + tl.arange(0, V_BLOCK)
    outer = tl.program_id(1) * OUTER_BLOCK + tl.arange(0, OUTER_BLOCK)
    part = tl.program_id(2)
    found = tl.zeros([OUTER_BLOCK, V_BLOCK], tl.float32)
    total = tl.zeros([V_BLOCK], tl.float32)
    of_row = tl.cdiv(T, FRAMES) * tl.cdiv(S, POSITIONS)
    for number in range(part, rows * of_row, PARTS):
        row = number // of_row
        t, s = _nodes(number % of_row, S)
        if _num_logits(num_frames, num_labels, row, t, s, V) > 0:
            logits = _logits(frames, predictions, kernel, bias, row, t, s, v, T, S, D, V, D_BLOCK, RELU)
            label = _label(labels, row, s, S)
            of_logits = _of_logits(logits, v, label, log_norm, of_blank, of_label, row, t, s, T, S, BLANK)
            hidden = _hidden(frames, predictions, row, t, s, outer, T, S, D, RELU)
            low = kernel.dtype.element_ty
            found += dot(tl.trans(hidden.to(low)), of_logits.to(low))
            total += tl.sum(of_logits, 0)
    place = (part * D + outer)[:, None] * V + v[None, :]
    tl.store(of_kernel + place, found, mask=(outer < D)[:, None] & (v < V)[None, :])
    if tl.program_id(1) == 0:
        tl.store(of_bias + part * V + v, total, mask=v < V)

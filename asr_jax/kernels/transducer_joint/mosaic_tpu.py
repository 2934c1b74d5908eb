"""The joint network of transducers for TPUs: the logits of a block of frames stay in VMEM (Pallas).

Logits are transposed [V N] for N nodes, so that sums over labels are along sublanes and nodes are along lanes.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from asr_jax.kernels.log_space import NEVER
from asr_jax.kernels.tiles_tpu import LANES, VMEM_BYTES, bytes_of, bytes_of_blocks, product, whole_tiles
from asr_jax.kernels.transducer_joint.reference import Activation

MULTIPLE = 16
"""Label positions are padded to a multiple of it, the number of sublanes of bfloat16."""
NODES = 512
"""Number of nodes of a program, or more if there are more label positions."""
LABELS = 256
"""Number of labels whose logits are computed at a time. Labels are padded to a multiple of it."""
KEPT = {2: (4, 1), 4: (8, 3)}
"""Numbers of arrays in float32 that a program keeps beside its blocks, of its nodes' channels and of the logits that it
computes at a time, by the size of a value in bytes. 3.6 and 0.9, 7.4 and 2.6 were measured for a v5e."""


def vmem_bytes(*given: Any) -> int:
    """Returns an estimate of the VMEM of a program for the gradient, which needs more than one for the values.

    Args:
        given: Frames, predictions, weights, bias and labels, or descriptions of them.
    """
    inputs = jax.eval_shape(_padded, *given)
    rows, blocks, block, positions = _sizes(inputs)
    nodes, width = block * positions, inputs[0].shape[3]
    logs = jax.ShapeDtypeStruct((rows, blocks, 3, nodes), jnp.float32)
    gradients = [jax.ShapeDtypeStruct(each.shape, jnp.float32) for each in inputs[:4]]
    specs = [*_specs(inputs), _of_nodes(logs), *_specs(inputs)[:4]]
    hidden, logits = KEPT[inputs[0].dtype.itemsize]
    kept = hidden * bytes_of((nodes, width), 4) + logits * bytes_of((LABELS, nodes), 4)
    return bytes_of_blocks(specs, [*inputs, logs, *gradients]) + kept


def forward(*arrays: Array, blank_id: int, activation: Activation) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    """Computes `api.transducer_joint`, and what its gradient needs.

    Values at padding are arbitrary, and must have no gradient.
    """
    inputs = _padded(*arrays[:5])
    rows, blocks, block, positions = _sizes(inputs)
    logs = jax.ShapeDtypeStruct((rows, blocks, 3, block * positions), jnp.float32)
    found = _call(
        functools.partial(_forward_kernel, blank_id=blank_id, activation=activation),
        arrays[5],
        inputs,
        [_of_nodes(logs)],
        [logs],
        name="transducer_joint",
    )[0]
    by_node = jnp.moveaxis(found.reshape(rows, blocks, 3, block, positions), 2, 0)
    blank, label, _ = by_node.reshape(3, rows, blocks * block, positions)[:, :, : arrays[0].shape[1]]
    size = arrays[1].shape[1]
    return (blank[..., :size], label[..., : size - 1]), (*arrays[:6], found)


def backward(
    kept: tuple[Array, ...], cotangents: tuple[Array, Array], *, blank_id: int, activation: Activation
) -> tuple[Array | None, ...]:
    """Computes the gradients of `api.transducer_joint`."""
    *arrays, num_frames, logs = kept
    inputs = _padded(*arrays)
    rows, blocks, block, positions = _sizes(inputs)

    def by_node(cotangent: Array) -> Array:
        more = ((0, 0), (0, blocks * block - cotangent.shape[1]), (0, positions - cotangent.shape[2]))
        return jnp.pad(cotangent, more).reshape(rows, blocks, 1, block * positions)

    given = jnp.concatenate([*map(by_node, cotangents), logs[:, :, 2:]], axis=2)
    out = [jax.ShapeDtypeStruct(each.shape, jnp.float32) for each in inputs[:4]]
    found = _call(
        functools.partial(_backward_kernel, blank_id=blank_id, activation=activation),
        num_frames,
        (*inputs, given),
        _specs(inputs)[:4],
        out,
        name="transducer_joint_gradient",
    )
    width, vocab_size = arrays[2].shape
    of_frames = found[0].reshape(rows, -1, found[0].shape[-1])[:, : arrays[0].shape[1], :width]
    of_predictions = found[1][:, : arrays[1].shape[1], :width]
    of_given = (of_frames, of_predictions, found[2][:vocab_size, :width].T, found[3][:vocab_size, 0])
    return *(each.astype(of.dtype) for each, of in zip(of_given, arrays, strict=False)), None, None, None


def _call(kernel: Any, num_frames: Array, inputs: tuple[Array, ...], out_specs: Any, out: Any, *, name: str) -> Any:
    """Calls a kernel for each row and block of frames. Both may sum over programs, which run one after the other."""
    rows, blocks, _, _ = _sizes(inputs)
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(rows, blocks),
            in_specs=[*_specs(inputs), *map(_of_nodes, inputs[5:])],
            out_specs=out_specs,
        ),
        out_shape=out,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        name=name,
    )(num_frames, *inputs)


def _padded(frames: Array, predictions: Array, kernel: Array, bias: Array, labels: Array) -> tuple[Array, ...]:
    """Arrays of padded frames [B n b D], predictions [B S D], weights [V D], bias [V 1] and next labels [B 1 N]."""
    rows, num_frames, width = frames.shape
    positions = whole_tiles(predictions.shape[1], MULTIPLE)
    block = MULTIPLE * max(NODES // (MULTIPLE * positions), 1)
    blocks, channels = -(-num_frames // block), whole_tiles(width, LANES) - width
    frames = jnp.pad(frames, ((0, 0), (0, blocks * block - num_frames), (0, channels)))
    predictions = jnp.pad(predictions, ((0, 0), (0, positions - predictions.shape[1]), (0, channels)))
    more = whole_tiles(len(bias), LABELS) - len(bias)
    weights = jnp.pad(kernel.T, ((0, more), (0, channels)))
    bias = jnp.pad(bias.astype(jnp.float32), (0, more), constant_values=NEVER)[:, None]
    labels = jnp.pad(labels.astype(jnp.int32), ((0, 0), (0, positions - labels.shape[1])), constant_values=-1)
    by_node = jnp.tile(labels, (1, block))[:, None]
    return frames.reshape(rows, blocks, block, -1), predictions, weights, bias, by_node


def _sizes(inputs: tuple[Array, ...]) -> tuple[int, int, int, int]:
    """Numbers of rows, of blocks of frames, of frames of a block and of positions."""
    rows, blocks, block, _ = inputs[0].shape
    return rows, blocks, block, inputs[1].shape[1]


def _specs(inputs: tuple[Array, ...]) -> list[Any]:
    frames, predictions, weights, bias, labels = inputs[:5]
    of_row = [pl.BlockSpec((None, *each.shape[1:]), lambda b, i, _: (b, 0, 0)) for each in (predictions, labels)]
    once = [pl.BlockSpec(each.shape, lambda b, i, _: (0, 0), pipeline_mode=pl.Buffered(1)) for each in (weights, bias)]
    return [_of_nodes(frames), of_row[0], *once, of_row[1]]


def _of_nodes(x: Any) -> Any:
    return pl.BlockSpec((None, None, *x.shape[2:]), lambda b, i, _: (b, i, 0, 0))


def _hidden(frames: Any, predictions: Any, activation: Activation) -> Array:
    """Joint network of all nodes of a block [b S D], in float32."""
    total = frames[...].astype(jnp.float32)[:, None] + predictions[...].astype(jnp.float32)[None]
    return jnp.maximum(total, 0.0) if activation == "relu" else jnp.tanh(total)


def _logits(hidden: Array, weights: Any, bias: Any, first: Any) -> tuple[Array, Array]:
    """Logits of some labels at all nodes [v N], and the ids of the labels."""
    some = pl.ds(first, LABELS)
    logits = product(weights[some, :], hidden, 1, 1) + bias[some, :]
    return logits, first + jax.lax.broadcasted_iota(jnp.int32, logits.shape, 0)


def _forward_kernel(
    num_frames: Any,
    frames: Any,
    predictions: Any,
    weights: Any,
    bias: Any,
    labels: Any,
    logs: Any,
    *,
    blank_id: int,
    activation: Activation,
) -> None:
    @pl.when(pl.program_id(1) * frames.shape[0] < num_frames[pl.program_id(0)])
    def _() -> None:
        hidden = _hidden(frames, predictions, activation).reshape(-1, frames.shape[1]).astype(frames.dtype)

        def step(number: Array, before: tuple[Array, ...]) -> tuple[Array, ...]:
            most, total, blank, label = before
            logits, ids = _logits(hidden, weights, bias, number * LABELS)
            now = jnp.maximum(most, jnp.max(logits, axis=0, keepdims=True))
            total = total * jnp.exp(most - now) + jnp.sum(jnp.exp(logits - now), axis=0, keepdims=True)
            blank += jnp.sum(jnp.where(ids == blank_id, logits, 0.0), axis=0, keepdims=True)
            label += jnp.sum(jnp.where(ids == labels[...], logits, 0.0), axis=0, keepdims=True)
            return now, total, blank, label

        zeros = jnp.zeros(labels.shape, jnp.float32)
        start = (jnp.full_like(zeros, NEVER), zeros, zeros, zeros)
        most, total, blank, label = jax.lax.fori_loop(0, weights.shape[0] // LABELS, step, start)
        log_norm = most + jnp.log(total)
        logs[0:1, :] = blank - log_norm
        logs[1:2, :] = label - log_norm
        logs[2:3, :] = log_norm


def _backward_kernel(
    num_frames: Any,
    frames: Any,
    predictions: Any,
    weights: Any,
    bias: Any,
    labels: Any,
    given: Any,
    of_frames: Any,
    of_predictions: Any,
    of_weights: Any,
    of_bias: Any,
    *,
    blank_id: int,
    activation: Activation,
) -> None:
    row, block = pl.program_id(0), pl.program_id(1)

    @pl.when((row == 0) & (block == 0))
    def _() -> None:
        of_weights[...] = jnp.zeros_like(of_weights)
        of_bias[...] = jnp.zeros_like(of_bias)

    @pl.when(block == 0)
    def _() -> None:
        of_predictions[...] = jnp.zeros_like(of_predictions)

    of_frames[...] = jnp.zeros_like(of_frames)

    @pl.when(block * frames.shape[0] < num_frames[row])
    def _() -> None:
        by_node = _hidden(frames, predictions, activation)
        hidden = by_node.reshape(-1, frames.shape[1]).astype(frames.dtype)
        of_blank, of_label, log_norm = given[0:1, :], given[1:2, :], given[2:3, :]

        def step(number: Array, of_hidden: Array) -> Array:
            some = pl.ds(number * LABELS, LABELS)
            logits, ids = _logits(hidden, weights, bias, number * LABELS)
            of_logits = -jnp.exp(logits - log_norm) * (of_blank + of_label)
            of_logits += jnp.where(ids == blank_id, of_blank, 0.0) + jnp.where(ids == labels[...], of_label, 0.0)
            low = of_logits.astype(frames.dtype)
            of_weights[some, :] += product(low, hidden, 1, 0)
            of_bias[some, :] += jnp.sum(of_logits, axis=1, keepdims=True)
            return of_hidden + product(low, weights[some, :], 0, 0)

        found = jax.lax.fori_loop(0, weights.shape[0] // LABELS, step, jnp.zeros(hidden.shape, jnp.float32))
        found = found.reshape(by_node.shape)
        found = jnp.where(by_node > 0, found, 0.0) if activation == "relu" else found * (1 - by_node * by_node)
        of_frames[...] = jnp.sum(found, axis=1)
        of_predictions[...] += jnp.sum(found, axis=0)

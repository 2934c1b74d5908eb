"""Attention with relative positions for NVIDIA GPUs: scores of a block of queries and keys stay in registers (Triton).

Sums over programs would have another order in each call. The gradients of queries, of keys and values, and of offsets
therefore have a kernel each, whose programs own their outputs.
"""

from typing import Any, no_type_check

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array

from asr_jax.kernels import log_space
from asr_jax.kernels.triton_calls import triton_call
from asr_jax.kernels.triton_frames import dot

MASKED = tl.constexpr(log_space.NEVER)
"""Score of masked keys."""
MOST_WIDTH = 128
"""Largest width of a head. Blocks of wider heads do not fit into registers."""
BLOCKS = {2: 32, 4: 16}
"""Number of queries, keys or offsets of a program by the size of a value in bytes; a power of 2 of at least 16. Larger
blocks spill registers (tests/kernels/test_resources.py)."""


def forward(
    query: Array, position_query: Array, key: Array, value: Array, offsets: Array, lengths: Array, *, scale: float
) -> tuple[Array, tuple[Array, ...]]:
    """Computes `api.relative_attention`, and what its gradient needs."""
    given = (query, position_query, key, value, offsets, lengths)
    rows, frames, heads, _ = query.shape
    constants = _constants(query, position_query, value, scale)
    mixed, logs = triton_call(
        *given,
        frames,
        heads,
        kernel=_forward_kernel,
        out=(jax.ShapeDtypeStruct(value.shape, value.dtype), jax.ShapeDtypeStruct((rows, frames, heads), jnp.float32)),
        grid=(triton.cdiv(frames, constants["BLOCK"]), heads, rows),
        **constants,
    )
    return mixed, (*given, mixed, logs)


def backward(kept: tuple[Array, ...], cotangent: Array, *, scale: float) -> tuple[Array | None, ...]:
    """Computes the gradients of `api.relative_attention`."""
    *given, mixed, logs = kept
    query, position_query, key, value, offsets, _ = given
    rows, frames, heads, _ = query.shape
    sums = jnp.sum(cotangent.astype(jnp.float32) * mixed.astype(jnp.float32), axis=-1)
    inputs = (*given, cotangent, logs, sums, frames, heads)
    constants = _constants(query, position_query, value, scale)
    blocks = triton.cdiv(frames, constants["BLOCK"])

    def call(kernel: Any, grid: tuple[int, ...], *outputs: Array, **more: int) -> Any:
        out = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in outputs)
        return triton_call(*inputs, *more.values(), kernel=kernel, out=out, grid=grid, **constants)

    of_query, of_position_query = call(_query_kernel, (blocks, heads, rows), query, position_query)
    of_key, of_value = call(_key_kernel, (blocks, heads, rows), key, value)
    (of_offsets,) = call(_offset_kernel, (triton.cdiv(len(offsets), constants["BLOCK"]), heads), offsets, rows=rows)
    return of_query, of_position_query, of_key, of_value, of_offsets, None


def _constants(query: Array, position_query: Array, value: Array, scale: float) -> dict[str, Any]:
    """Widths of the arrays and of their blocks, which are powers of 2 and at least 16, and options of the compiler.

    The scale is a constant, because jax-triton 0.3 passes numbers as float64, in which the kernel would compute.
    """
    widths = {"C": query.shape[3], "P": position_query.shape[3], "V": value.shape[3]}
    blocks = {f"{name}_BLOCK": max(triton.next_power_of_2(width), 16) for name, width in widths.items()}
    size = query.dtype.itemsize
    options = {"num_warps": 4 if size == 2 and max(widths.values()) <= 64 else 8, "num_stages": 4 // size}
    return widths | blocks | options | {"BLOCK": BLOCKS[size], "SCALE": scale}


@triton.jit
@no_type_check  # Triton's arguments have no types
def _places(row, frame, head, frames, heads, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Places of vectors of a head at frames of a row, and which of them are in the row: [frames, BLOCK]."""
    column = tl.arange(0, BLOCK)
    place = ((row * frames + frame[:, None]) * heads + head) * WIDTH + column[None, :]
    return place, (frame[:, None] >= 0) & (frame[:, None] < frames) & (column[None, :] < WIDTH)


@triton.jit
@no_type_check
def _rows(array, row, frame, head, frames, heads, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Vectors of a head at frames of a row, and zeros outside of the row: [frames, BLOCK]."""
    place, valid = _places(row, frame, head, frames, heads, WIDTH, BLOCK)
    return tl.load(array + place, mask=valid, other=0.0)


@triton.jit
@no_type_check
def _store(array, content, row, frame, head, frames, heads, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Stores vectors of a head at frames of a row."""
    place, valid = _places(row, frame, head, frames, heads, WIDTH, BLOCK)
    tl.store(array + place, content.to(array.dtype.element_ty), mask=valid)


@triton.jit
@no_type_check
def _numbers(array, row, frame, head, frames, heads):
    """Scalars of a head at frames of a row."""
    return tl.load(array + (row * frames + frame) * heads + head, mask=frame < frames, other=0.0)


@triton.jit
@no_type_check
def _scores(q, p, k, window, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """Scores of a block of queries and of keys. The window has the offsets of the last query from the first key on."""
    by_offset = dot(p, tl.trans(window))
    index = tl.arange(0, BLOCK)[None, :] + (BLOCK - 1 - tl.arange(0, BLOCK)[:, None])
    return SCALE * (dot(q, tl.trans(k)) + tl.gather(by_offset, index, 1))


@triton.jit
@no_type_check
def _forward_kernel(
    query,
    position_query,
    key,
    value,
    offsets,
    lengths,
    frames,
    heads,
    mixed,
    logs,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    V: tl.constexpr,
    C_BLOCK: tl.constexpr,
    P_BLOCK: tl.constexpr,
    V_BLOCK: tl.constexpr,
):
    """Computes the outputs of a block of queries of one head."""
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    t = block * BLOCK + tl.arange(0, BLOCK)
    q = _rows(query, row, t, head, frames, heads, C, C_BLOCK)
    p = _rows(position_query, row, t, head, frames, heads, P, P_BLOCK)
    length = tl.load(lengths + row)
    most = tl.full([BLOCK], MASKED, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    found = tl.zeros([BLOCK, V_BLOCK], tl.float32)
    for first in range(0, length, BLOCK):
        s = first + tl.arange(0, BLOCK)
        k = _rows(key, row, s, head, frames, heads, C, C_BLOCK)
        v = _rows(value, row, s, head, frames, heads, V, V_BLOCK)
        o = frames + first - (block + 1) * BLOCK + tl.arange(0, 2 * BLOCK)
        window = _rows(offsets, 0, o, head, 2 * frames - 1, heads, P, P_BLOCK)
        valid = (s < length)[None, :]
        scores = tl.where(valid, _scores(q, p, k, window, SCALE, BLOCK), MASKED)
        now = tl.maximum(most, tl.max(scores, 1))
        weights = tl.where(valid, tl.exp(scores - now[:, None]), 0.0)
        kept = tl.exp(most - now)
        total = total * kept + tl.sum(weights, 1)
        found = found * kept[:, None] + dot(weights.to(v.dtype), v)
        most = now
    total = tl.maximum(total, 1e-37)  # 0 without keys
    _store(mixed, found / total[:, None], row, t, head, frames, heads, V, V_BLOCK)
    tl.store(logs + (row * frames + t) * heads + head, most + tl.log(total), mask=t < frames)


@triton.jit
@no_type_check
def _query_kernel(
    query,
    position_query,
    key,
    value,
    offsets,
    lengths,
    cotangent,
    logs,
    sums,
    frames,
    heads,
    of_query,
    of_position_query,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    V: tl.constexpr,
    C_BLOCK: tl.constexpr,
    P_BLOCK: tl.constexpr,
    V_BLOCK: tl.constexpr,
):
    """Computes the gradients of a block of queries of one head."""
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    t = block * BLOCK + tl.arange(0, BLOCK)
    q = _rows(query, row, t, head, frames, heads, C, C_BLOCK)
    p = _rows(position_query, row, t, head, frames, heads, P, P_BLOCK)
    of_mixed = _rows(cotangent, row, t, head, frames, heads, V, V_BLOCK)
    log = _numbers(logs, row, t, head, frames, heads)
    total = _numbers(sums, row, t, head, frames, heads)
    length = tl.load(lengths + row)
    of_q = tl.zeros([BLOCK, C_BLOCK], tl.float32)
    of_p = tl.zeros([BLOCK, P_BLOCK], tl.float32)
    shift = tl.arange(0, 2 * BLOCK)[None, :] - (BLOCK - 1 - tl.arange(0, BLOCK)[:, None])
    for first in range(0, length, BLOCK):
        s = first + tl.arange(0, BLOCK)
        k = _rows(key, row, s, head, frames, heads, C, C_BLOCK)
        v = _rows(value, row, s, head, frames, heads, V, V_BLOCK)
        o = frames + first - (block + 1) * BLOCK + tl.arange(0, 2 * BLOCK)
        window = _rows(offsets, 0, o, head, 2 * frames - 1, heads, P, P_BLOCK)
        scores = _scores(q, p, k, window, SCALE, BLOCK)
        weights = tl.where((s < length)[None, :], tl.exp(scores - log[:, None]), 0.0)
        of_scores = SCALE * weights * (dot(of_mixed, tl.trans(v)) - total[:, None])
        of_q += dot(of_scores.to(k.dtype), k)
        there = (shift >= 0) & (shift < BLOCK)
        by_offset = tl.gather(of_scores, tl.where(there, shift, 0), 1)
        of_p += dot(tl.where(there, by_offset, 0.0).to(k.dtype), window)
    _store(of_query, of_q, row, t, head, frames, heads, C, C_BLOCK)
    _store(of_position_query, of_p, row, t, head, frames, heads, P, P_BLOCK)


@triton.jit
@no_type_check
def _key_kernel(
    query,
    position_query,
    key,
    value,
    offsets,
    lengths,
    cotangent,
    logs,
    sums,
    frames,
    heads,
    of_key,
    of_value,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    V: tl.constexpr,
    C_BLOCK: tl.constexpr,
    P_BLOCK: tl.constexpr,
    V_BLOCK: tl.constexpr,
):
    """Computes the gradients of a block of keys and values of one head."""
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    s = block * BLOCK + tl.arange(0, BLOCK)
    k = _rows(key, row, s, head, frames, heads, C, C_BLOCK)
    v = _rows(value, row, s, head, frames, heads, V, V_BLOCK)
    valid = (s < tl.load(lengths + row))[None, :]
    of_k = tl.zeros([BLOCK, C_BLOCK], tl.float32)
    of_v = tl.zeros([BLOCK, V_BLOCK], tl.float32)
    for first in range(0, frames, BLOCK):
        t = first + tl.arange(0, BLOCK)
        q = _rows(query, row, t, head, frames, heads, C, C_BLOCK)
        p = _rows(position_query, row, t, head, frames, heads, P, P_BLOCK)
        of_mixed = _rows(cotangent, row, t, head, frames, heads, V, V_BLOCK)
        o = frames + block * BLOCK - first - BLOCK + tl.arange(0, 2 * BLOCK)
        window = _rows(offsets, 0, o, head, 2 * frames - 1, heads, P, P_BLOCK)
        log = _numbers(logs, row, t, head, frames, heads)
        total = _numbers(sums, row, t, head, frames, heads)
        scores = _scores(q, p, k, window, SCALE, BLOCK)
        weights = tl.where(valid & (t < frames)[:, None], tl.exp(scores - log[:, None]), 0.0)
        of_scores = SCALE * weights * (dot(of_mixed, tl.trans(v)) - total[:, None])
        of_v += dot(tl.trans(weights.to(v.dtype)), of_mixed)
        of_k += dot(tl.trans(of_scores.to(q.dtype)), q)
    _store(of_key, of_k, row, s, head, frames, heads, C, C_BLOCK)
    _store(of_value, of_v, row, s, head, frames, heads, V, V_BLOCK)


@triton.jit
@no_type_check
def _offset_kernel(
    query,
    position_query,
    key,
    value,
    offsets,
    lengths,
    cotangent,
    logs,
    sums,
    frames,
    heads,
    rows,
    of_offsets,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    V: tl.constexpr,
    C_BLOCK: tl.constexpr,
    P_BLOCK: tl.constexpr,
    V_BLOCK: tl.constexpr,
):
    """Computes the gradients of a block of offsets of one head: scores are arranged by query and offset."""
    block, head = tl.program_id(0), tl.program_id(1)
    o = block * BLOCK + tl.arange(0, BLOCK)
    encoding = _rows(offsets, 0, o, head, 2 * frames - 1, heads, P, P_BLOCK)
    found = tl.zeros([BLOCK, P_BLOCK], tl.float32)
    # The key at offset o of query t is o - (frames - 1) + t: column o + t of the keys from `begin` on.
    column = tl.arange(0, BLOCK)[None, :] + tl.arange(0, BLOCK)[:, None]
    for row in range(rows):
        length = tl.load(lengths + row)
        for first in range(0, frames, BLOCK):
            begin = block * BLOCK - (frames - 1) + first
            t = first + tl.arange(0, BLOCK)
            keys = begin + tl.arange(0, 2 * BLOCK)
            q = _rows(query, row, t, head, frames, heads, C, C_BLOCK)
            p = _rows(position_query, row, t, head, frames, heads, P, P_BLOCK)
            k = _rows(key, row, keys, head, frames, heads, C, C_BLOCK)
            v = _rows(value, row, keys, head, frames, heads, V, V_BLOCK)
            of_mixed = _rows(cotangent, row, t, head, frames, heads, V, V_BLOCK)
            log = _numbers(logs, row, t, head, frames, heads)
            total = _numbers(sums, row, t, head, frames, heads)
            content = tl.gather(dot(q, tl.trans(k)), column, 1)
            scores = SCALE * (content + dot(p, tl.trans(encoding)))
            valid = (begin + column >= 0) & (begin + column < length) & (t < frames)[:, None]
            weights = tl.where(valid, tl.exp(scores - log[:, None]), 0.0)
            of_weights = tl.gather(dot(of_mixed, tl.trans(v)), column, 1)
            of_scores = SCALE * weights * (of_weights - total[:, None])
            found += dot(tl.trans(of_scores.to(p.dtype)), p)
    _store(of_offsets, found, 0, o, head, 2 * frames - 1, heads, P, P_BLOCK)

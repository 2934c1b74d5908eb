"""Shift of attention scores from offsets to keys for NVIDIA GPUs (Triton)."""

import math
from typing import Any, no_type_check

import jax
import triton
import triton.language as tl
from jaxtyping import Array

from asr_jax.kernels.elementwise_triton import in_blocks, places
from asr_jax.kernels.gradients import of_inputs


def _forward(scores: Array) -> Array:
    *rest, queries, offsets = scores.shape
    return _moved(scores, (*rest, queries, offsets - queries + 1), _forward_kernel)


def _backward(scores: Array, dy: Array) -> tuple[Array]:
    return (_moved(dy, scores.shape, _backward_kernel),)


def _moved(x: Array, shape: tuple[int, ...], kernel: Any) -> Array:
    *rest, queries, width = shape
    out = jax.ShapeDtypeStruct(shape, x.dtype)
    return in_blocks(
        x, queries, width, x.shape[-1], kernel=kernel, like=out, rows=math.prod(rest), size=queries * width
    )


relative_shift = of_inputs(_forward, _backward)


@triton.jit
@no_type_check  # Triton's arguments have no types
def _forward_kernel(x, queries, keys, offsets, size, y, BLOCK: tl.constexpr):
    matrix, place = places(size, BLOCK)
    t, s = place // keys, place % keys
    score = tl.load(x + (matrix * queries + t) * offsets + queries - 1 + s - t, mask=place < size)
    tl.store(y + matrix * size + place, score, mask=place < size)


@triton.jit
@no_type_check
def _backward_kernel(dy, queries, offsets, keys, size, dx, BLOCK: tl.constexpr):
    matrix, place = places(size, BLOCK)
    t = place // offsets
    s = place % offsets - (queries - 1) + t
    there = (place < size) & (s >= 0) & (s < keys)
    score = tl.load(dy + (matrix * queries + t) * keys + s, mask=there, other=0.0)  # 0: no key has this offset
    tl.store(dx + matrix * size + place, score, mask=place < size)

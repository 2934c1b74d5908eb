"""Masks made from lengths, and arrays without their padding, for NVIDIA GPUs (Triton)."""

from typing import Any, no_type_check

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array

from asr_jax.kernels.elementwise_triton import in_blocks, places
from asr_jax.kernels.masking.gradient import masked_sum_of


def _summed(lengths: Array, x: Array, update: Array | None = None, *, axis: int) -> Array:
    """Computes `reference.masked_sum`. Padding is not read."""
    frames, inner = x.shape[axis], x.shape[2] if axis == 1 else 1
    given = (x, x if update is None else update, lengths, frames, inner)
    size = x.shape[1] * x.shape[2]
    return in_blocks(*given, kernel=_sum_kernel, like=x, rows=len(x), size=size, ADD=update is not None)


masked_sum = masked_sum_of(_summed)


def mask(lengths: Array, heads: int, queries: int, keys: int, *, inverted: bool = False) -> Array:
    """Computes `reference.mask`."""
    out: Any = jax.ShapeDtypeStruct((len(lengths), heads, queries, keys), jnp.bool_)
    size = heads * queries * keys
    return in_blocks(
        lengths, queries, keys, kernel=_mask_kernel, like=out, rows=len(lengths), size=size, INVERTED=inverted
    )


@triton.jit
@no_type_check  # Triton's arguments have no types
def _sum_kernel(x, update, lengths, frames, inner, size, y, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row, place = places(size, BLOCK)
    there = place < size
    valid = there & ((place // inner) % frames < tl.load(lengths + row))
    found = tl.load(x + row * size + place, mask=valid, other=0.0).to(tl.float32)
    if ADD:
        found += tl.load(update + row * size + place, mask=valid, other=0.0).to(tl.float32)
    tl.store(y + row * size + place, found.to(y.dtype.element_ty), mask=there)


@triton.jit
@no_type_check
def _mask_kernel(lengths, queries, keys, size, mask, INVERTED: tl.constexpr, BLOCK: tl.constexpr):
    row, place = places(size, BLOCK)
    length = tl.load(lengths + row)
    valid = (place % keys < length) & ((place // keys) % queries < length)
    tl.store(mask + row * size + place, valid != INVERTED, mask=place < size)

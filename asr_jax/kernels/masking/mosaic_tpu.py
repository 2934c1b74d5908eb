"""Masks made from lengths, and arrays without their padding, for TPUs (Pallas)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool

from asr_jax.kernels.elementwise_tpu import in_blocks, index
from asr_jax.kernels.masking.gradient import masked_sum_of


def _summed(lengths: Array, *arrays: Array, axis: int) -> Array:
    kernel = partial(_sum_kernel, axis=axis - 1)
    return in_blocks(kernel, *arrays, like=arrays[0], lengths=lengths, name="masked")


masked_sum = masked_sum_of(_summed)


def mask(lengths: Array, heads: int, queries: int, keys: int, *, inverted: bool = False) -> Array:
    """Computes `reference.mask`."""
    of_heads = jnp.repeat(lengths, heads)
    out = jax.ShapeDtypeStruct((len(of_heads), queries, keys), jnp.bool_)
    kernel = partial(_mask_kernel, inverted=inverted)
    found = in_blocks(kernel, like=out, lengths=of_heads, name="mask")
    return found.reshape(-1, heads, queries, keys)


def _sum_kernel(lengths: Any, *arrays: Any, axis: int) -> None:
    *given, y = arrays
    total = sum(each[...].astype(jnp.float32) for each in given)
    y[...] = jnp.where(_valid(lengths, y.shape, axis), total, 0).astype(y.dtype)


def _mask_kernel(lengths: Any, mask: Any, *, inverted: bool) -> None:
    valid = _valid(lengths, mask.shape, 0) & _valid(lengths, mask.shape, 1)
    mask[...] = ~valid if inverted else valid


def _valid(lengths: Any, shape: tuple[int, ...], axis: int) -> Bool[Array, "_ _"]:
    """Whether the elements of a block belong to valid frames, which are along an axis of it."""
    return index(shape, axis) < lengths[pl.program_id(0)]

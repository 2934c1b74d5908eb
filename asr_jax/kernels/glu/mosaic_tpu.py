"""Gated linear unit for TPUs (Pallas)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from asr_jax.kernels.elementwise_tpu import in_blocks, matrices
from asr_jax.kernels.gradients import of_inputs


def glu(x: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Computes `api.glu`. `axis` is -1 or -2."""
    return of_inputs(partial(_forward, axis), partial(_backward, axis))(x)


def _forward(axis: int, x: Array) -> Array:
    given = matrices(x)
    out = [*given.shape]
    out[axis] //= 2
    like = jax.ShapeDtypeStruct(tuple(out), x.dtype)
    kernel = partial(_forward_kernel, axis=2 + axis)
    found = in_blocks(kernel, given, like=like, whole=2 + axis, name="glu")
    shape = [*x.shape]
    shape[axis] //= 2
    return found.reshape(shape)


def _backward(axis: int, x: Array, dy: Array) -> tuple[Array]:
    given = matrices(x), matrices(dy)
    kernel = partial(_backward_kernel, axis=2 + axis)
    found = in_blocks(kernel, *given, like=given[0], whole=2 + axis, name="glu_gradient")
    return (found.reshape(x.shape),)


def _forward_kernel(x: Any, y: Any, *, axis: int) -> None:
    value, gate = _loaded(x, axis)
    y[...] = (value * gate).astype(y.dtype)


def _backward_kernel(x: Any, dy: Any, dx: Any, *, axis: int) -> None:
    value, gate = _loaded(x, axis)
    gradient = dy[...].astype(jnp.float32)
    of_both = [gradient * gate, gradient * value * gate * (1 - gate)]
    dx[...] = jnp.concatenate(of_both, axis).astype(dx.dtype)


def _loaded(x: Any, axis: int) -> tuple[Array, Array]:
    value, gate = jnp.split(x[...].astype(jnp.float32), 2, axis)
    return value, jax.nn.sigmoid(gate)

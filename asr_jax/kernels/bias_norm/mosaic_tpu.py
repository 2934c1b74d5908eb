"""Bias norm for TPUs: blocks of rows are read once, for values and for gradients (Pallas)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from asr_jax.kernels.bias_norm.reference import TINY

BLOCK = 1 << 17
"""Largest number of values of a block: three blocks, each twice, take 3 MB of VMEM."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def bias_norm(
    x: Float[Array, "N D"], bias: Float[Array, " D"], log_scale: Float[Array, ""], interpret: bool = False
) -> Float[Array, "N D"]:
    """Computes `api.bias_norm`. `interpret` runs it in Pallas' interpreter."""
    return _forward(x, bias, log_scale, interpret)[0]


def _forward(
    x: Array, bias: Array, log_scale: Array, interpret: bool
) -> tuple[Array, tuple[Array, Array, Array]]:  # fmt: skip
    """Computes `bias_norm`, and what its gradient needs."""
    y = _called(_forward_kernel, (x,), bias, log_scale, [jax.ShapeDtypeStruct(x.shape, x.dtype)], interpret)[0]
    return y, (x, bias, log_scale)


def _backward(interpret: bool, saved: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array, Array]:
    """Computes the gradients of `bias_norm`."""
    x, bias, log_scale = saved
    shapes = [(x.shape, x.dtype), ((1, len(bias)), jnp.float32), ((1, 1), jnp.float32)]
    outputs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    dx, of_bias, of_scale = _called(
        functools.partial(_backward_kernel, num_rows=len(x)), (x, dy), bias, log_scale, outputs, interpret
    )
    return dx, of_bias[0].astype(bias.dtype), of_scale[0, 0].astype(log_scale.dtype)


bias_norm.defvjp(_forward, _backward)


def _called(
    body: Any, of_rows: tuple[Array, ...], bias: Array, log_scale: Array, outputs: list[Any], interpret: bool
) -> Any:
    """Calls a kernel for blocks of rows, one after the other."""
    num_rows, width = of_rows[0].shape
    block = min(max(BLOCK // width // 16 * 16, 16), num_rows)

    def spec(array: Any) -> Any:
        if array.shape[0] == 1:
            return pl.BlockSpec(array.shape, lambda i: (0, 0))
        return pl.BlockSpec((block, width), lambda i: (i, 0))

    given = (*of_rows, bias.astype(jnp.float32)[None], log_scale.astype(jnp.float32)[None, None])
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(num_rows, block),),
        in_specs=list(map(spec, given)),
        out_specs=list(map(spec, outputs)),
        out_shape=outputs,
        # The gradients of the parameters are sums over programs, which run one after the other.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=interpret,
        name="bias_norm",
    )(*given)


def _deviation(values: Float[Array, "N D"], bias: Any) -> tuple[Array, Array]:
    """Returns the deviation of rows from the bias, and the inverse of its root mean square."""
    deviation = values - bias[...]
    return deviation, jax.lax.rsqrt(jnp.mean(deviation**2, axis=1, keepdims=True) + TINY)


def _forward_kernel(x: Any, bias: Any, log_scale: Any, y: Any) -> None:
    values = x[...].astype(jnp.float32)
    _, inverse = _deviation(values, bias)
    y[...] = (values * (inverse * jnp.exp(log_scale[...]))).astype(y.dtype)


def _backward_kernel(
    x: Any, dy: Any, bias: Any, log_scale: Any, dx: Any, of_bias: Any, of_scale: Any, *, num_rows: int
) -> None:
    """Computes the gradients of a block of rows, and adds their sums to the gradients of the parameters."""

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        of_bias[...], of_scale[...] = jnp.zeros_like(of_bias), jnp.zeros_like(of_scale)

    row = pl.program_id(0) * len(x) + jax.lax.broadcasted_iota(jnp.int32, (len(x), 1), 0)
    values, of_y = (jnp.where(row < num_rows, each[...].astype(jnp.float32), 0.0) for each in (x, dy))
    deviation, inverse = _deviation(values, bias)
    factor = inverse * jnp.exp(log_scale[...])
    of_scales = factor * jnp.sum(of_y * values, axis=1, keepdims=True)
    through = of_scales * inverse**2 / x.shape[1] * deviation
    dx[...] = (of_y * factor - through).astype(dx.dtype)
    of_bias[...] += jnp.sum(through, axis=0, keepdims=True)
    of_scale[...] += jnp.sum(of_scales, axis=0, keepdims=True)

"""Parts of batch norm for TPUs: blocks of frames are read once (Pallas)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from asr_jax.kernels.masked_batch_norm.reference import Sums

BLOCK = 1 << 17
"""Largest number of values of a block: three blocks, each twice, take 3 MB of VMEM."""


def masked_sums(
    x: Float[Array, "B T D"], lengths: Int[Array, " B"], shift: Float[Array, " D"] | None, *, interpret: bool = False
) -> Sums:
    """Computes `api.masked_sums`. `interpret` runs it in Pallas' interpreter."""
    shift = jnp.zeros(x.shape[2], jnp.float32) if shift is None else shift
    return _summed(_masked_sums_kernel, lengths, (x,), (shift,), interpret)


def gradient_sums(
    x: Float[Array, "B T D"], dy: Float[Array, "B T D"], mean: Float[Array, " D"], inverse: Float[Array, " D"],
    *, interpret: bool = False,
) -> Sums:  # fmt: skip
    """Computes `api.gradient_sums`. `interpret` runs it in Pallas' interpreter."""
    return _summed(_gradient_sums_kernel, _all_frames(x), (x, dy), (mean, inverse), interpret)


def normalise(
    x: Float[Array, "B T D"], mean: Float[Array, " D"], scale: Float[Array, " D"], bias: Float[Array, " D"],
    *, interpret: bool = False,
) -> Float[Array, "B T D"]:  # fmt: skip
    """Computes `api.normalise`. `interpret` runs it in Pallas' interpreter."""
    outputs = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
    return _called(_normalise_kernel, _all_frames(x), (x,), (mean, scale, bias), outputs, interpret)[0]


def input_gradient(
    x: Float[Array, "B T D"], dy: Float[Array, "B T D"], lengths: Int[Array, " B"], mean: Float[Array, " D"],
    inverse: Float[Array, " D"], gain: Float[Array, " D"], sums: Sums, num: Float[Array, ""],
    *, interpret: bool = False,
) -> Float[Array, "B T D"]:  # fmt: skip
    """Computes `api.input_gradient`. `interpret` runs it in Pallas' interpreter."""
    outputs = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
    of_channels = (mean, inverse, gain, *(each / num for each in sums))
    return _called(_input_gradient_kernel, lengths, (x, dy), of_channels, outputs, interpret)[0]


def _summed(
    body: Any, lengths: Array, of_frames: tuple[Array, ...], of_channels: tuple[Array, ...], interpret: bool
) -> Sums:
    sums = jax.ShapeDtypeStruct((1, of_frames[0].shape[2]), jnp.float32)
    first, second = _called(body, lengths, of_frames, of_channels, [sums, sums], interpret)
    return first[0], second[0]


def _called(
    body: Any, lengths: Array, of_frames: tuple[Array, ...], of_channels: tuple[Array, ...], outputs: list[Any],
    interpret: bool,
) -> Any:  # fmt: skip
    """Calls a kernel for blocks of frames, one after the other."""
    rows, num_frames, width = of_frames[0].shape
    frames = min(max(BLOCK // width // 16 * 16, 16), num_frames)

    def spec(array: Any) -> Any:
        if array.ndim == 2:
            return pl.BlockSpec((1, width), lambda b, t, _: (0, 0))
        return pl.BlockSpec((None, frames, width), lambda b, t, _: (b, t, 0))

    given = (*of_frames, *(each.astype(jnp.float32)[None] for each in of_channels))
    return pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(rows, pl.cdiv(num_frames, frames)),
            in_specs=list(map(spec, given)),
            out_specs=list(map(spec, outputs)),
        ),
        out_shape=outputs,
        # Sums are over programs, which run one after the other.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary", "arbitrary")),
        interpret=interpret,
        name=body.__name__.strip("_"),
    )(lengths.astype(jnp.int32), *given)


def _all_frames(x: Float[Array, "B T D"]) -> Int[Array, " B"]:
    return jnp.full(x.shape[0], x.shape[1], jnp.int32)


def _valid(lengths: Any, frames: int) -> Array:
    """Returns whether each frame of the block is valid: [frames, 1]."""
    t = pl.program_id(1) * frames + jax.lax.broadcasted_iota(jnp.int32, (frames, 1), 0)
    return t < lengths[pl.program_id(0)]


def _add(total: Any, values: Array) -> None:
    """Adds the sum over a block of frames to the sum over all frames."""

    @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    total[...] += jnp.sum(values, axis=0, keepdims=True)


def _masked_sums_kernel(lengths: Any, x: Any, shift: Any, sums: Any, squares: Any) -> None:
    deviation = jnp.where(_valid(lengths, len(x)), x[...].astype(jnp.float32) - shift[...], 0.0)
    _add(sums, deviation)
    _add(squares, deviation**2)


def _gradient_sums_kernel(lengths: Any, x: Any, dy: Any, mean: Any, inverse: Any, of_bias: Any, of_gain: Any) -> None:
    of_y = jnp.where(_valid(lengths, len(x)), dy[...].astype(jnp.float32), 0.0)
    unit = (x[...].astype(jnp.float32) - mean[...]) * inverse[...]
    _add(of_bias, of_y)
    _add(of_gain, jnp.where(of_y != 0, of_y * unit, 0.0))


def _normalise_kernel(lengths: Any, x: Any, mean: Any, scale: Any, bias: Any, y: Any) -> None:
    y[...] = ((x[...].astype(jnp.float32) - mean[...]) * scale[...] + bias[...]).astype(y.dtype)


def _input_gradient_kernel(
    lengths: Any, x: Any, dy: Any, mean: Any, inverse: Any, gain: Any, bias_mean: Any, gain_mean: Any, dx: Any
) -> None:
    through = bias_mean[...] + (x[...].astype(jnp.float32) - mean[...]) * (inverse[...] * gain_mean[...])
    of_y = dy[...].astype(jnp.float32) - jnp.where(_valid(lengths, len(x)), through, 0.0)
    dx[...] = (gain[...] * inverse[...] * of_y).astype(dx.dtype)

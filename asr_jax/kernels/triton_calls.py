"""Calls of Triton kernels in the versions of jax-triton that this package supports."""

import inspect
import math
import os
from typing import Any

import jax
import jax.custom_batching
import jax_triton
import numpy as np
from jax_triton import triton_lib

from asr_jax.core.devices import traced_for
from asr_jax.kernels.implementations import MOST_ELEMENTS

PTX_VERSION = 86
"""Version of the code that Triton writes, that of CUDA 12.7. XLA assembles it with its own ptxas, which is older than
Triton's."""
_PARAMETERS = inspect.signature(jax_triton.triton_call).parameters
_OUT = "out_type" if "out_type" in _PARAMETERS else "out_shape"

# The rule of jax-triton 0.4.1 for calls whose outputs are not used has the arguments of an earlier JAX, and fails in
# JAX 0.12. Without it, JAX's own rule removes such calls. jax-triton 0.3.1 has none.
if hasattr(triton_lib, "pe"):
    triton_lib.pe.dce_rules.pop(triton_lib.triton_kernel_call_p, None)
# Triton warns if this is not set. 1 is the default of all its versions until 3.9.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def warps_of(width: int) -> int:
    """Returns the number of warps of a program whose states are `width` values, a power of 2."""
    return max(min(width // 128, 8), 1)


def triton_call(*arguments: Any, kernel: Any, out: Any, grid: tuple[int, ...], **options: Any) -> Any:
    """Calls a Triton kernel on arrays, and returns its outputs.

    Args:
        arguments: Arrays and numbers, in the order of the kernel's first arguments.
        kernel: Function decorated with `triton.jit`. Its next arguments are the outputs.
        out: Shapes of the outputs, as `jax.ShapeDtypeStruct`.
        grid: Number of programs in up to three dimensions.
        options: Constants of the kernel, and options of `jax_triton.triton_call`.

    Raises:
        ValueError: If an array has more than `MOST_ELEMENTS` elements.
    """
    for each in (*arguments, *out):
        shape = getattr(each, "shape", ())
        if math.prod(shape) > MOST_ELEMENTS:
            raise ValueError(f"array of {shape}: expected at most {MOST_ELEMENTS:,} elements for triton")
    if capability := traced_for().capability:  # jax-triton asks a GPU of this machine otherwise
        options = {"compute_capability": capability} | options
    if "backend_options" in _PARAMETERS:
        options = {"backend_options": {"ptx_version": PTX_VERSION}} | options
    else:  # jax-triton 0.3.1 passes Python's numbers as float64
        arguments = tuple(np.float32(each) if isinstance(each, float) else each for each in arguments)
    places = [place for place, each in enumerate(arguments) if isinstance(each, jax.Array | np.ndarray)]

    @jax.custom_batching.sequential_vmap  # jax-triton has no rule for vmap
    def call(*arrays: Any) -> Any:
        given = dict(zip(places, arrays, strict=True))
        return jax_triton.triton_call(
            *(given.get(place, each) for place, each in enumerate(arguments)),
            kernel=kernel,
            grid=grid,
            **{_OUT: out},
            **options,
        )

    return call(*(arguments[place] for place in places))

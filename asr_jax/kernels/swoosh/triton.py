"""Swoosh activations and shifted swish for NVIDIA GPUs (Triton)."""

from typing import no_type_check

import triton
import triton.language as tl

from asr_jax.kernels.elementwise_triton import elementwise
from asr_jax.kernels.swoosh.reference import SWISHES, SWOOSHES


@triton.jit
@no_type_check  # Triton's arguments have no types
def _swoosh(x, CONSTANTS: tl.constexpr):
    shifted = x - CONSTANTS[0]
    softplus = tl.maximum(shifted, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(shifted)))
    return softplus - 0.08 * x - CONSTANTS[1]


@triton.jit
@no_type_check
def _swoosh_slope(x, CONSTANTS: tl.constexpr):
    return tl.sigmoid(x - CONSTANTS[0]) - 0.08


@triton.jit
@no_type_check
def _shifted_swish(x, CONSTANTS: tl.constexpr):
    return x * tl.sigmoid(x - CONSTANTS[0])


@triton.jit
@no_type_check
def _shifted_swish_slope(x, CONSTANTS: tl.constexpr):
    gate = tl.sigmoid(x - CONSTANTS[0])
    return gate * (1.0 + x * (1.0 - gate))


FUNCTIONS = {name: elementwise(_swoosh, _swoosh_slope, *constants) for name, constants in SWOOSHES.items()} | {
    name: elementwise(_shifted_swish, _shifted_swish_slope, *constants) for name, constants in SWISHES.items()
}

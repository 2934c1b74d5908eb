"""Precision of computations.

These are float32 with every precision: parameters (the master weights), statistics, optimizer state and averages; the
front-end and its features; losses, log-probabilities and the heads' logits; normalisation, softmax and the attention
scores before it; gradients outside of the model. Other activations, and the weights that multiply them, have
`compute_dtype`.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from asr_jax.core.errors import UserError

Precision = Literal["f32", "tf32", "bf16", "f16"]
"""f32: float32 with full products. tf32: float32, with products that a GPU or TPU may round to 10 bits. bf16: 8 bits
and the range of float32. f16: 11 bits and a small range, for which the loss is scaled (`optim.loss_scale`)."""


def compute_dtype(precision: Precision) -> DTypeLike:
    """Returns the type of activations and of the weights that multiply them."""
    return {"f32": jnp.float32, "tf32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}[precision]


def set_products(precision: Precision) -> None:
    """Sets how JAX computes float32 products on devices that can round them: in full with f32, rounded otherwise.

    With the other precisions, values are kept in float32 for its range and for sums, not for exact products.

    Raises:
        UserError: If the precision is f16 and XLA cannot compile float16 for this machine's device.
    """
    if precision == "f16" and not compiles_float16():
        raise UserError(
            "precision f16: XLA cannot compile float16 for this CPU, which lacks the instructions (F16C); expected f32 "
            "or bf16"
        )
    jax.config.update("jax_default_matmul_precision", "highest" if precision == "f32" else "tensorfloat32")


@functools.cache
def compiles_float16() -> bool:
    """Returns whether XLA compiles float16 for the default device.

    It does not for an x86 CPU without F16C, nor under `--xla_cpu_max_isa=SSE4_2`.
    """
    try:
        jax.jit(lambda x: x.astype(jnp.float16)).lower(jax.ShapeDtypeStruct((8,), jnp.float32)).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True

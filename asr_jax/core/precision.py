"""Which types are computed in, for all of the package.

Always float32, whatever the precision: parameters (the master weights), statistics, optimizer state and averages; the
front-end and its features; losses, log-probabilities and the heads' logits; normalisation, softmax and the scores of
attention before it; gradients once they leave the model. All else, activations and the weights that multiply them, is
in `compute_dtype`.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from asr_jax.core.errors import UserError

Precision = Literal["f32", "tf32", "bf16", "f16"]
"""f32: products of full float32. tf32: float32 whose products a GPU or TPU may round to 10 bits. bf16: the range of
float32 with 8 bits. f16: 11 bits with a small range, for which the loss is scaled (`optim.loss_scale`)."""


def compute_dtype(precision: Precision) -> DTypeLike:
    """The type of activations and of the weights that multiply them."""
    return {"f32": jnp.float32, "tf32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}[precision]


def set_products(precision: Precision) -> None:
    """How products of float32 numbers are computed from here on, on devices that can round them: in full with f32,
    rounded with all others, where what stays in float32 does so for its range and its sums.

    Raises: UserError for f16 if XLA compiles no float16 for this machine's device.
    """
    if precision == "f16" and not compiles_float16():
        raise UserError(
            "precision f16: XLA cannot compile float16 for this CPU, which lacks the instructions (F16C); expected f32 "
            "or bf16"
        )
    jax.config.update("jax_default_matmul_precision", "highest" if precision == "f32" else "tensorfloat32")


@functools.cache
def compiles_float16() -> bool:
    """Whether XLA compiles float16 for the default device: not for an x86 CPU without F16C, nor under
    `--xla_cpu_max_isa=SSE4_2`.
    """
    try:
        jax.jit(lambda x: x.astype(jnp.float16)).lower(jax.ShapeDtypeStruct((8,), jnp.float32)).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True

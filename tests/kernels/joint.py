"""Sizes of the joint network of transducers, and the values and gradients of its reference."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.kernels import cases
from asr_jax.kernels.transducer_joint.api import transducer_joint
from tests.kernels.drawn import drawn

SIZES = [(3, 11, 5, 20, 37, "relu"), (2, 35, 10, 70, 270, "tanh"), (1, 1, 1, 3, 2, "tanh")]
"""Rows, frames, label positions, channels, labels with the blank, and activation: odd sizes, several blocks, one
node."""
DRAWN = [
    (*sizes, ("relu", "tanh")[number % 2])
    for number, sizes in enumerate(drawn("transducer_joint", (1, 3), (1, 40), (1, 20), (1, 80), (2, 300)))
]
BLANK = 1


def made(sizes: tuple[Any, ...], dtype: Any = jnp.float32) -> tuple[Any, ...]:
    given = cases.joint(*sizes[:5])
    return jax.device_put((*(each.astype(dtype) for each in given[:4]), *given[4:]))


def reference_gradients(given: tuple[Any, ...], activation: Any) -> tuple[Any, Any, Any]:
    """Values of the reference, random cotangents that are 0 at padding, and the gradients."""

    @jax.jit
    def all_of(*arrays: Any) -> tuple[Any, Any, Any]:
        call = functools.partial(transducer_joint, blank_id=BLANK, activation=activation, implementation="reference")
        values, transpose = jax.vjp(lambda *each: call(*each, *given[4:]), *arrays)
        random = np.random.default_rng(0)
        cotangents = tuple(jnp.asarray(random.normal(size=each.shape), each.dtype) * (each != 0) for each in values)
        return values, cotangents, transpose(cotangents)

    return all_of(*given[:4])  # type: ignore[no-any-return]

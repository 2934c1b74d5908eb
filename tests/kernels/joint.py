"""Inputs of the joint network of transducers, and the values and gradients of its reference."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
    rows, frames, positions, width, vocab_size, _ = sizes
    random = np.random.default_rng(frames)
    shapes = [(rows, frames, width), (rows, positions, width), (width, vocab_size), (vocab_size,)]
    arrays = [
        jax.device_put(np.asarray(scale * random.normal(size=shape), dtype))
        for scale, shape in zip((1, 1, 0.3, 1), shapes, strict=True)
    ]
    labels = random.integers(0, vocab_size, (rows, positions - 1))
    lengths = random.integers(1, frames + 1, rows), random.integers(0, positions, rows)
    lengths[0][-1], lengths[1][-1] = frames, positions - 1
    if rows > 1:
        lengths[0][0], lengths[1][0] = 0, 0
    return *arrays, *(jax.device_put(np.asarray(each, np.int32)) for each in (labels, *lengths))


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

"""Sizes of arrays that may be unknown: programs of `jax.export` for any number of rows and of frames.

A size is an int, or a symbolic dimension of `jax.export.symbolic_shape`. A symbolic dimension has no value: it cannot
be the argument of `range`, `np.arange` or `len`, and a comparison with a number is an error unless the constraints of
its scope decide it. `jax.core.max_dim` and `min_dim` replace `max` and `min`, and `x.shape[0]` replaces `len(x)`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

DimSize = Any
"""An int or a symbolic dimension, which has no public class."""


def is_static(*sizes: DimSize) -> bool:
    """Returns whether all sizes are ints."""
    return not any(map(jax.export.is_symbolic_dim, sizes))


def numbers(first: DimSize, after: DimSize) -> Any:
    """Returns the integers first, first + 1, …, after - 1: a constant of NumPy for ints, otherwise an array of JAX."""
    return (np if is_static(first, after) else jnp).arange(first, after)


def first_frames(x: Shaped[Array, "B T ..."], num_frames: DimSize) -> Shaped[Array, "B S ..."]:
    """Returns the first `num_frames` frames of `x`, at most T.

    JAX cannot decide some comparisons of the symbolic dimension T, although it can decide them for an equal one.
    """
    if is_static(num_frames):
        return x[:, :num_frames]
    return jnp.take(x, jnp.arange(num_frames), axis=1, mode="clip")

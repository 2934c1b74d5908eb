"""Random parameters of modules."""

from typing import Any

import jax
import numpy as np
from flax import linen as nn


def drawn_params(module: nn.Module, *inputs: Any) -> Any:
    """Returns random parameters.

    NumPy draws them, because compiling a program that initialises them takes as long as compiling some losses.
    """
    init = lambda *inputs: module.init(jax.random.key(0), *inputs, step=None)["params"]  # noqa: E731
    rng = np.random.default_rng(0)

    def drawn(path: Any, leaf: Any) -> np.ndarray:
        if path[-1].key == "scale":
            return np.ones(leaf.shape, leaf.dtype)
        return np.asarray(rng.normal(size=leaf.shape) / np.sqrt(max(leaf.shape[:1], default=1)), leaf.dtype)

    return jax.tree_util.tree_map_with_path(drawn, jax.eval_shape(init, *inputs))

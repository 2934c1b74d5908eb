"""Activation rematerialisation of the layers of a stack, by named policies."""

from typing import Any, Literal

import jax
from flax import linen as nn

Remat = Literal["none", "products", "layers"]
"""What of a layer is kept for the backward pass. none: all of it is kept, and nothing computed again. products: what
comes out of products with weights is kept, and the rest (attention's scores and products, convolutions, activations,
norms) computed again. layers: each layer's input alone is kept, and all of it computed again."""


def rematerialised(module: Any, remat: Remat) -> Any:
    """A class of modules that computes again in the backward pass what the policy says; inside of a scan."""
    if remat == "none":
        return module
    policies = jax.checkpoint_policies
    policy = {"products": policies.dots_with_no_batch_dims_saveable, "layers": policies.nothing_saveable}[remat]
    return nn.remat(module, prevent_cse=False, policy=policy)

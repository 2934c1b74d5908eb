"""Activation rematerialisation of the layers of a stack, by named policies."""

from typing import Any, Literal

import jax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

Remat = Literal["none", "elementwise", "products", "layers"]
"""What of a layer is kept for the backward pass. none: all of it is kept, and nothing computed again. elementwise:
what comes out of products and convolutions, and statistics of batches; activations, norms, masks and dropout are
computed again, which takes less time than to write and read them. products: what comes out of products with weights
alone, and the rest (attention's scores and products, depthwise convolutions) computed again too. layers: each layer's
input alone is kept, and all of it computed again."""

SAVED, WEIGHTED = "saved", "weighted"


def saved(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`x`, marked as what `elementwise` keeps, as it does products without a mark."""
    return checkpoint_name(x, SAVED)


def weighted(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`x`, marked as a product with weights: where such a product is a convolution or has axes that are no sums, the
    policies do not see it themselves.
    """
    return checkpoint_name(x, WEIGHTED)


def rematerialised(module: Any, remat: Remat) -> Any:
    """A class of modules that computes again in the backward pass what the policy says; inside of a scan."""
    if remat == "none":
        return module
    policies = jax.checkpoint_policies
    kept = {
        "elementwise": policies.save_from_both_policies(
            policies.dots_saveable, policies.save_only_these_names(SAVED, WEIGHTED)
        ),
        "products": policies.save_from_both_policies(
            policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names(WEIGHTED)
        ),
        "layers": policies.nothing_saveable,
    }
    return nn.remat(module, prevent_cse=False, policy=kept[remat])

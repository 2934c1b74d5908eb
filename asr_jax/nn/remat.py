"""Rematerialisation of the activations of layers in a stack, with named policies."""

from typing import Any, Literal

import jax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from asr_jax.kernels.gradients import SAVED

Remat = Literal["none", "elementwise", "products", "layers"]
"""Rematerialisation policy: the activations that the backward pass recomputes instead of storing.

none: all activations are stored. elementwise: outputs of matrix products and convolutions and batch statistics are
stored; activation functions, norms, masks and dropout are recomputed, which is faster than to write and read them.
products: only outputs of products with weights are stored; attention scores and products and depthwise convolutions are
recomputed too. layers: only the input of each layer is stored.
"""

WEIGHTED = "weighted"


def saved(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns `x`, marked to be stored by the policy "elementwise". Matrix products need no mark."""
    return checkpoint_name(x, SAVED)


def weighted(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns `x`, marked as a product with weights.

    The policies do not recognise such products if they are convolutions or have batch dimensions.
    """
    return checkpoint_name(x, WEIGHTED)


def rematerialised(module: Any, remat: Remat) -> Any:
    """Returns a module class that applies the policy `remat` in the backward pass, for use within `nn.scan`."""
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

"""Gated linear unit, with an implementation chosen for the device."""

from jaxtyping import Array, Float

from asr_jax.kernels.implementations import Implementation, module_of


def glu(x: Float[Array, "..."], *, axis: int = -1, implementation: Implementation = "auto") -> Float[Array, "..."]:
    """Multiplies the first half of an axis by the logistic function of the second half.

    Source: Dauphin et al. 2017, "Language modeling with gated convolutional networks" (arXiv:1612.08083).

    Args:
        x: Values and gates, such as [B T 2C], or [B 2C T] with the axis -2.
        axis: The last axis (-1) or the one before it (-2).

    Returns:
        The gated values, in the dtype of `x`. Kernels compute them in float32.

    Raises:
        ValueError: If the axis is another one or its size is odd.
    """
    if axis - x.ndim * (axis >= 0) not in (-1, -2)[: x.ndim]:
        raise ValueError(
            f"axis {axis} of an array with {x.ndim} axes: expected the last one (-1) or that before it (-2)"
        )
    if x.shape[axis] % 2:
        raise ValueError(f"axis {axis} has size {x.shape[axis]}: expected an even number, the values and their gates")
    return module_of("glu", implementation, x).glu(x, axis - x.ndim * (axis >= 0))

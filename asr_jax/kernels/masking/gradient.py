"""The gradient of masked sums, which is the same for all kernels."""

from collections.abc import Callable

from jaxtyping import Array, Float, Int

from asr_jax.kernels.gradients import with_gradient


def masked_sum(
    kernel: Callable[..., Array], lengths: Int[Array, " B"], *arrays: Float[Array, "B _ _"]
) -> Float[Array, "B _ _"]:
    """Sums arrays and sets padding to 0. The gradient of each array is the gradient of the sum without its padding.

    Args:
        kernel: Function of lengths and arrays that computes the masked sum.
        lengths: Number of valid frames of each row.
        arrays: Arrays of equal shape.
    """

    def forward(*given: Array) -> Array:
        return kernel(given[-1], *given[:-1])

    def backward(*given: Array) -> tuple[Array, ...]:
        *_, lengths, of_sum = given
        return (kernel(lengths, of_sum),) * len(arrays)

    return with_gradient(forward, backward)(*arrays, lengths)

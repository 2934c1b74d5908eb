"""The gradient of masked sums, which is the same for all kernels."""

from collections.abc import Callable
from functools import partial

from jaxtyping import Array

from asr_jax.kernels.gradients import of_inputs


def masked_sum_of(kernel: Callable[..., Array]) -> Callable[..., Array]:
    """Returns `reference.masked_sum` computed by a kernel of the same arguments.

    The gradient of each array is the gradient of the sum without its padding.
    """

    def masked_sum(lengths: Array, *arrays: Array, axis: int) -> Array:
        summed = partial(kernel, axis=axis)

        def backward(*given: Array) -> tuple[Array, ...]:
            *_, lengths, of_sum = given
            return (summed(lengths, of_sum),) * len(arrays)

        return of_inputs(lambda *given: summed(given[-1], *given[:-1]), backward)(*arrays, lengths)

    return masked_sum

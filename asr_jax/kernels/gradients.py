"""Functions whose gradient is a kernel of its own."""

from collections.abc import Callable
from typing import Any

import jax


def with_gradient(forward: Callable[..., Any], backward: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """Returns a function that keeps only its inputs for its gradient.

    Args:
        forward: Function of arrays.
        backward: Gradients of the first inputs, from all inputs and the gradient of the output. The other inputs have
            none.
    """
    function = jax.custom_vjp(forward)

    def transposed(given: tuple[Any, ...], of_output: Any) -> tuple[Any, ...]:
        found = backward(*given, of_output)
        return *found, *(None for _ in given[len(found) :])

    function.defvjp(lambda *given: (forward(*given), given), transposed)
    return function

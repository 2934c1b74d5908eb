"""Functions whose gradient is a kernel of its own."""

from collections.abc import Callable
from typing import Any

import jax

SAVED = "saved"
"""Name of arrays that rematerialisation stores (`nn.remat`)."""


def with_gradient(forward: Callable[..., Any], backward: Callable[[Any, Any], tuple[Any, ...]]) -> Callable[..., Any]:
    """Returns a function of arrays with another gradient than the automatic one.

    Args:
        forward: Returns the outputs, and what the gradient needs.
        backward: Returns the gradients of all arrays, from what the gradient needs and the gradients of the outputs.
    """
    function = jax.custom_vjp(lambda *arrays: forward(*arrays)[0])
    function.defvjp(forward, backward)
    return function


def of_inputs(forward: Callable[..., Any], backward: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """Returns a function that keeps only its inputs for its gradient.

    Args:
        forward: Function of arrays.
        backward: Gradients of the first inputs, from all inputs and the gradient of the output. The other inputs have
            none.
    """

    def transposed(given: tuple[Any, ...], of_output: Any) -> tuple[Any, ...]:
        found = backward(*given, of_output)
        return *found, *(None for _ in given[len(found) :])

    return with_gradient(lambda *given: (forward(*given), given), transposed)

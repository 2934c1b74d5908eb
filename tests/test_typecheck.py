"""The checker of shapes in tests."""

import numpy as np
import pytest
from jaxtyping import Float, TypeCheckError, jaxtyped
from typecheck import typechecked


@jaxtyped(typechecker=typechecked)
def summed(x: Float[np.ndarray, " T"], y: Float[np.ndarray, " T"] | None = None) -> Float[np.ndarray, " T"]:
    return x if y is None else x + y


def test_shapes_are_checked() -> None:
    summed(np.zeros(3), np.zeros(3))
    with pytest.raises(TypeCheckError):
        summed(np.zeros(3), np.zeros(4))


def test_functions_without_shapes_and_local_functions_are_not_checked() -> None:
    def local(x: Float[np.ndarray, " T"]) -> None: ...

    def plain(x: int) -> None: ...

    plain.__qualname__ = "plain"
    assert jaxtyped(typechecker=typechecked)(local) is local
    assert jaxtyped(typechecker=typechecked)(plain) is plain

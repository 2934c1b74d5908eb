"""Programs that are compiled for accelerators that are absent."""

from collections.abc import Callable
from typing import Any

import jax
import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.programs import Programs
from asr_jax.core.targets import target_of


def compiled_for(device: str, function: Callable[..., Any], *given: Any) -> Any:
    """Compiles a function for one device; skips the test if its compiler is not installed.

    Args:
        device: Name of a target, such as h100.
        function: Function to compile.
        given: Shapes and dtypes of its arguments.
    """
    try:
        mesh = target_of(device).one
    except UserError as error:
        pytest.skip(str(error))
    same = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    given = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=same), given)
    return Programs().lower("kernel", function, *given).compile()

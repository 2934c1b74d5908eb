"""Libraries of the extra `text`, which are imported when a normaliser first needs them."""

import functools
import importlib
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.core.installation import installing


@functools.cache
def library(name: str, *, normaliser: str) -> Any:
    """Imports a module.

    Args:
        normaliser: Name of the normaliser for error messages.

    Raises:
        UserError: If the module is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"the normaliser {normaliser} requires {name.partition('.')[0]}, which is not installed ({error}): "
            f"{installing('text')}"
        ) from error

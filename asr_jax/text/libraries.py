"""Libraries of the extra `text`: imported when a normaliser that needs them is first used."""

import functools
import importlib
from typing import Any

from asr_jax.core.errors import UserError


@functools.cache
def library(name: str, *, normaliser: str) -> Any:
    """The module of this name.

    Raises: UserError that names the extra where it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"the normaliser {normaliser} takes {name.partition('.')[0]}, which is not installed ({error}): "
            "pip install 'asr-jax[text]'"
        ) from error

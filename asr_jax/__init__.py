"""A JAX/Flax trainer for speech recognition. Start at README.md, then configs/quickstart.py and training/loop.py."""

import asr_jax.core.environment  # noqa: F401  must be set before JAX starts, whatever is imported first
from asr_jax.core.moved import find_moved_modules

__version__ = "0.1.0"

find_moved_modules()

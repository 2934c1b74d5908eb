"""A JAX/Flax trainer for speech recognition.

>>> import asr_jax
>>> run = asr_jax.load("runs/mine")
>>> text = run.transcribe("a.wav").text

`load`, `load_config` and `train` are described in `asr_jax.api`. Start reading at README.md, then
configs/quickstart.py and training/loop.py.
"""

from typing import TYPE_CHECKING, Any

import asr_jax.core.environment  # noqa: F401  must be set before JAX starts, whatever is imported first
from asr_jax.core.moved import find_moved_modules

if TYPE_CHECKING:
    from asr_jax.api import Experiment, Run, Transcript, load, load_config, train

__version__ = "0.1.0"
__all__ = ["Experiment", "Run", "Transcript", "load", "load_config", "train"]

find_moved_modules()


def __getattr__(name: str) -> Any:
    """Imports JAX and the models when they are first needed: `import asr_jax` takes a tenth of a second."""
    if name not in __all__:
        raise AttributeError(f"module 'asr_jax' has no attribute {name!r}")
    from asr_jax import api

    return getattr(api, name)

"""A JAX/Flax trainer for speech recognition.

>>> import asr_jax
>>> run = asr_jax.load("runs/mine")
>>> text = run.transcribe("a.wav").text

`asr_jax.api` documents `load`, `load_config` and `train`. To read the code, start with README.md,
configs/quickstart.py and training/loop.py.
"""

from typing import TYPE_CHECKING, Any

import asr_jax.core.environment  # noqa: F401  sets variables that JAX reads when it starts

if TYPE_CHECKING:
    from asr_jax.api import Experiment, Run, Transcript, load, load_config, train

    __version__: str

__all__ = ["Experiment", "Run", "Transcript", "load", "load_config", "train"]


def __getattr__(name: str) -> Any:
    """Imports the API, and with it JAX, on first use: `import asr_jax` alone takes a tenth of a second."""
    if name == "__version__":  # of the installed package; pyproject.toml is its only place
        from importlib.metadata import version

        return version("asr-jax")
    if name not in __all__:
        raise AttributeError(f"module 'asr_jax' has no attribute {name!r}")
    from asr_jax import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})

"""A JAX/Flax trainer for speech recognition. Start at README.md, then configs/quickstart.py and training/loop.py."""

__version__ = "0.1.0"

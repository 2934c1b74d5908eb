"""Swoosh activations and shifted swish for TPUs (Pallas)."""

from asr_jax.kernels.elementwise_tpu import elementwise
from asr_jax.kernels.swoosh.reference import FORMULAS

FUNCTIONS = {name: elementwise(*formulas) for name, formulas in FORMULAS.items()}

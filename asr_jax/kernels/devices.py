"""Devices and packages that implementations of kernels need."""

import importlib.util

from asr_jax.core.devices import traced_for

KERNELS = {"triton": ("NVIDIA GPUs", "gpu"), "mosaic_tpu": ("TPUs", "tpu")}
"""Devices of the implementations that are kernels, and JAX's name of their platform."""


def check_device(implementation: str, instead: str) -> None:
    """Checks that a kernel can run on the devices that the program is traced for.

    Args:
        implementation: "triton" or "mosaic_tpu".
        instead: Implementations that run on all devices, for the message.

    Raises:
        ValueError: If the kernel is for other devices, or a package that it needs is not installed.
    """
    device, platform = KERNELS[implementation]
    if traced_for().platform != platform:
        raise ValueError(f"{implementation} on {traced_for().platform}: it is for {device}; expected {instead}")
    if implementation == "triton" and importlib.util.find_spec("jax_triton") is None:
        raise ValueError("implementation is triton, and jax-triton is not installed: pip install 'asr-jax[kernels]'")

"""Choice of the implementation of a kernel, and the devices and packages that implementations need."""

import importlib
import importlib.util
from typing import Any, Literal

from asr_jax.core.devices import traced_for

Implementation = Literal["auto", "reference", "triton", "mosaic_tpu"]
"""Name of an implementation.

"reference" is a program of XLA; "triton" is a kernel for NVIDIA GPUs, which needs the extra kernels; "mosaic_tpu" is a
kernel for TPUs. "auto" is "reference", because no kernel was measured on a device yet.
"""
KERNELS = {"triton": ("NVIDIA GPUs", "gpu"), "mosaic_tpu": ("TPUs", "tpu")}
"""Devices of the implementations that are kernels, and JAX's name of their platform."""


def module_of(folder: str, implementation: str) -> Any:
    """Returns the module of an implementation, which is imported late: Pallas takes a second, and Triton is optional.

    Args:
        folder: Folder of the kernel in `asr_jax.kernels`.
        implementation: An `Implementation`.

    Raises:
        ValueError: If the implementation does not exist or cannot run here.
    """
    name = "reference" if implementation == "auto" else implementation
    if name not in ("reference", *KERNELS):
        raise ValueError(f"implementation is {name!r}: expected auto, reference, {' or '.join(KERNELS)}")
    if name in KERNELS:
        check_device(name, "reference")
    return importlib.import_module(f"asr_jax.kernels.{folder}.{name}")


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

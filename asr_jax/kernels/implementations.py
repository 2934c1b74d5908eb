"""Choice of the implementation of a kernel, and the devices and packages that implementations need."""

import functools
import importlib
import importlib.util
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from asr_jax.core.devices import traced_for
from asr_jax.core.errors import UserError
from asr_jax.core.installation import installing
from asr_jax.core.shapes import is_static
from asr_jax.core.targets import name_of
from asr_jax.core.text_files import read_text

Implementation = Literal["auto", "reference", "xla", "triton", "mosaic_tpu"]
"""Name of an implementation, which is also that of its module in the folder of the kernel.

"reference" is the plain program of XLA, which is the specification of the others. "xla" is another program of XLA,
which some kernels have. "triton" is a kernel for NVIDIA GPUs, which needs the extra kernels. "mosaic_tpu" is a kernel
for TPUs. "auto" is the implementation that the setting training.kernels selects, otherwise the one that `FASTEST` has
for the device if it can compute the arrays, otherwise a program of XLA. If an implementation that was asked for cannot
run or cannot compute the arrays, the functions of kernels raise `CannotCompute`.
"""
FASTEST = Path(__file__).with_name("fastest.json")
"""Kernels that are faster than all other implementations: for each name of a device (`core.targets.name_of`), the names
of kernels and of their implementations. `python -m benchmarks.device_results fastest` writes it from the benchmarks of
devices.
"""
MEASURED = (jnp.float32, jnp.bfloat16)
"""Dtypes of these benchmarks."""
MOST_ELEMENTS = 2**31 - 2**16
"""Largest number of elements of an array for Triton. Kernels compute offsets in int32, and the last block may extend
beyond the end of the array."""
KERNELS = {"triton": ("NVIDIA GPUs", "gpu"), "mosaic_tpu": ("TPUs", "tpu")}
"""Devices of the implementations that are kernels, and JAX's name of their platform."""
SELECTABLE = (
    "bias_norm",
    "ctc_sweep",
    "ctc_viterbi",
    "depthwise_conv",
    "glu",
    "lattice_sweep",
    "masked_batch_norm",
    "masking",
    "pairwise_downsample",
    "relative_shift",
    "swoosh",
    "transducer_joint",
)
"""Kernels that models and losses call with "auto", so that a setting can select their implementation."""


def selected_kernels(chosen: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parses `Training.kernels`.

    Args:
        chosen: Texts NAME=IMPLEMENTATION.

    Returns:
        Names of kernels and of implementations.

    Raises:
        ValueError: If a text does not name a kernel that can be selected and an implementation, or a kernel is there
            twice.
    """
    pairs = [tuple(text.partition("=")[::2]) for text in chosen]
    for text, (kernel, implementation) in zip(chosen, pairs, strict=True):
        if kernel not in SELECTABLE or implementation not in KERNELS:
            raise ValueError(
                f"{text!r}: expected NAME=IMPLEMENTATION, with a name of {', '.join(SELECTABLE)} and an implementation "
                f"of {', '.join(KERNELS)}"
            )
    names = [kernel for kernel, _ in pairs]
    if len({*names}) < len(names):
        raise ValueError(f"{' '.join(chosen)}: expected each kernel once")
    return tuple((kernel, implementation) for kernel, implementation in pairs)


def check_selected(kernels: Sequence[tuple[str, str]], platform: str) -> None:
    """Checks that the selected kernels can run on a device.

    Args:
        kernels: Result of `selected_kernels`.
        platform: JAX's name of the device's platform.

    Raises:
        UserError: If a kernel is for other devices, or a package that it needs is not installed.
    """
    for kernel, implementation in kernels:
        device, expected = KERNELS[implementation]
        if platform != expected:
            raise UserError(
                f"training.kernels has {kernel}={implementation}, which is for {device}, and the devices are "
                f"{platform}: remove it"
            )
        if not _is_installed(implementation):
            raise UserError(
                f"training.kernels has {kernel}=triton, and jax-triton is not installed: {installing('kernels')}"
            )


class CannotCompute(ValueError):
    """An implementation does not exist, cannot run on the devices or cannot compute the arrays."""


def none_against(implementation: str) -> str:
    """Returns no reason: the implementation computes all arrays."""
    return ""


def selected(
    kernel: str,
    implementation: str,
    *arrays: Any,
    portable: tuple[str, ...] = ("reference",),
    reason_against: Callable[[str], str] = none_against,
) -> str:
    """Returns the implementation of a kernel that a program uses.

    Args:
        kernel: Folder of the kernel in `asr_jax.kernels`.
        implementation: Argument of the kernel's function.
        *arrays: Main arrays of the kernel, or descriptions of them.
        portable: Implementations that run on all devices. "auto" is the last one if no kernel is `preferred`.
        reason_against: Returns the reason why an implementation cannot compute the arrays, or an empty text.

    Raises:
        CannotCompute: If the implementation does not exist, cannot run here or cannot compute the arrays.
    """
    name = implementation if implementation != "auto" else preferred(kernel, *arrays, reason_against=reason_against)
    name = name or portable[-1]
    if name in portable:
        return name
    instead = " or ".join(sorted(portable))
    if name not in KERNELS:
        names = ", ".join(("auto", *sorted(portable)))
        raise CannotCompute(f"implementation is {name!r}: expected {names}, {' or '.join(KERNELS)}")
    device, platform = KERNELS[name]
    if traced_for().platform != platform:
        raise CannotCompute(f"{name} on {traced_for().platform}: it is for {device}; expected {instead}")
    if not _is_installed(name):
        raise CannotCompute(f"implementation is triton, and jax-triton is not installed: {installing('kernels')}")
    if reason := _reason(name, arrays, reason_against):
        raise CannotCompute(f"{reason} for {name}, or {instead}")
    return name


def module_of(kernel: str, implementation: str, *arrays: Any, **options: Any) -> Any:
    """Returns the module of the implementation that `selected` returns.

    It is imported late: Pallas takes a second, and Triton is optional. The reference computes empty arrays, because a
    kernel needs at least one program.
    """
    name = selected(kernel, implementation, *arrays, **options)
    if any(not math.prod(each.shape) for each in arrays):
        name = "reference"
    return importlib.import_module(f"asr_jax.kernels.{kernel}.{name}")


def preferred(kernel: str, *arrays: Any, reason_against: Callable[[str], str] = none_against) -> str:
    """Returns the kernel that "auto" is: the one of the setting, otherwise that of `FASTEST`. Empty: a program of XLA.

    The kernel of the setting may be unable to compute the arrays. `FASTEST` is used within `tracing_for` alone: in
    training, validation, evaluation and plans. Arrays of symbolic sizes have no kernel.
    """
    if not is_static(*(size for each in arrays for size in each.shape)):
        return ""
    devices = traced_for()
    chosen = dict(devices.kernels).get(kernel, "")
    if chosen and KERNELS[chosen][1] == devices.platform:
        return chosen
    found = fastest().get(name_of(devices.kind), {}).get(kernel, "")
    was_measured = all(each.dtype in MEASURED for each in arrays)
    if not found or not was_measured or not _is_local() or not _is_installed(found):
        return ""
    return "" if _reason(found, arrays, reason_against) else found


def _reason(name: str, arrays: Sequence[Any], reason_against: Callable[[str], str]) -> str:
    """Returns the reason why a kernel cannot compute arrays; empty if there is none, as for empty arrays."""
    sizes = [math.prod(each.shape) for each in arrays]
    if not all(sizes):
        return ""
    if name == "triton" and max(sizes, default=0) > MOST_ELEMENTS:
        return f"{max(sizes):,} elements: expected at most {MOST_ELEMENTS:,}"
    return reason_against(name)


@functools.cache
def fastest() -> dict[str, dict[str, str]]:
    """Returns the contents of `FASTEST`."""
    return json.loads(read_text(FASTEST))


def _is_local() -> bool:
    """Returns whether each device computes its own arrays: XLA cannot spread a kernel over devices."""
    mesh = jax.sharding.get_abstract_mesh()
    return traced_for().number == 1 and math.prod(mesh.shape[name] for name in mesh.auto_axes) == 1


def _is_installed(implementation: str) -> bool:
    return implementation != "triton" or importlib.util.find_spec("jax_triton") is not None

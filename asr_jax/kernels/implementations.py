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
from asr_jax.core.targets import name_of

Implementation = Literal["auto", "reference", "triton", "mosaic_tpu"]
"""Name of an implementation.

"reference" is a program of XLA; "triton" is a kernel for NVIDIA GPUs, which needs the extra kernels; "mosaic_tpu" is a
kernel for TPUs. "auto" is the implementation that the setting training.kernels selects, otherwise the one that
`FASTEST` has for the device if it can compute the arrays, otherwise "reference".
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
    "bias_norm", "ctc_sweep", "ctc_viterbi", "depthwise_conv", "glu", "lattice_sweep", "masked_batch_norm", "masking",
    "pairwise_downsample", "relative_shift", "swoosh", "transducer_joint",
)  # fmt: skip
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
                f"training.kernels has {kernel}=triton, and jax-triton is not installed: pip install 'asr-jax[kernels]'"
            )


class CannotCompute(ValueError):
    """An implementation does not exist, cannot run on the devices or cannot compute the arrays."""


def none_against(implementation: str) -> str:
    """Returns no reason: the implementation computes all arrays."""
    return ""


def selected(
    kernel: str, implementation: str, default: str, *arrays: Any,
    reason_against: Callable[[str], str] = none_against,
) -> str:  # fmt: skip
    """Returns the implementation of a kernel that a program uses.

    `FASTEST` is used within `tracing_for` alone: in training, validation, evaluation and plans.

    Args:
        kernel: Name of the kernel, of `SELECTABLE`.
        implementation: Argument of the kernel's function; all but "auto" are returned.
        default: Implementation if none is selected for the devices that the program is traced for, and none was
            measured to be faster there.
        *arrays: Main arrays of the kernel.
        reason_against: Returns the reason why an implementation cannot compute the arrays, or an empty text.
    """
    if implementation != "auto":
        return implementation
    devices = traced_for()
    found = dict(devices.kernels).get(kernel)
    if found and KERNELS[found][1] == devices.platform:
        return found
    found = fastest().get(name_of(devices.kind), {}).get(kernel)
    was_measured = all(each.dtype in MEASURED for each in arrays)
    if not found or not was_measured or not _is_local() or not _is_installed(found):
        return default
    return default if _too_large(found, arrays) or reason_against(found) else found


def check_computes(
    implementation: str, instead: str, *arrays: Any, reason_against: Callable[[str], str] = none_against
) -> None:
    """Checks that a kernel can run on the devices that the program is traced for, and compute the arrays.

    Args:
        implementation: Name of an implementation that is neither "auto" nor one that runs on all devices.
        instead: Implementations that run on all devices, for the message.
        *arrays: Main arrays of the kernel.
        reason_against: As for `selected`.

    Raises:
        CannotCompute: If it cannot.
    """
    check_device(implementation, instead)
    if reason := _too_large(implementation, arrays) or reason_against(implementation):
        raise CannotCompute(f"{reason} for {implementation}, or {instead}")


def _too_large(implementation: str, arrays: Sequence[Any]) -> str:
    """Returns the reason why Triton cannot compute large arrays; empty if there is none."""
    sizes = [math.prod(each.shape) for each in arrays if implementation == "triton"]
    return (
        f"{max(sizes):,} elements: expected at most {MOST_ELEMENTS:,}" if max(sizes, default=0) > MOST_ELEMENTS else ""
    )


@functools.cache
def fastest() -> dict[str, dict[str, str]]:
    """Returns the contents of `FASTEST`."""
    found: dict[str, dict[str, str]] = json.loads(FASTEST.read_text())
    return found


def _is_local() -> bool:
    """Returns whether each device computes its own arrays: XLA cannot spread a kernel over devices."""
    mesh = jax.sharding.get_abstract_mesh()
    return traced_for().number == 1 and math.prod(mesh.shape[name] for name in mesh.auto_axes) == 1


def _is_installed(implementation: str) -> bool:
    return implementation != "triton" or importlib.util.find_spec("jax_triton") is not None


def module_of(
    folder: str,
    implementation: str,
    default: str = "reference",
    *,
    given: Any = None,
    reason_against: Callable[[str], str] = none_against,
) -> Any:
    """Returns the module of an implementation, which is imported late: Pallas takes a second, and Triton is optional.

    Args:
        folder: Folder of the kernel in `asr_jax.kernels`.
        implementation: Name of an implementation, or "auto".
        default: Name of the implementation in the module `reference`, which "auto" is if no other one is selected.
        given: Main array of the kernel. If it has no elements, the default computes the result, because a kernel needs
            at least one program.
        reason_against: As for `selected`.

    Raises:
        CannotCompute: If the implementation does not exist, cannot run here or cannot compute the arrays.
    """
    arrays = () if given is None else (given,)
    name = selected(folder, implementation, default, *arrays, reason_against=reason_against)
    if name != default:
        check_computes(name, default, *arrays, reason_against=reason_against)
    if given is not None and given.size == 0:
        name = default
    return importlib.import_module(f"asr_jax.kernels.{folder}.{'reference' if name == default else name}")


def check_device(implementation: str, instead: str) -> None:
    """Checks that a kernel exists, and can run on the devices that the program is traced for.

    Args:
        implementation: Name of an implementation that is neither "auto" nor one that runs on all devices.
        instead: Implementations that run on all devices, for the message.

    Raises:
        CannotCompute: If the implementation does not exist or is for other devices, or a package that it needs is not
            installed.
    """
    if implementation not in KERNELS:
        names = instead.replace(" or ", ", ")
        raise CannotCompute(f"implementation is {implementation!r}: expected auto, {names}, {' or '.join(KERNELS)}")
    device, platform = KERNELS[implementation]
    if traced_for().platform != platform:
        raise CannotCompute(f"{implementation} on {traced_for().platform}: it is for {device}; expected {instead}")
    if not _is_installed(implementation):
        raise CannotCompute("implementation is triton, and jax-triton is not installed: pip install 'asr-jax[kernels]'")

"""Devices of a process: all devices of JAX's default kind, or the selection of the flags --device and --devices."""

import functools
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Literal, NamedTuple

import jax
from jax.extend.backend import clear_backends

from asr_jax.core.allocator import keep_memory, resident_bytes
from asr_jax.core.environment import NUM_CORES, THREADS_PER_DEVICE, num_threads
from asr_jax.core.errors import UserError

Kind = Literal["cpu", "gpu", "tpu"]
# The CPU is added because callbacks to the host need it.
PLATFORMS: dict[Kind, str] = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}
VISIBLE = ("jax_cuda_visible_devices", "jax_rocm_visible_devices")
EXTRA = {"gpu": ", or is installed without the extra cuda12 or cuda13 of this package"}
SHOWN = 8
"""Largest number of devices whose names are shown."""

_chosen: dict[str, tuple[str, tuple[int, ...]]] = {}
"""Kind and numbers of the chosen devices, under one key; a choice is made once, before JAX starts its backends."""


class TracedFor(NamedTuple):
    """Devices that a program is traced for."""

    platform: str
    """JAX's name of their kind: cpu, gpu or tpu."""
    number: int
    capability: int = 0
    """Compute capability of absent NVIDIA GPUs without its point, such as 90; otherwise 0."""
    kernels: tuple[tuple[str, str], ...] = ()
    """Names of kernels, and of the implementations that the setting training.kernels selects for them."""
    kind: str = ""
    """JAX's name of the device, such as NVIDIA H100 80GB HBM3. Empty outside of `tracing_for`, where programs may be
    compiled for other devices than the default ones."""


# A change of the value makes JAX trace functions again that were traced for other devices.
_traced_for: Any = jax.make_user_context(default_value=None)


def tracing_for(
    chosen: Sequence[jax.Device], kernels: tuple[tuple[str, str], ...] = ()
) -> AbstractContextManager[None]:
    """Returns a context in which functions are traced for devices that may be absent from this machine."""
    capability = int(str(getattr(chosen[0], "compute_capability", 0)).replace(".", ""))
    context: AbstractContextManager[None] = _traced_for(
        TracedFor(platform_of(chosen[0]), len(chosen), capability, kernels, chosen[0].device_kind)
    )
    return context


def platform_of(device: jax.Device) -> str:
    """Returns JAX's name of the kind of a device: cpu, gpu or tpu. Absent GPUs have another name."""
    return "gpu" if device.platform in ("cuda", "rocm") else device.platform


def traced_for() -> TracedFor:
    """Returns the devices of the surrounding `tracing_for`; outside of it, the devices of this machine."""
    found: TracedFor | None = _traced_for.value
    return found or TracedFor(jax.default_backend(), len(devices()))


def choose(kind: Kind | None, numbers: Sequence[int]) -> None:
    """Chooses devices. Must be called before JAX starts its backends; otherwise, `devices` refuses another kind or GPU.

    GPUs that are not chosen are not initialised, and no memory is reserved on them.

    Args:
        kind: Kind of device. None: JAX's choice, or that of JAX_PLATFORMS.
        numbers: Numbers of the devices of this process, from 0. Empty: all.
    """
    _chosen["is"] = (kind or "", tuple(numbers))
    devices.cache_clear()
    if kind:
        jax.config.update("jax_platforms", PLATFORMS[kind])
    if numbers:
        for setting in VISIBLE:
            jax.config.update(setting, ",".join(map(str, numbers)))


def chosen_flags() -> list[str]:
    """Returns the flags of the choice, for another process that is to use the same devices."""
    kind, numbers = _chosen.get("is", ("", ()))
    of_numbers = ["--devices", ",".join(map(str, numbers))] if numbers else []
    return (["--device", kind] if kind else []) + of_numbers


def memory_in_use() -> dict[str, int]:
    """Returns the memory of this process and of its fullest device in bytes.

    Returns:
        `host_bytes`: Resident memory of the process, without mapped files; Linux only. `device_bytes`,
        `device_peak_bytes` and `device_limit_bytes`: Memory in use, its largest value so far, and the limit, of the
        device with the largest peak. CPUs do not report them.
    """
    found: dict[str, int] = {}
    with suppress(OSError, ValueError):
        found["host_bytes"] = resident_bytes()
    names = {
        "device_bytes": "bytes_in_use",
        "device_peak_bytes": "peak_bytes_in_use",
        "device_limit_bytes": "bytes_limit",
    }
    stats = max(
        (each.memory_stats() or {} for each in local_devices()),
        key=lambda each: each.get(names["device_peak_bytes"], 0),
    )
    return found | {name: int(stats[known]) for name, known in names.items() if known in stats}


def chosen_numbers() -> list[int] | None:
    """Returns the numbers of the chosen devices of this process; None if all are used."""
    _, numbers = _chosen.get("is", ("", ()))
    return list(numbers) or None


@functools.cache
def devices() -> tuple[jax.Device, ...]:
    """Returns the devices of all processes, ordered by process. All processes have chosen the same numbers.

    The first chosen device of this process becomes JAX's default device.

    Raises:
        UserError: If a device is not there, whose message names those that are, or if this process has more virtual
            devices than its threads can serve.
    """
    keep_memory()
    kind, numbers = _chosen.get("is", ("", ()))
    try:
        everyone, own = jax.devices(), jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # AssertionError if JAX is installed without support for the kind
        reason = str(error).partition("\n")[0].partition(" (set JAX_PLATFORMS")[0]
        raise UserError(_not_there(kind, numbers, reason)) from error
    if kind and own[0].platform != kind:
        raise UserError(_not_there(kind, numbers, f"JAX found no {kind.upper()}{EXTRA.get(kind, '')}"))
    fewest = THREADS_PER_DEVICE * len(own)
    if own[0].platform == "cpu" and len(own) > 1 and num_threads() < fewest:
        raise UserError(
            f"{len(own)} CPU devices with {num_threads()} threads would deadlock: expected at least {fewest} threads; "
            f"set the environment variable NPROC={fewest} before the program starts"
        )
    if not numbers:
        return tuple(everyone)
    if own[0].platform == "gpu":  # JAX itself leaves the others out
        if len(own) != len(numbers):
            raise UserError(_not_there(kind, numbers, f"JAX found {len(own)} of them"))
        return tuple(everyone)
    if max(numbers) >= len(own):
        raise UserError(_not_there(kind, numbers, f"the number {max(numbers)} is too large"))
    jax.config.update("jax_default_device", own[numbers[0]])
    of_processes: dict[int, list[jax.Device]] = {}
    for device in everyone:
        of_processes.setdefault(device.process_index, []).append(device)
    return tuple(each[number] for each in of_processes.values() for number in numbers if number < len(each))


def local_devices() -> list[jax.Device]:
    """Returns the devices of this process."""
    return [device for device in devices() if device.process_index == jax.process_index()]


def description() -> str:
    """Returns number, kind and names of the devices, such as `2 × NVIDIA H100 (gpu:0, gpu:2)`.

    Virtual devices of a CPU have names only if they were chosen.
    """
    own, number, processes = local_devices(), len(devices()), jax.process_count()
    several = f" in {processes} processes" if processes > 1 else ""
    names = ", ".join(map(_name, own[:SHOWN])) + " …" * (len(own) > SHOWN)
    if own[0].platform == "cpu":
        chosen = f"{names}; " if chosen_numbers() else ""
        return f"{number} CPU device{'s' * (number > 1)}{several} ({chosen}{NUM_CORES} cores)"
    return f"{number} × {own[0].device_kind}{several} ({names})"


@functools.cache
def say_devices() -> None:
    """Prints the devices on standard error, once."""
    print(f"on {description()}", file=sys.stderr)


def _name(device: jax.Device) -> str:
    number = device.local_hardware_id  # the number in CUDA_VISIBLE_DEVICES; None on some devices
    return f"{device.platform}:{device.id if number is None else number}"


def _not_there(kind: str, numbers: Sequence[int], reason: str) -> str:
    flags = f"--device {kind}" * bool(kind) + " " * bool(kind and numbers)
    flags += f"--devices {','.join(map(str, numbers))}" * bool(numbers)
    return f"{flags or 'JAX'}: {reason}; expected devices that exist: {', '.join(_existing()) or 'JAX finds none'}"


def _existing() -> list[str]:
    """Returns the names of all devices of this machine."""
    if jax.distributed.is_initialized():  # other processes would wait for a second start of the backends
        return [_name(device) for device in jax.local_devices()]
    found = list[str]()
    for platform in dict.fromkeys((None, "cpu")):  # JAX's choice, and the CPU
        clear_backends()
        jax.config.update("jax_platforms", platform)
        for setting in VISIBLE:
            jax.config.update(setting, "all")
        try:
            found += [name for name in map(_name, jax.local_devices()) if name not in found]
        except (RuntimeError, AssertionError):
            continue
    return found

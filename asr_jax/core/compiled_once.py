"""Compilation by one process of a run, from which the others load the executables through JAX's cache."""

import contextlib
import functools
import itertools
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import cache_key
from jax._src.distributed import global_state
from jax.sharding import Mesh

from asr_jax.core.processes import gathered, is_main, on_main

WAIT_S = 1800
"""Longest time in seconds to wait for the main process; the program is then compiled here."""
_CPU = Path("/proc/cpuinfo")
_calls = itertools.count()


def compiler(mesh: Mesh) -> Callable[[str, Callable[[], Any]], Any]:
    """Returns a function that compiles the program of a name.

    If the processes share the folder of JAX's cache, all wait until the main process has compiled a program and
    written it there. Otherwise, and on accelerators, each one compiles: XLA divides the trials of kernels for GPUs
    among the processes, which therefore have to compile at the same time. All processes must call this function
    together, and must compile programs of the same names.

    Args:
        mesh: Devices of the programs.
    """
    store: Any = global_state.client
    is_local = store is None or len({each.process_index for each in mesh.devices.flat}) == 1
    if is_local or not _share_cache():
        return lambda name, compiled: compiled()
    group = next(_calls)

    def after_main(name: str, compiled: Callable[[], Any]) -> Any:
        key = f"asr_jax/compiled/{group}/{name}"
        if is_main():
            try:
                return compiled()
            finally:
                store.key_value_set(key, "done", allow_overwrite=True)
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # after WAIT_S
            store.blocking_key_value_get(key, WAIT_S * 1000)
        return compiled()

    return after_main


_hash_of_jax = cache_key._hash_accelerator_config


def _hash_devices(hashed: Any, devices: np.ndarray) -> None:
    """Adds the devices of a program to its key in JAX's cache.

    JAX's own hash of CPUs of several processes has the number of the process, so that only the main process, which
    writes the cache, would find its programs again.

    Args:
        hashed: Object of `hashlib`.
        devices: Array of devices.
    """
    if devices.flat[0].platform != "cpu" or len({each.process_index for each in devices.flat}) == 1:
        _hash_of_jax(hashed, devices)
    else:
        hashed.update(f"{devices.shape} {[each.device_kind for each in devices.flat]} {_cpu()}".encode())


@functools.cache
def _cpu() -> str:
    """Returns the model and the features of this machine's CPU, which machine code depends on."""
    return "".join(sorted(set(re.findall(r"^(?:model name|flags|Features).*", _CPU.read_text(), re.MULTILINE))))


@functools.cache
def _share_cache() -> bool:
    """Returns whether all have CPUs and see a file that the main process writes to its folder of the cache."""
    is_used = jax.default_backend() == "cpu" and jax.config.jax_enable_compilation_cache and _CPU.exists()
    if is_used:
        vars(cache_key)["_hash_accelerator_config"] = _hash_devices
    folder = jax.config.jax_compilation_cache_dir if is_used else None
    folder = None if "://" in (folder or "") else folder
    name = on_main(lambda: _mark(folder))
    is_seen = bool(folder and name and (Path(folder) / name).exists())
    shared = all(gathered(is_seen))
    if is_main() and folder and name:
        (Path(folder) / name).unlink(missing_ok=True)
    return shared


def _mark(folder: str | None) -> str:
    """Writes an empty file with a unique name and returns the name; empty without a writable folder."""
    if not folder:
        return ""
    name = f"shared-{uuid.uuid4().hex}"
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).touch()
    except OSError:
        return ""
    return name

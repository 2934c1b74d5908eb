"""Accelerators that programs can be compiled for without being present.

The compiler of TPUs is in the package libtpu (extra `tpu`), that of GPUs in JAX's CUDA plugin (extras `cuda12` and
`cuda13`), which has descriptions of GPUs for it. Peak rates are those of the vendors' data sheets, without sparsity.
"""

import contextlib
import functools
import importlib.util
import math
import mmap
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from asr_jax.core.environment import GPU_SHARE
from asr_jax.core.errors import UserError, nearest
from asr_jax.core.installation import installing
from asr_jax.core.meshes import MeshSizes, data_mesh, mesh_of


@dataclass(frozen=True)
class Accelerator:
    """Properties of a kind of device."""

    platform: str
    """gpu, tpu or cpu."""
    described: str
    """Name of its description in the CUDA plugin, or of its generation in libtpu. Empty: this machine."""
    memory_gb: float
    """Memory of a device in 10⁹ bytes."""
    peak_tflops: float = math.inf
    """Peak rate of products of bfloat16 in 10¹² floating-point operations per second."""
    memory_gb_per_s: float = math.inf
    """Bandwidth of the memory in 10⁹ bytes per second."""
    link_gb_per_s: float = math.inf
    """Bandwidth from a device to the others of its machine or slice in 10⁹ bytes per second, in one direction."""


ACCELERATORS = {
    "a100-40gb": Accelerator("gpu", "NVIDIA A100-SXM4-40GB", 42.3, 312, 1555, 300),
    "a100": Accelerator("gpu", "NVIDIA A100-SXM4-80GB", 85.1, 312, 2039, 300),
    "a6000": Accelerator("gpu", "NVIDIA RTX A6000", 51.0, 155, 768, 28),
    "h100": Accelerator("gpu", "NVIDIA H100 80GB HBM3", 84.9, 989, 3350, 450),
    "h200": Accelerator("gpu", "NVIDIA H200 141GB HBM3e", 151.4, 989, 4800, 450),
    "b200": Accelerator("gpu", "NVIDIA B200", 191.5, 2250, 7672, 900),
    "l40s": Accelerator("gpu", "NVIDIA L40S", 47.8, 362, 864, 32),
    "v5e": Accelerator("tpu", "v5e", 17.2, 197, 819, 200),
    "v5p": Accelerator("tpu", "v5p", 102.0, 459, 2765, 600),
    "v6e": Accelerator("tpu", "v6e", 34.4, 918, 1640, 400),
}
DERIVED = {
    "NVIDIA L40S": (
        "NVIDIA RTX A6000",
        {
            "minor": "9",
            "core_count": "142",
            "memory_bandwidth": "864000000000",
            "l2_cache_size": "100663296",
            "clock_rate_ghz": "2.52",
            "device_memory_size": "47810936832",
        },
    )
}
"""Descriptions of GPUs that the plugin lacks: the GPU that they differ from, and the values that differ."""
DEVICE_KINDS = {
    "NVIDIA H200": "h200",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
}
"""Names of accelerators whose `jax.Device.device_kind` differs from `Accelerator.described`, by that kind."""
SMALLEST = {"v5e": "1x1", "v5p": "2x2x1", "v6e": "1x1"}
"""Smallest topology of each generation that libtpu describes."""
LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Environment variables with which libtpu starts on a machine without TPUs, and in several processes at a time."""


QUICK: dict[str, tuple[tuple[str, Any], ...]] = {
    "cpu": (),
    "gpu": (("xla_gpu_autotune_level", 0), ("xla_gpu_enable_triton_gemm", False)),
    "tpu": (("optimization_level", "O1"),),
}
"""Names and values of the options with which the compiler of a platform takes the least time."""


@dataclass(frozen=True)
class Target:
    """Devices to compile for."""

    name: str
    accelerator: Accelerator
    mesh: Mesh

    @property
    def one(self) -> Mesh:
        """Mesh of the first device alone."""
        return mesh_of(self.mesh.devices.flat[:1])

    def arranged(self, sizes: MeshSizes) -> "Target":
        """Returns the same devices along the axes of a mesh.

        Raises:
            UserError: If the product of the sizes is not the number of devices.
        """
        return replace(self, mesh=sizes.mesh(list(self.mesh.devices.flat)))

    @property
    def memory_bytes(self) -> float:
        """Memory of a device that JAX uses, in bytes: on a GPU, the share XLA_CLIENT_MEM_FRACTION (default: 0.92)."""
        share = float(os.environ[GPU_SHARE]) if self.accelerator.platform == "gpu" else 1.0
        return 1e9 * self.accelerator.memory_gb * share


def target_of(name: str) -> Target:
    """Returns the devices of a name such as h100, h100:8, v5e or v5e:4x4. They need not be present.

    Args:
        name: Kind of device, and after a colon, the number of GPUs of a machine or the topology of a TPU slice. Without
            it, one device. cpu: the devices of this machine.

    Raises:
        UserError: If the kind or the topology is not known, or if the compiler is not installed.
    """
    kind, colon, size = name.lower().partition(":")
    if kind == "cpu" and not colon:
        return Target(kind, Accelerator("cpu", "", _memory_of_this_machine() / 1e9), data_mesh())
    if kind == "cpu":
        raise UserError(f"--target {name}: expected cpu, which is all devices of this machine")
    if kind not in ACCELERATORS:
        raise UserError(
            f"--target {name}: {kind!r} is not known: expected cpu for this machine, or one of "
            f"{', '.join(ACCELERATORS)}, with the number of GPUs (h100:8) or the topology of a TPU slice (v5e:4x4)"
            f"{nearest(kind, ACCELERATORS)}"
        )
    accelerator = ACCELERATORS[kind]
    pattern = r"[1-9]\d*" if accelerator.platform == "gpu" else r"[1-9]\d*(x[1-9]\d*){1,2}"
    if colon and not re.fullmatch(pattern, size):
        expected = "a number of GPUs, such as 8" if accelerator.platform == "gpu" else "a topology, such as 4x4"
        raise UserError(f"--target {name}: {size!r} is not {expected}")
    try:
        found = _gpus(accelerator, int(size or 1)) if accelerator.platform == "gpu" else _tpus(accelerator, size)
    except (RuntimeError, ValueError) as error:  # jax.errors.JaxRuntimeError is a RuntimeError
        raise UserError(f"--target {name}: {str(error).partition(chr(10))[0]}") from error
    return Target(name, accelerator, mesh_of(found))


def name_of(device_kind: str) -> str:
    """Returns the name of a `jax.Device.device_kind` in `ACCELERATORS`, or the kind itself if it is not known."""
    names = {each.described: name for name, each in ACCELERATORS.items()} | DEVICE_KINDS
    return names.get(device_kind, device_kind)


def accelerator_of(device_kind: str) -> Accelerator | None:
    """Returns the accelerator of a `jax.Device.device_kind`. None: it is not known."""
    return ACCELERATORS.get(name_of(device_kind))


def _memory_of_this_machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _tpus(accelerator: Accelerator, size: str) -> list[jax.Device]:
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"the compiler of TPUs is not installed: {installing('tpu')}")
    # libtpu would ask the metadata server of Google Cloud for the machine that it runs on.
    for variable, value in LIBTPU.items():
        os.environ.setdefault(variable, value)
    name = f"{accelerator.described}:{size or SMALLEST[accelerator.described]}"
    found = list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    return found if size else found[:1]


def _gpus(accelerator: Accelerator, number: int) -> list[jax.Device]:
    description = descriptions_of_gpus().get(accelerator.described)
    if description is None:
        raise UserError(f"JAX's CUDA plugin has no description of {accelerator.described}")
    found = topologies.get_topology_desc(
        platform="cuda", topology=f"1x1x{number}", target_config=description
    )  # slices x hosts x devices
    return list(found.devices)


@functools.cache
def descriptions_of_gpus() -> dict[str, str]:
    """Returns the descriptions of GPUs in JAX's CUDA plugin, text protocol buffers, by the names of the GPUs.

    Raises:
        UserError: If the plugin is not installed.
    """
    path = next(filter(None, map(_plugin, ("xla_cuda12", "xla_cuda13"))), None)
    if path is None:
        raise UserError(f"the compiler of GPUs is not installed: {installing('cuda12')}")
    descriptions = {}
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        start = data.find(b"gpu_device_info {")
        while start >= 0:
            text = data[start : data.find(b"\0", start)].decode("ascii", "replace")
            if name := re.search(r'^device_description_str: "([^"]*)"', text, re.MULTILINE):
                descriptions[name[1]] = text
            start = data.find(b"gpu_device_info {", start + 1)
    for derived, (like, values) in DERIVED.items():
        if like not in descriptions:
            continue
        changed = descriptions[like].replace(like, derived)
        for key, value in values.items():
            changed = re.sub(rf"\b{key}: \S+", f"{key}: {value}", changed)
        descriptions[derived] = changed
    return descriptions


def _plugin(name: str) -> Path | None:
    """Library of a CUDA plugin of JAX, if it is installed."""
    with contextlib.suppress(ModuleNotFoundError):  # of the package jax_plugins
        spec = importlib.util.find_spec(f"jax_plugins.{name}")
        for folder in spec.submodule_search_locations or () if spec else ():
            if (path := Path(folder, "xla_cuda_plugin.so")).exists():
                return path
    return None

"""Registers, shared memory and VMEM of the package's kernels: `python benchmarks/kernel_resources.py [--json OUT]`.

Compiles each operation of `asr_jax.benchmark kernels`, with its gradient if it has one, in float32 and bfloat16, for
devices that are absent. Triton's kernels are assembled by the ptxas of CUDA's wheels or of Triton, which reports
registers and spilled bytes; the size of shared memory is Triton's. For TPUs, the compiled program says how much VMEM a
kernel has for blocks and temporary values (its scoped memory), and which of its arrays are in VMEM as a whole. Nothing
is run. The environment needs the extras cuda12 or cuda13, tpu and kernels. The JSON keeps the rows of other targets and
operations.
"""

import asr_jax.core.environment  # noqa: F401, I001  must be first

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from asr_jax.core.hlo import Module
from asr_jax.core.programs import Programs
from asr_jax.core.targets import Target, target_of
from asr_jax.kernels.cases import Case, Sizes, cases
from asr_jax.kernels.implementations import KERNELS
from asr_jax.observe.tables import print_table

TARGETS = ("a100", "h100", "v5e")
PTXAS = ("nvidia/cuda_nvcc/bin/ptxas", "triton/backends/nvidia/bin/ptxas")
SIZES = {"": Sizes(), ", wide heads": Sizes(heads=4)}
"""Sizes of the operations. Those with a name are for attention alone."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--operations", nargs="+", help="default: all")
    parser.add_argument("--json", type=Path, default=Path("kernel_resources.json"))
    given = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(given.json.read_text()) if given.json.exists() else []
    for target in given.targets:
        for operation, case, dtype in compiled_cases():
            if given.operations and operation.partition(",")[0] not in given.operations:
                continue
            same = {"operation": operation, "dtype": dtype, "target": target}
            new = [same | each for each in resources(operation, case, target_of(target))]
            rows = [row for row in rows if any(row[key] != same[key] for key in same)] + new
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
            print_table(new)


def compiled_cases() -> Iterator[tuple[str, Case, str]]:
    """Yields the names of operations, the operations and their dtypes."""
    for more, sizes in SIZES.items():
        for name, case in cases(sizes, whole=True).items():
            if more and name != "relative_attention":
                continue
            # Recursions of losses and masks, which have no gradients, have one dtype.
            for dtype in ("float32", "bfloat16")[: 1 + (case.num_gradients > 0)]:
                yield name + more, case.in_dtype(dtype), dtype


def resources(operation: str, case: Case, target: Target) -> list[dict[str, Any]]:
    """Returns the resources of the kernels of an operation and its gradient."""
    sharding = jax.sharding.NamedSharding(target.one, jax.sharding.PartitionSpec())
    kernels = {platform: name for name, (_, platform) in KERNELS.items()}
    function = call = partial(case.function, implementation=kernels[target.accelerator.platform])
    if case.num_gradients:

        def of_squares(*each: Any) -> Any:  # the gradient of a sum alone may need neither the values nor the arguments
            return sum(jnp.sum(jnp.square(values)) for values in jax.tree.leaves(call(*each)))

        function = jax.value_and_grad(of_squares, range(case.num_gradients))
    arguments = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding), case.arguments
    )
    if target.accelerator.platform == "gpu":
        with compilations() as found:
            Programs().lower(operation, function, *arguments)  # Triton compiles when programs are lowered
        return [{"kernel": each.name, "shared_bytes": each.shared_mem_bytes} | assembled(each.binary) for each in found]
    return vmem(Programs().lower(operation, function, *arguments).compile().as_text() or "")


def vmem(program: str) -> list[dict[str, Any]]:
    """Returns the VMEM of Mosaic's kernels in the text of a program."""
    rows = []
    for computation in Module(program).computations.values():
        for each in computation.values():
            if each.kind != "tpu_custom_call":
                continue
            used = re.search(r'"used_scoped_memory_configs":\[[^]]*"memory_space":"1"[^}]*"size":"(\d+)"', each.rest)
            arrays = [*each.outputs, *(array for name in each.operands for array in computation[name].outputs)]
            rows.append({
                "kernel": re.findall(r"\w+", each.op_name.split("/")[-2])[-1],  # without jvp() and transpose()
                "scoped_bytes": int(used[1]) if used else 0,
                "array_bytes": sum(array.num_bytes for array in arrays if not array.in_main_memory),
            })  # fmt: skip
    return rows


@contextlib.contextmanager
def compilations() -> Iterator[list[Any]]:
    """Collects the results of Triton's compiler: of each kernel once, because jax-triton keeps them."""
    from jax_triton import triton_lib

    compile_kernel, found = triton_lib.compile_ttir_to_ptx_inplace, list[Any]()

    def collected(*arguments: Any) -> Any:
        found.append(compile_kernel(*arguments))
        return found[-1]

    triton_lib.compile_ttir_to_ptx_inplace = collected
    try:
        yield found
    finally:
        triton_lib.compile_ttir_to_ptx_inplace = compile_kernel


def assembled(ptx: str) -> dict[str, int]:
    """Returns the registers of a thread, and the bytes that it writes to memory because it lacks registers."""
    architecture = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert architecture
    packages = Path(sys.prefix).glob("lib/python*/site-packages")
    ptxas = next(path for each in packages for name in PTXAS if (path := each / name).exists())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [str(ptxas), "-v", "-arch", architecture[1], str(path), "-o", f"{folder}/kernel.cubin"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = max(int(each) for each in re.findall(r"Used (\d+) registers", report))
    return {"registers": registers, "spilled_bytes": sum(map(int, re.findall(r"(\d+) bytes spill stores", report)))}


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()

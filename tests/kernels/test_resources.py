"""Registers, shared memory and VMEM of the kernels: those of the committed table, and of a new compilation."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from asr_jax.kernels.cases import Sizes, cases

ROOT = Path(__file__).parents[2]
SHARED_BYTES = {"a100": 163 << 10, "h100": 227 << 10}
"""Largest shared memory of a program."""
SCOPED_BYTES = {"transducer_joint_gradient": 24 << 20}
"""VMEM of a v5e for blocks and temporary values that a kernel may use: a little more than the committed table has. The
compiler itself refuses kernels only above the limit that they ask for."""
MOST_SCOPED_BYTES = 6 << 20
"""The same for the other kernels."""
SPILLED_BYTES = 16
"""Bytes that a thread may spill. Attention in float32 spills 8 with 64 or 80 registers, of which a thread may have 255:
ptxas prefers to have more programs on a multiprocessor."""


def check(rows):
    """Checks that kernels need no more resources than their devices have, or than is expected of them."""
    assert rows
    for row in rows:
        if row["target"] in SHARED_BYTES:
            assert row["shared_bytes"] <= SHARED_BYTES[row["target"]], row
            assert row["spilled_bytes"] <= SPILLED_BYTES, row
        else:
            assert row["scoped_bytes"] <= SCOPED_BYTES.get(row["kernel"], MOST_SCOPED_BYTES), row
            assert row["scoped_bytes"] + row["array_bytes"] > 0, row


def test_the_committed_resources_are_within_the_limits():
    rows = json.loads((ROOT / "benchmarks/results/kernel_resources.json").read_text())
    measured = {*cases(Sizes(rows=1, frames=8, channels=8, labels=2))}
    for target in ("a100", "h100", "v5e"):
        # jax-triton compiles a kernel once, and attention_mask_4d has that of attention_mask.
        once = set() if target == "v5e" else {"attention_mask_4d"}
        assert {row["operation"] for row in rows if row["target"] == target} >= measured - once
    check(rows)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "compiler"), [("a100", "jax_triton"), ("h100", "jax_triton"), ("v5e", "libtpu")])
def test_the_resources_of_kernels_are_within_the_limits(target, compiler, tmp_path):
    if importlib.util.find_spec(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    out = tmp_path / "resources.json"
    # A process of its own, because jax-triton compiles a kernel only once.
    command = [sys.executable, "benchmarks/kernel_resources.py", "--targets", target, "--json", str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    check(json.loads(out.read_text()))

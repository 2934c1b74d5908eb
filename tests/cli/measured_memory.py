"""Prints the planned and the measured memory of a gradient in bytes: `measured_memory.py ROWS ARGUMENTS…`.

Memory of a process that has computed before is used again, so that each measurement needs a process of its own.
"""

import asr_jax.core.environment  # noqa: F401, I001  must be first

import ctypes
import gc
import re
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp

from asr_jax.cli.command_line import parse_experiment
from asr_jax.cli.plan import length_of, plan
from asr_jax.cli.plan_target import TargetSteps
from asr_jax.core.program_cost import compile_and_measure
from asr_jax.core.targets import target_of


def resident(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found
    return 1024 * int(found[1])


def main(rows: int, given: list[str]) -> None:
    experiment = parse_experiment(given, prog="")
    made = plan(experiment)
    buckets, scale = made.train.plan.buckets, made.train.index.scale
    length = length_of(made.train, experiment)
    steps = TargetSteps(experiment, made.tokenizer, length, target_of("cpu"), buckets, scale)
    step = steps.step(steps.target.one)
    bucket = replace(max(buckets, key=lambda each: each.length), batch_size=rows)
    compiled, cost = compile_and_measure(step.gradient(bucket), num_devices=1)
    arguments = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), step.gradient_arguments(bucket))
    jax.block_until_ready(arguments)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts at the present size
    before = resident("VmRSS")
    jax.block_until_ready(compiled(*arguments))
    print(cost.memory_bytes - cost.argument_bytes, resident("VmHWM") - before)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

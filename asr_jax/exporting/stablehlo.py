"""Recognisers as StableHLO programs of `jax.export`, which run with JAX alone on CPUs, GPUs and TPUs."""

from pathlib import Path

import jax

from asr_jax.core.files import write_whole
from asr_jax.exporting.parts import Part

PLATFORMS = ("cpu", "cuda", "tpu")


def write_stablehlo(part: Part, path: Path) -> None:
    """Writes a part as a program for all sizes; `jax.export.deserialize` reads it."""
    with jax.default_matmul_precision("highest"):
        exported = jax.export.export(jax.jit(part.function), platforms=PLATFORMS)(**part.inputs)
    write_whole(path, bytes(exported.serialize()))


def run_stablehlo(path: Path, part: Part) -> list:
    """Runs a file on the example of its part."""
    found = jax.export.deserialize(bytearray(path.read_bytes())).call(**part.example)
    return list(found) if isinstance(found, tuple) else [found]

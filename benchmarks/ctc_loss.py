"""Compares this project's CTC loss with optax's on the same machine: `python benchmarks/ctc_loss.py [--json OUT]`.

Times are medians of jitted calls that compute the loss and its gradient with respect to the logits, in milliseconds.
Memory is the temporary memory of XLA, without inputs and outputs. Errors are differences from this project's loss in
float64, which agrees with PyTorch's to 1e-15. Lengths are drawn from the upper half of each axis.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from asr_jax.core.batch import length_mask
from asr_jax.losses.ctc import ctc_loss

SHAPES = ((16, 400, 500, 60), (32, 250, 128, 40), (8, 1500, 32, 200))
Loss = Callable[[Array], Array]


def losses(batch: int, frames: int, vocabulary: int, labels: int) -> tuple[Array, dict[str, Loss]]:
    """Random logits `[B T V]`, and both losses as functions of the logits, summed over the batch."""
    random = np.random.default_rng(0)
    logits = jnp.asarray(random.normal(size=(batch, frames, vocabulary)), jnp.float32)
    targets = jnp.asarray(random.integers(1, vocabulary, (batch, labels)), jnp.int32)
    logit_lengths = jnp.asarray(random.integers(frames // 2 + labels // 2, frames + 1, batch), jnp.int32)
    label_lengths = jnp.asarray(random.integers(labels // 2, labels + 1, batch), jnp.int32)
    frame_padding, label_padding = (
        1.0 - length_mask(lengths, size) for lengths, size in ((logit_lengths, frames), (label_lengths, labels))
    )
    return logits, {
        "asr_jax": lambda logits: ctc_loss(logits, logit_lengths, targets, label_lengths, blank_id=0)[0].sum(),
        "optax": lambda logits: optax.ctc_loss(logits, frame_padding, targets, label_padding).sum(),
    }


def medians_ms(compiled: dict[str, Any], logits: Array, repeats: int) -> dict[str, float]:
    """Median milliseconds of calls that take turns, which distributes the load of the machine evenly."""
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for turn in range(repeats + 2):
        for name, call in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(call(logits))
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def compare(shape: tuple[int, int, int, int], repeats: int) -> dict[str, Any]:
    """Times, memory and errors of both losses for one shape."""
    logits, by_name = losses(*shape)
    compiled: dict[str, Any] = {
        name: jax.jit(jax.value_and_grad(loss)).lower(logits).compile() for name, loss in by_name.items()
    }
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(jax.grad(by_name["asr_jax"]))(logits.astype(jnp.float64)))
    return {
        "shape": dict(zip("BTVU", shape, strict=True)),
        "ms": medians_ms(compiled, logits, repeats),
        "temporary_mb": {name: call.memory_analysis().temp_size_in_bytes / 1e6 for name, call in compiled.items()},
        "gradient_error": {
            name: float(np.abs(np.asarray(call(logits)[1]) - exact).max()) for name, call in compiled.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--repeats", type=int, default=41, help="number of calls of each loss per shape")
    options = parser.parse_args()
    rows = [compare(shape, options.repeats) for shape in SHAPES]
    device = jax.devices()[0].device_kind
    print(f"loss and gradient on {device}, medians of {options.repeats}")
    print(f"{'shape':22}{'':9}{'ms':>8}{'times faster':>14}{'temporary MB':>14}{'gradient error':>16}")
    for row in rows:
        for name in row["ms"]:
            shape = " ".join(f"{axis}{size}" for axis, size in row["shape"].items())
            faster = row["ms"]["optax"] / row["ms"][name]
            print(
                f"{shape:22}{name:9}{row['ms'][name]:8.1f}{faster:14.2f}{row['temporary_mb'][name]:14.1f}"
                f"{row['gradient_error'][name]:16.1e}"
            )
    if options.json:
        options.json.write_text(json.dumps({"device": device, "jax": jax.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

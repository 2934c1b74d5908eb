"""Compares this project's LSTM with `torch.nn.LSTM` on the CPU: `python benchmarks/lstm.py [--json OUT]`.

Measures the forward pass, and the forward and backward pass with the gradients of parameters and inputs, in float32.
PyTorch runs in the environment of scripts/setup_reference.sh. The systems take turns call by call, so that both have
the same load. The ratio is PyTorch's time divided by ours: above 1, ours is faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.nn.recurrent.lstm import LSTM

ROOT = Path(__file__).resolve().parent.parent
SHAPES = {
    "encoder, testing and base": {"rows": 16, "frames": 200, "input": 240, "dim": 1024, "layers": 2},
    "encoder, one row": {"rows": 1, "frames": 200, "input": 240, "dim": 1024, "layers": 2},
    "prediction": {"rows": 16, "frames": 76, "input": 512, "dim": 512, "layers": 2},
    "digits": {"rows": 36, "frames": 50, "input": 240, "dim": 144, "layers": 2},
}


def calls_of(shape: dict[str, int]) -> dict[str, Callable[[], Any]]:
    """Returns our forward pass, and our forward and backward pass."""
    module = LSTM(shape["dim"], shape["layers"])
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(shape["rows"], shape["frames"], shape["input"])), jnp.float32)
    variables = module.init(jax.random.key(0), x[:, :2], step=None)
    forward = jax.jit(lambda variables, x: module.apply(variables, x, step=None)[0])

    def total(variables: Any, x: Any) -> Any:
        return module.apply(variables, x, step=None)[0].sum()

    both = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))
    return {
        "forward": lambda: jax.block_until_ready(forward(variables, x)),
        "step": lambda: jax.block_until_ready(both(variables, x)),
    }


def seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def compare(shape: dict[str, int], side: Any, repeats: int) -> dict[str, Any]:
    """Times both systems in turns."""
    found: dict[str, Any] = {}
    for name, call in calls_of(shape).items():
        ours, theirs = [], []
        for turn in range(repeats + 2):
            side.stdin.write(json.dumps({**shape, "pass": name}) + "\n")
            side.stdin.flush()
            times = json.loads(side.stdout.readline()), seconds(call)
            if turn >= 2:
                theirs.append(times[0])
                ours.append(times[1])
        found[name] = {
            "ours_s": ours, "torch_s": theirs, "ratio_of_medians": statistics.median(theirs) / statistics.median(ours),
            "ratio_of_fastest": min(theirs) / min(ours),
        }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--repeats", type=int, default=15, help="number of calls of each system and shape")
    parser.add_argument("--peer", default=str(ROOT / ".venv-reference/bin/python"), help="Python with torch")
    options = parser.parse_args()
    command = [options.peer, str(ROOT / "benchmarks/lstm_side.py"), str(os.cpu_count())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as side:
        rows = []
        for name, shape in SHAPES.items():
            load = os.getloadavg()[0]
            rows.append({"name": name, "shape": shape, "load": load, **compare(shape, side, options.repeats)})
            print(
                name, {part: [round(rows[-1][part][key], 2) for key in ("ratio_of_medians", "ratio_of_fastest")]
                for part in ("forward", "step")}, f"load {load:.1f}", flush=True,
            )  # fmt: skip
        assert side.stdin
        side.stdin.close()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Compares the steps of models with one encoder and other heads: `python benchmarks/head_steps.py [--json OUT]`.

A step is the loss with the gradients of all parameters, for a batch of random audio and labels, without the optimiser.
configs/read_speech.py defines the models. Their steps take turns. A ratio is a median divided by that of the first
model.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from transducer_step import CONFIGS, Case, batch_of

import asr_jax
from asr_jax.core.random_streams import random_streams

MODELS = ("conformer", "paraformer", "paraformer_v2", "paraformer_enhanced", "aed")
TERMS = ("loss", "quantity", "boundary", "refinement")
"""Endings of the names of loss terms; other sums are metrics."""


def step_of(case: Case) -> tuple[Callable[[], Any], int]:
    """Returns a compiled call of the step, and the number of parameters."""
    os.environ["MODEL"] = case.model
    settings = asr_jax.load_config(CONFIGS / f"{case.config}.py").model
    model = settings.build(vocab_size=case.vocab_size, blank_id=case.vocab_size - 1, precision="f32")
    batch, streams = batch_of(case), random_streams(jax.random.key_data(jax.random.key(1)), jnp.int32(0))
    variables = jax.jit(lambda batch: model.init(jax.random.key(0), batch, step=None))(batch)
    others = {name: tree for name, tree in variables.items() if name != "params"}

    def loss(params: Any, batch: Any) -> Any:
        given = {"params": params} | others
        sums = model.apply(given, batch, step=jnp.int32(3000), rngs=streams, mutable=["batch_stats"])[0]
        return sum(each.total / each.weight for name, each in sums.items() if name.rpartition("/")[2] in TERMS)

    program = jax.jit(jax.value_and_grad(loss)).lower(variables["params"], batch).compile()
    size = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    return lambda: program(variables["params"], batch), size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--repeats", type=int, default=9, help="number of calls of each step")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="values of MODEL; the first is the reference")
    parser.add_argument("--rows", type=int, default=4, help="number of utterances")
    parser.add_argument("--seconds", type=float, default=8.0, help="duration of each")
    parser.add_argument("--labels", type=int, default=110, help="number of characters of each")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    cases = {
        model: Case("read_speech", model, 30, options.rows, options.seconds, options.labels) for model in options.models
    }
    steps = {model: step_of(case) for model, case in cases.items()}
    times: dict[str, list[float]] = {model: [] for model in steps}
    for _ in range(options.repeats + 1):
        for model, (step, _) in steps.items():
            started = time.perf_counter()
            jax.block_until_ready(step())
            times[model].append(time.perf_counter() - started)
    medians = {model: statistics.median(each[1:]) for model, each in times.items()}
    rows = [
        {
            "model": model, "parameters": size, "times_s": times[model][1:], "median_s": medians[model],
            "ratio": medians[model] / medians[options.models[0]],
        }
        for model, (_, size) in steps.items()
    ]  # fmt: skip
    for row in rows:
        print(f"{row['model']}: {row['parameters']:,} parameters, {row['median_s']:.3f} s, {row['ratio']:.2f} ×")
    if options.json:
        result = {
            "load": [load, os.getloadavg()[0]], "rows": options.rows, "seconds": options.seconds,
            "labels": options.labels, "models": rows,
        }  # fmt: skip
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

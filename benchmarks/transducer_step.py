"""Measures the joint network's and the loss's share of a transducer's step: `python benchmarks/transducer_step.py`.

A step is the loss with the gradients of all parameters, for a batch of random audio, without the optimiser. The step
without them has the encoder, the prediction network and the projections of both, whose outputs are added up as the
loss. The share is one minus the ratio of the two times. Both take turns, and the medians are compared.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import asr_jax
from asr_jax.core.batch import Batch
from asr_jax.core.random_streams import random_streams

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


class Case(NamedTuple):
    """A model and the sizes of a batch."""

    config: str
    model: str
    """Environment variable MODEL of the config; empty: none."""
    vocab_size: int
    rows: int
    seconds: float
    labels: int


CASES = {
    "RNN-T, digits": Case("digits", "rnnt", 11, 16, 2.0, 8),
    "Zipformer, pruned, digits": Case("digits", "zipformer_transducer", 11, 16, 2.0, 8),
    "RNN-T, 49 M": Case("rnnt_testing", "", 1024, 2, 10.0, 40),
}


def model_of(case: Case) -> Any:
    os.environ["MODEL"] = case.model
    settings = asr_jax.load_config(CONFIGS / f"{case.config}.py").model
    heads = {name: head for name, head in settings.heads.items() if name == "transducer"}
    return replace(settings, heads=heads).build(
        vocab_size=case.vocab_size, blank_id=case.vocab_size - 1, precision="f32"
    )


def batch_of(case: Case) -> Batch:
    random, size = np.random.default_rng(0), round(case.seconds * 16000)
    audio = random.integers(-9000, 9000, (case.rows, size)).astype(np.int16)
    labels = random.integers(0, case.vocab_size - 1, (case.rows, case.labels)).astype(np.int32)
    rows = np.arange(case.rows, dtype=np.int32)
    full = [np.full(case.rows, number, np.int32) for number in (size, case.labels)]
    batch = Batch(audio, None, full[0], labels, full[1], np.ones(case.rows, np.float32), rows)
    return jax.tree.map(jnp.asarray, batch)


def without_joint(module: Any, batch: Batch, *, step: Any) -> Any:
    """Returns the sum of the joint network's inputs."""
    head, encoded = module.heads["transducer"], module.encode(batch, step=step)
    predicted = head.prediction(batch.tokens, batch.token_lengths, step=step)
    return head.of_frames(encoded.at(head.tap).values).sum() + head.of_labels(predicted).sum()


def steps_of(case: Case) -> dict[str, Callable[[], Any]]:
    """Returns the step, and the step without joint network and loss, as compiled calls."""
    model, batch = model_of(case), batch_of(case)
    streams = random_streams(jax.random.key_data(jax.random.key(1)), jnp.int32(0))
    variables = jax.jit(lambda batch: model.init(jax.random.key(0), batch, step=None))(batch)
    others = {name: tree for name, tree in variables.items() if name != "params"}

    def apply(params: Any, batch: Batch, **method: Any) -> Any:
        given = {"params": params} | others
        return model.apply(given, batch, step=jnp.int32(3000), rngs=streams, mutable=["batch_stats"], **method)[0]

    def loss(params: Any, batch: Batch) -> Any:
        terms = apply(params, batch).items()
        return sum(each.total / each.weight for name, each in terms if name.endswith(("loss", "simple")))

    calls: dict[str, Callable[[], Any]] = {}
    for name, function in (("step", loss), ("without", lambda p, b: apply(p, b, method=without_joint))):
        program = jax.jit(jax.value_and_grad(function)).lower(variables["params"], batch).compile()
        calls[name] = lambda program=program: program(variables["params"], batch)  # type: ignore[misc]
    return calls


def measured(case: Case, repeats: int) -> dict[str, Any]:
    calls, times = steps_of(case), {"step": list[float](), "without": list[float]()}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            started = time.process_time()
            jax.block_until_ready(call())
            times[name].append(time.process_time() - started)
    medians = {name: statistics.median(each[1:]) for name, each in times.items()}
    return {**case._asdict(), "cpu_s": medians, "share": 1 - medians["without"] / medians["step"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--repeats", type=int, default=5, help="number of calls of each step")
    options = parser.parse_args()
    load, rows = os.getloadavg()[0], []
    for name, case in CASES.items():
        rows.append({"name": name, **measured(case, options.repeats)})
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        result = {"load": [load, os.getloadavg()[0]], "device": jax.devices()[0].device_kind, "cases": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Memory and time of each rematerialisation policy: `python benchmarks/remat.py [--size S] [--json OUT]`.

Bytes are XLA's figures for the gradient of one batch, without the parameters. Milliseconds are medians of measurements
in turns, which distributes the load of the machine evenly.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.meshes import data_mesh, global_batch
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.index import scale_of
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.remat import Remat
from asr_jax.observe.tables import print_table
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.training.batches import noise_of
from asr_jax.training.initial_state import abstract_state, initial_state, lower_initial_state
from asr_jax.training.programs import compile_steps
from asr_jax.training.recipe import Recipe

SIZES = {"S": Zipformer.small, "M": Zipformer.medium, "tiny": Zipformer.tiny}
VOCABULARY = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SIZES), default="S")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    mesh = data_mesh(1)
    scale, length = scale_of(KaldiFbank(), of_features=False), round(16000 * given.seconds)
    bucket = Bucket(length, int(3 * given.seconds), given.rows, length)
    on_device = global_batch(noise_of(bucket, scale, np.arange(VOCABULARY - 1)), mesh)
    made: dict[str, Any] = {}
    for remat in get_args(Remat):
        encoder = SIZES[given.size](remat=remat)
        model = Model(encoder=encoder).build(vocab_size=VOCABULARY, blank_id=VOCABULARY - 1, precision=given.precision)
        recipe = Recipe(model, {"ctc": 1.0}, AdamW().build(RunLength(1000, 1000)))
        lowered = lower_initial_state(recipe, seed=0)
        steps = compile_steps(recipe, [bucket], abstract_state(lowered, mesh), scale=scale, mesh=mesh)
        state, _ = made.get("state") or initial_state(lowered.compile(), mesh)
        made["state"] = state, _
        made[remat] = steps
    times: dict[str, list[float]] = {remat: [] for remat in get_args(Remat)}
    state, _ = made["state"]
    for _ in range(given.updates + 1):
        for remat, taken in times.items():
            steps = made[remat]
            start = time.perf_counter()
            jax.block_until_ready(steps.accumulate(state, [(bucket, on_device, np.int32(0))]).weight)
            taken.append(1e3 * (time.perf_counter() - start))
    rows = [
        {
            "remat": remat, "model": f"Zipformer-{given.size}", "rows": given.rows, "seconds": given.seconds,
            "bytes": made[remat].table[0]["memory_bytes"], "ms": statistics.median(taken[1:]),
            "time_ratio": statistics.median(taken[1:]) / statistics.median(times["none"][1:]),
        }
        for remat, taken in times.items()
    ]  # fmt: skip
    print_table(rows, title=f"{jax.devices()[0].device_kind}, {given.precision}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

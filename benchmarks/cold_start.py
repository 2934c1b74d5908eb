"""Processor time of a cold start by phase: `python benchmarks/cold_start.py [--configs zipformer --json OUT]`.

For each config, on one device of this machine and without caches: imports, then tracing (with conversion to StableHLO)
and compilation of the initial parameters, of the gradient of a batch of 4 × 8 s and of the update. Each config is a
process of its own. Data are not read. The time of all threads is counted, because wall time depends on other processes
of the machine.
"""

import time

BEGUN = time.process_time()

import asr_jax.core.environment  # noqa: E402, F401, I001  must be first

import argparse  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import jax  # noqa: E402

from asr_jax.cli.benchmark.systems import tokenizer_without_data  # noqa: E402
from asr_jax.cli.command_line import load_config  # noqa: E402
from asr_jax.core.meshes import data_mesh  # noqa: E402
from asr_jax.core.pytrees import num_elements  # noqa: E402
from asr_jax.data.batching.buckets import Bucket  # noqa: E402
from asr_jax.data.batching.index import scale_of  # noqa: E402
from asr_jax.inference.model import make_model  # noqa: E402
from asr_jax.observe.tables import print_table  # noqa: E402
from asr_jax.optim.schedules import RunLength  # noqa: E402
from asr_jax.training.initial_state import abstract_state, lower_initial_state  # noqa: E402
from asr_jax.training.programs import StepPrograms  # noqa: E402
from asr_jax.training.recipe import make_recipe  # noqa: E402

CONFIGS = Path(__file__).parents[1] / "configs"
FAMILIES = (
    "quartznet_librispeech", "conformer_librispeech", "fastconformer_librispeech", "squeezeformer_librispeech",
    "zipformer", "paraformer_rust", "rnnt_base", "w2v_bert_finetune", "wav2vec2_finetune", "wav2vec2_pretrain",
)  # fmt: skip
ROWS, SECONDS, LABELS = 4, 8.0, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=FAMILIES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one)))
        return
    rows = list[dict[str, Any]]()
    for config in given.configs:
        command = [sys.executable, __file__, "--one", config]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        rows.append(json.loads(output.splitlines()[-1]))
        print_table(rows[-1:])
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")


def measured(config: str) -> dict[str, Any]:
    """Returns the seconds of the phases for batches of `ROWS` × `SECONDS`."""
    jax.config.update("jax_enable_compilation_cache", False)
    experiment = load_config(CONFIGS / f"{config}.py")
    tokenizer = tokenizer_without_data(experiment.data.tokenizer, None)
    scale, mesh = scale_of(experiment.model.front_end, of_features=False), data_mesh(1)
    length = round(SECONDS * scale.per_s)
    bucket = Bucket(length, LABELS if experiment.model.recognises else 0, ROWS, length)
    row: dict[str, Any] = {"config": config}

    def phase(name: str, function: Callable[[], Any]) -> Any:
        begun = time.process_time()
        found = function()
        row[name] = time.process_time() - begun
        return found

    row["imports s"] = time.process_time() - BEGUN
    recipe = make_recipe(experiment, make_model(experiment, tokenizer), RunLength(100_000, 2_000), most_rows=ROWS)
    lowered = phase("trace initial parameters s", lambda: lower_initial_state(recipe, seed=experiment.seed))
    shapes = abstract_state(lowered, mesh, recipe.sharding)
    row["parameters M"] = num_elements(shapes.state.params) / 1e6
    phase("compile initial parameters s", lowered.compile)
    step = StepPrograms(recipe, shapes, mesh, scale)
    gradient = phase("trace gradient s", lambda: step.gradient(bucket))
    phase("compile gradient s", gradient.compile)
    update = phase("trace update s", lambda: step.update(step.accumulated(gradient)))
    phase("compile update s", update.compile)
    row["total s"] = time.process_time() - BEGUN
    return row


if __name__ == "__main__":
    main()

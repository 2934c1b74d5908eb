"""Memory of a device with parameters on every device and spread over all: `python benchmarks/sharded_memory.py`.

Compiles the gradient of a batch and the update of large models for eight absent devices, with `--mesh.data 8` and with
`--mesh.fsdp 8`, and writes XLA's analysis to --json. Nothing is run. The environment needs the extra cuda12 or tpu.
"""

import asr_jax.core.environment  # noqa: F401, I001  must be first

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from asr_jax.cli.benchmark.systems import tokenizer_without_data
from asr_jax.cli.command_line import load_config
from asr_jax.cli.plan_target import TargetSteps
from asr_jax.config import Experiment
from asr_jax.core.meshes import MeshSizes
from asr_jax.core.pytrees import num_elements
from asr_jax.core.targets import target_of
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.index import scale_of
from asr_jax.models.conformer import Conformer
from asr_jax.observe.tables import print_table
from asr_jax.optim.schedules import RunLength

CONFIGS = Path(__file__).parents[1] / "configs"
MODELS = ("W2V-BERT", "FastConformer-XXL", "wav2vec 2.0 Large")
ROWS, SECONDS, LABELS = 4, 16.0, 80
MESHES = {"data 8": MeshSizes(), "fsdp 8": MeshSizes(fsdp=8), "fsdp 4, model 2": MeshSizes(fsdp=4, model=2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="h100:8")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--meshes", nargs="+", choices=tuple(MESHES), default=tuple(MESHES)[:2])
    parser.add_argument("--json", type=Path, default=Path("sharded_memory.json"))
    given = parser.parse_args()
    found: list[dict[str, Any]] = json.loads(given.json.read_text()) if given.json.exists() else []
    for model in given.models:
        for mesh in given.meshes:
            row = measured(model, mesh, given.target)
            key = {name: row[name] for name in ("model", "mesh", "target")}
            found = [other for other in found if not key.items() <= other.items()] + [row]
            given.json.write_text(json.dumps(found, indent=1) + "\n")
            print_table([row])


def experiment_of(model: str) -> Experiment:
    """Returns the experiment of a large model."""
    if model == "wav2vec 2.0 Large":
        experiment = load_config(CONFIGS / "wav2vec2_finetune.py")
        encoder: Any = type(experiment.model.encoder).large(remat="layers")
    elif model == "FastConformer-XXL":
        experiment = load_config(CONFIGS / "fastconformer_librispeech.py")
        encoder = Conformer.fast("xxlarge", remat="layers")
    else:
        experiment = load_config(CONFIGS / "w2v_bert_finetune.py")
        encoder = replace(experiment.model.encoder, remat="layers")
    training = replace(experiment.training, precision="bf16", accumulate=1)
    return replace(experiment, model=replace(experiment.model, encoder=encoder), training=training)


def measured(model: str, mesh: str, target: str) -> dict[str, Any]:
    """Returns the memory of a device in GB during the gradient and the update.

    Args:
        model: One of `MODELS`.
        mesh: One of `MESHES`.
        target: Devices, as for `asr_jax.plan --target`.
    """
    experiment = replace(experiment_of(model), mesh=MESHES[mesh])
    devices = target_of(target).arranged(experiment.mesh)
    scale = scale_of(experiment.model.front_end, of_features=False)
    length = round(SECONDS * scale.per_s)
    shards = devices.mesh.shape["data"] * devices.mesh.shape["fsdp"]
    bucket = Bucket(length, LABELS, ROWS * shards, length)
    tokenizer = tokenizer_without_data(experiment.data.tokenizer, None)
    steps = TargetSteps(experiment, tokenizer, RunLength(100_000, 2_000), devices, (bucket,), scale, True)
    gradient, update = steps.rows_on(devices.mesh, print)
    step = steps.step(devices.mesh)
    return {
        "model": model, "parameters M": round(num_elements(step.shapes.state.params) / 1e6), "target": target,
        "mesh": mesh, "rows": ROWS, "seconds": SECONDS, "state GB": update["arguments GB"],
        "gradient GB": gradient["memory GB"], "update GB": update["memory GB"],
        "collectives of the gradient": gradient["collectives"], "collectives of the update": update["collectives"],
        "compile s": gradient["compile s"],
    }  # fmt: skip


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()

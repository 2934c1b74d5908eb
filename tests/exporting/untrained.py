"""Recognisers with random weights, as `Trained` and as runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from support import fast_jit

from asr_jax.checkpoints.store import save_weights_alone
from asr_jax.config import Experiment, Training, save_experiment, to_json
from asr_jax.core.meshes import data_mesh
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT, PLAN, TOKENIZER
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.limits import BatchLimits
from asr_jax.inference.model import example_batch, make_model
from asr_jax.inference.trained import Trained, tokenizer_files
from asr_jax.models.base import Model
from asr_jax.optim.ema import EMA
from asr_jax.text.base import Tokenizer
from asr_jax.text.characters import CharacterTokenizer

LETTERS = CharacterTokenizer((None, *"abcdefgh", " "), "none")


def experiment_of(model: Model) -> Experiment:
    return Experiment(name="untrained", model=model, data=Data(train=()), training=Training(ema=EMA(0.0)))


def untrained(
    model: Model, tokenizer: Tokenizer = LETTERS, *, folder: Path = Path("untrained"), zeros: bool = False
) -> Trained:
    """Returns a recogniser whose weights are random, including biases and statistics.

    The weights of heads are large, so that the best label changes from frame to frame. With `zeros`, for tests that
    compute nothing, initial weights are 0, and no program is compiled.
    """
    experiment = experiment_of(model)
    module = make_model(experiment, tokenizer)
    init = fast_jit(lambda key: module.init({"params": key, "dropout": key}, example_batch(module), step=None))
    key = jax.random.key(0)
    made = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), init.eval_shape(key)) if zeros else init(key)
    rng = np.random.default_rng(0)
    changed = {
        path: np.asarray(value) * (20 if path.endswith("/output/kernel") else 1)
        + rng.uniform(0.0, 0.05, value.shape).astype(value.dtype)
        for path, value in flatten({"params": made["params"], "batch_stats": made.get("batch_stats", {})}).items()
    }
    variables: Any = jax.device_put({"batch_stats": {}, **unflatten(changed)})
    return Trained(
        experiment=experiment,
        model=module,
        tokenizer=tokenizer,
        variables=variables,
        longest_s=10.0,
        limits=BatchLimits(60.0),
        folder=folder,
        updates=0,
        weights="averaged",
        mesh=data_mesh(1),
    )


def write_run(trained: Trained, folder: Path) -> Path:
    """Writes the recogniser as a run with one checkpoint."""
    folder.mkdir()
    trained.tokenizer.save(folder / TOKENIZER)
    save_experiment(trained.experiment, folder / EXPERIMENT)
    plan = {"of_features": False, "buckets": [asdict(Bucket(160_000, 50, 2, 160_000))]}
    (folder / PLAN).write_text(json.dumps(plan))
    meta = {"experiment": to_json(trained.experiment), "tokenizer": tokenizer_files(folder), "source": "random"}
    save_weights_alone(folder / CHECKPOINTS, 0, trained.variables, meta)
    return folder

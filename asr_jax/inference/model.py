"""The model of an experiment: built, described for the cache of programs, and the shapes of its variables."""

import json
from typing import Any

import jax
import jax.numpy as jnp

from asr_jax.config import Experiment, classes, may_change, to_json
from asr_jax.core.batch import Batch
from asr_jax.core.precision import set_products
from asr_jax.core.programs import lower
from asr_jax.core.pytrees import Tree
from asr_jax.models.base import Recogniser
from asr_jax.optim.schedules import RunLength
from asr_jax.text.tokenizers import Tokenizer


def make_model(experiment: Experiment, tokenizer: Tokenizer) -> Recogniser:
    """The model, in the run's precision."""
    precision = experiment.training.precision
    set_products(precision)
    return experiment.model.build(vocab_size=tokenizer.vocab_size, blank_id=tokenizer.blank_id, precision=precision)


def made_of(experiment: Experiment, tokenizer: Tokenizer, *, length: RunLength | None = None) -> str | None:
    """All settings that a run's programs hold, for `core.programs.lower`; None where classes of the user's own are
    among them, whose sources nobody watches. `length`: of the run, for programs that train: schedules are
    made of it."""
    if any(not name.startswith("asr_jax.") for name in classes(experiment)):
        return None
    # What programs cannot hold is left out by name, so that a new setting is in until it is known to be harmless.
    outside = ("name", "run_dir", "fresh", "dry_run", "init", "seed", "data")
    settings = {n: v for n, v in to_json(experiment).items() if n not in outside}
    settings["training"] = {n: v for n, v in settings["training"].items() if not may_change(f"training.{n}")}
    return json.dumps([settings, tokenizer.vocab_size, tokenizer.blank_id, length and vars(length)])


def variable_shapes(model: Recogniser, *, made_of: str | None) -> Tree:
    """Shapes of the model's variables, `{"params": …, "batch_stats": …}`, without computing them."""

    def variables() -> Any:
        key = jax.random.key(0, impl="rbg")
        streams = {"params": key, "mask": key, "dropout": key}
        made = model.init(streams, example_batch(model), step=None)
        return {"params": made["params"], "batch_stats": made.get("batch_stats", {})}

    shapes: Tree = lower("variables", variables, made_of=made_of).lowered.out_info
    return shapes


def example_batch(model: Recogniser) -> Batch:
    """One row of a second of silence: shapes of parameters do not depend on it."""
    num_samples = model.front_end.rate_hz
    return Batch(
        audio=jnp.zeros((1, num_samples), jnp.int16),
        features=None,
        lengths=jnp.full(1, num_samples, jnp.int32),
        tokens=jnp.zeros((1, 1), jnp.int32),
        token_lengths=jnp.zeros(1, jnp.int32),
        weights=jnp.ones(1, jnp.float32),
        records=jnp.zeros(1, jnp.int32),
    )

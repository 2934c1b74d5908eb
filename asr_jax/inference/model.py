"""The model of an experiment, its description for the cache of programs, and the shapes of its variables."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from asr_jax.config import Experiment, classes, is_among, leaves
from asr_jax.core.batch import Batch
from asr_jax.core.precision import set_products
from asr_jax.core.programs import TRACED, Programs
from asr_jax.core.pytrees import Tree
from asr_jax.kernels.implementations import selected_kernels
from asr_jax.models.base import Recogniser
from asr_jax.optim.schedules import RunLength
from asr_jax.text.tokenizers import Tokenizer


def make_model(experiment: Experiment, tokenizer: Tokenizer) -> Recogniser:
    """Builds the model, and sets the run's precision of products."""
    precision = experiment.training.precision
    set_products(precision)
    return experiment.model.build(vocab_size=tokenizer.vocab_size, blank_id=tokenizer.blank_id, precision=precision)


NOT_IN_PROGRAMS = (
    "name",
    "run_dir",
    "fresh",
    "dry_run",
    "resume",
    "init",
    "seed",
    "data",
    "training.num_updates",
    "training.num_epochs",
    "training.log_every",
    "training.pre_allocate",
    "training.profile",
    "training.profile_processes",
    "training.saving",
    "training.limits",
    "training.validation.every",
    "training.validation.each_epoch",
    "training.validation.live",
    "training.validation.loss",
    "training.validation.max_duration_s",
    "training.validation.num_samples",
    "training.validation.sample_every",
)
"""Fields of an experiment that no program closes over. All other fields are part of the key of every cached program."""


def programs_of(experiment: Experiment, tokenizer: Tokenizer, *, length: RunLength | None = None) -> Programs:
    """Returns the programs of a run. If the settings contain a user's own classes, they are traced at every start.

    Args:
        length: Length of the run, for training programs, whose schedules depend on it.
    """
    kernels = selected_kernels(experiment.training.kernels)
    if any(not name.startswith("asr_jax.") for name in classes(experiment)):
        return replace(TRACED, kernels=kernels)
    settings = [each for each in leaves(experiment) if not is_among(each[0], NOT_IN_PROGRAMS)]
    return Programs((), kernels=kernels).given(
        settings=settings, vocab_size=tokenizer.vocab_size, blank_id=tokenizer.blank_id, length=length and vars(length)
    )


def variable_shapes(model: Recogniser, programs: Programs) -> Tree:
    """Returns the shapes of the model's variables, `{"params": …, "batch_stats": …}`, without computing them."""

    def variables() -> Any:
        key = jax.random.key(0, impl="rbg")
        streams = {"params": key, "mask": key, "dropout": key}
        made = model.init(streams, example_batch(model), step=None)
        return {"params": made["params"], "batch_stats": made.get("batch_stats", {})}

    shapes: Tree = programs.lower("variables", variables).lowered.out_info
    return shapes


def example_batch(model: Recogniser) -> Batch:
    """Returns one row of one second of silence. The shapes of parameters do not depend on it."""
    num_samples = model.front_end.rate_hz
    return Batch(
        audio=jnp.zeros((1, num_samples), jnp.int16),
        features=None,
        lengths=jnp.full(1, num_samples, jnp.int32),
        tokens=jnp.zeros((1, 1), jnp.int32),
        token_lengths=jnp.zeros(1, jnp.int32),
        weights=jnp.ones(1, jnp.float32),
        utterances=jnp.zeros(1, jnp.int32),
    )

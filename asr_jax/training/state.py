"""What training changes, and how it begins."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

from asr_jax.core.batch import Batch
from asr_jax.core.pytrees import Tree
from asr_jax.models.base import Recogniser

GENERATOR = "threefry2x32"
STREAMS = ("dropout", "augment", "regularise")


class TrainState(struct.PyTreeNode):
    """Everything that an update changes, but for the averaged weights, which are saved on their own."""

    updates: Int[Array, ""]
    """Updates applied so far: what schedules and averages read."""
    params: Tree
    batch_stats: Tree
    """Running statistics of normalisation; empty where the model has none."""
    opt_state: Any
    key: UInt32[Array, "2"]
    """Data of the (threefry) key that all random numbers of training are folded from; it never changes."""


def initial_state(
    model: Recogniser, optimizer: optax.GradientTransformation, *, seed: int
) -> tuple[TrainState, tuple[str, ...]]:
    """Random weights and an empty optimizer, and the names of the sums that the model gives. To be called under `jit`,
    which leaves nothing of the model's run but its parameters."""
    # rbg draws in one operation where the default generator is a loop to compile for each parameter.
    key = jax.random.key(seed, impl="rbg")
    sums, variables = model.init_with_output({"params": key}, _example(model), step=None)
    params = variables["params"]
    state = TrainState(
        updates=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats=variables.get("batch_stats", {}),
        opt_state=optimizer.init(params),
        key=jax.random.key_data(jax.random.key(seed, impl=GENERATOR)),
    )
    return state, tuple(sums)


def average_of(state: TrainState) -> Tree:
    """What is averaged: parameters and statistics."""
    return {"params": state.params, "batch_stats": state.batch_stats}


def random_streams(key: UInt32[Array, "2"], position: Int[Array, ""]) -> dict[str, PRNGKeyArray]:
    """A key for each stream of random numbers, for the batch at a position of the plan."""
    folded = jax.random.fold_in(jax.random.wrap_key_data(key, impl=GENERATOR), position)
    return {name: jax.random.fold_in(folded, i) for i, name in enumerate(STREAMS)}


def _example(model: Recogniser) -> Batch:
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

"""Initial training state: random or given parameters, and an empty optimizer state."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered

from asr_jax.core import draws
from asr_jax.core.meshes import abstract, replicate, replicated
from asr_jax.core.programs import TRACED, Programs
from asr_jax.core.pytrees import Tree
from asr_jax.core.random_streams import GENERATOR
from asr_jax.inference.model import example_batch
from asr_jax.optim.loss_scale import Scaling, no_scaling
from asr_jax.training.state import TrainState
from asr_jax.training.step import Recipe


class Beginning(NamedTuple):
    """State of a run before its first update, or its shapes."""

    state: TrainState
    average: Tree


def lower_beginning(recipe: Recipe, *, seed: int, programs: Programs = TRACED) -> Lowered:
    """Lowers the program that initialises the state of a new run.

    All runs use the shapes of its outputs. Only new runs compile it.

    Args:
        recipe: Settings of the training step.
        seed: Random seed.
        programs: Cache of traced programs.
    """

    def begin() -> Beginning:
        key = jax.random.key(seed, impl=draws.GENERATOR)
        streams = {"params": key, "mask": key, "dropout": key}  # some heads also draw in evaluation
        variables = recipe.model.init(streams, example_batch(recipe.model), step=None)
        state = fresh_state(recipe, variables["params"], variables.get("batch_stats", {}), seed=seed)
        return Beginning(state, jax.tree.map(jnp.copy, recipe.evaluated(state)))

    return programs.given(seed=seed).lower("begin", draws.drawn_at_once(begin)).lowered


def fresh_state(recipe: Recipe, params: Tree, batch_stats: Tree, *, seed: int) -> TrainState:
    """Returns the state before the first update of a run with the given parameters.

    Args:
        recipe: Settings of the training step.
        params: Parameters of the model, without adapters.
        batch_stats: Running statistics of the model. Empty if it has none.
        seed: Random seed.

    Raises:
        UserError: If the optimizer's rules do not match each parameter exactly once.
    """
    params = recipe.lora.with_adapters(params, jax.random.key(seed + 1, impl=draws.GENERATOR))
    recipe.updater.check(params)
    return TrainState(
        updates=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats=batch_stats,
        opt_state=recipe.updater.init(recipe.split(params)[0]),
        scaling=fresh_scaling(recipe),
        key=jax.random.key_data(jax.random.key(seed, impl=GENERATOR)),
    )


def fresh_scaling(recipe: Recipe) -> Scaling:
    """Returns the scale of the loss before the first update, or before the first one with another precision."""
    scale = recipe.loss_scale
    return Scaling(jnp.full((), scale.initial), jnp.zeros((), jnp.int32)) if scale else no_scaling()


def abstract_beginning(beginning: Lowered, mesh: Mesh) -> Beginning:
    """Returns shapes, dtypes and shardings of the initial state without computing it."""
    shapes: Beginning = abstract(beginning.out_info, replicated(mesh))
    return shapes


def initial_training(beginning: Compiled, mesh: Mesh) -> tuple[TrainState, Tree]:
    """Returns the state and the averaged parameters of a new run, replicated on all devices."""
    # Drawn on one device and copied, because several devices might draw other numbers.
    state, average = replicate(beginning(), mesh)
    return state, average


def training_from(recipe: Recipe, weights: Tree, mesh: Mesh, *, seed: int) -> tuple[TrainState, Tree]:
    """Returns the state and the averaged parameters of a new run that starts from given weights.

    Args:
        recipe: Settings of the training step.
        weights: `{"params": …, "batch_stats": …}`.
        mesh: Devices on which the results are replicated.
        seed: Random seed.
    """
    begin = jax.jit(functools.partial(fresh_state, recipe, seed=seed))
    state = replicate(begin(weights["params"], weights.get("batch_stats", {})), mesh)
    return state, jax.tree.map(jnp.copy, recipe.evaluated(state))

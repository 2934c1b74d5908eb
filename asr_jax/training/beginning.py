"""How a run begins: random weights, or given ones, and an empty optimizer."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered

from asr_jax.core.meshes import abstract, replicate, replicated
from asr_jax.core.programs import TRACED, Programs
from asr_jax.core.pytrees import Tree
from asr_jax.core.random_streams import GENERATOR
from asr_jax.core.sums import Sums, empty_sums
from asr_jax.inference.model import example_batch
from asr_jax.optim.loss_scale import Scaling, no_scaling
from asr_jax.training.state import TrainState
from asr_jax.training.step import Recipe


class Beginning(NamedTuple):
    """What a run begins with, or its shapes."""

    state: TrainState
    average: Tree
    sums: Sums
    """Zeros, by the names that the model gives."""


def lower_beginning(recipe: Recipe, *, seed: int, programs: Programs = TRACED) -> Lowered:
    """The program that draws a new run's state: for its shapes, and to be compiled where a run is new."""

    def begin() -> Beginning:
        # rbg draws in one operation where the default generator is a loop to compile for each parameter.
        key = jax.random.key(seed, impl="rbg")
        streams = {"params": key, "mask": key, "dropout": key}  # what some heads draw without training, too
        sums, variables = recipe.model.init_with_output(streams, example_batch(recipe.model), step=None)
        state = fresh_state(recipe, variables["params"], variables.get("batch_stats", {}), seed=seed)
        return Beginning(state, jax.tree.map(jnp.copy, recipe.evaluated(state)), empty_sums(sums))

    return programs.given(seed=seed).lower("begin", begin).lowered


def fresh_state(recipe: Recipe, params: Tree, batch_stats: Tree, *, seed: int) -> TrainState:
    """The state before the first update of a run with these parameters of the model.

    Raises: UserError where the optimizer's rules do not name each parameter once.
    """
    params = recipe.lora.with_adapters(params, jax.random.key(seed + 1, impl="rbg"))
    recipe.updater.check(params)
    scale = recipe.loss_scale
    return TrainState(
        updates=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats=batch_stats,
        opt_state=recipe.updater.init(recipe.split(params)[0]),
        scaling=Scaling(jnp.full((), scale.initial), jnp.zeros((), jnp.int32)) if scale else no_scaling(),
        key=jax.random.key_data(jax.random.key(seed, impl=GENERATOR)),
    )


def abstract_beginning(beginning: Lowered, mesh: Mesh) -> Beginning:
    """Shapes, types and shardings, without computing anything: to compile or restore with."""
    shapes: Beginning = abstract(beginning.out_info, replicated(mesh))
    return shapes


def initial_training(beginning: Compiled, mesh: Mesh) -> tuple[TrainState, Tree]:
    """A new run's state and average, the same on every device."""
    # Drawn on one device and copied: what several would draw together might be something else.
    state, average, _ = replicate(beginning(), mesh)
    return state, average


def training_from(recipe: Recipe, weights: Tree, mesh: Mesh, *, seed: int) -> tuple[TrainState, Tree]:
    """A new run's state and average with these weights, `{"params": …, "batch_stats": …}`."""
    begin = jax.jit(functools.partial(fresh_state, recipe, seed=seed))
    state = replicate(begin(weights["params"], weights.get("batch_stats", {})), mesh)
    return state, jax.tree.map(jnp.copy, recipe.evaluated(state))

"""Initial state of a run: random or given parameters, and an empty optimizer state."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered

from asr_jax.core import draw_loop
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import placed, replicated
from asr_jax.core.programs import TRACED, Programs
from asr_jax.core.pytrees import Tree
from asr_jax.core.random_streams import GENERATOR, STREAMS
from asr_jax.core.sharding import UNSPREAD, Sharding
from asr_jax.inference.model import example_batch
from asr_jax.nn.recurrent.state_passing import PASSED, Passed, check_passes, no_states
from asr_jax.optim.loss_scale import Scaling, no_scaling
from asr_jax.training.recipe import Recipe
from asr_jax.training.state import TrainState


class InitialState(NamedTuple):
    """State of a run before its first update, or its shapes."""

    state: TrainState
    average: Tree


def lower_initial_state(recipe: Recipe, *, seed: int, programs: Programs = TRACED) -> Lowered:
    """Lowers the program that initialises the state of a new run.

    All runs use the shapes of its outputs. Only new runs compile it.
    """

    def begin() -> InitialState:
        key = jax.random.key(seed, impl=draw_loop.GENERATOR)
        streams = {"params": key, "mask": key, "dropout": key}  # some heads also draw in evaluation
        variables = recipe.model.init(streams, example_batch(recipe.model), step=None)
        state = fresh_state(recipe, variables["params"], variables.get("batch_stats", {}), seed=seed)
        return InitialState(state, jax.tree.map(jnp.copy, recipe.evaluated(state)))

    return programs.given(seed=seed).lower("begin", draw_loop.drawn_at_once(begin)).lowered


def fresh_state(recipe: Recipe, params: Tree, batch_stats: Tree, *, seed: int) -> TrainState:
    """Returns the state before the first update of a run with the given parameters.

    Raises:
        UserError: If the optimizer's rules do not match each parameter exactly once.
    """
    params = recipe.lora.with_adapters(params, jax.random.key(seed + 1, impl=draw_loop.GENERATOR))
    recipe.updater.check(params)
    return TrainState(
        updates=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats=batch_stats,
        passed=_fresh_states(recipe) if recipe.passing.is_on else {},
        opt_state=recipe.updater.init(recipe.split(params)[0]),
        scaling=fresh_scaling(recipe),
        least_wer=jnp.full((), jnp.inf),
        key=jax.random.key_data(jax.random.key(seed, impl=GENERATOR)),
    )


def _fresh_states(recipe: Recipe) -> Passed:
    """Returns the passed states before the first batch."""
    if recipe.model.views > 1:
        raise UserError(f"training.pass_states is set and model.views is {recipe.model.views}: expected one of them")

    def states() -> Tree:
        streams = dict.fromkeys(("params", *STREAMS), jax.random.key(0))
        batch, step = example_batch(recipe.model), jnp.zeros((), jnp.int32)
        return recipe.model.init(streams, batch, step=step, mutable=True).get(PASSED, {})

    shapes = jax.eval_shape(states)
    check_passes(shapes)
    return no_states(shapes, recipe.most_rows)


def fresh_scaling(recipe: Recipe) -> Scaling:
    """Returns the scale of the loss before the first update, or before the first one with another precision."""
    scale = recipe.loss_scale
    return Scaling(jnp.full((), scale.initial), jnp.zeros((), jnp.int32)) if scale else no_scaling()


def abstract_state(lowered: Lowered, mesh: Mesh, sharding: Sharding = UNSPREAD) -> InitialState:
    """Returns shapes, dtypes and shardings of the initial state without computing it."""
    given: InitialState = lowered.out_info
    shapes: InitialState = jax.tree.map(
        lambda leaf, of: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=of),
        given,
        _shardings(given, mesh, sharding),
    )
    return shapes


def initial_state(compiled: Compiled, mesh: Mesh, sharding: Sharding = UNSPREAD) -> tuple[TrainState, Tree]:
    """Returns the state and the averaged parameters of a new run, by the compiled `lower_initial_state`."""
    # Drawn on one device and copied, because several devices might draw other numbers.
    return placed_state(compiled(), mesh, sharding)


def placed_state(begun: InitialState, mesh: Mesh, sharding: Sharding) -> tuple[TrainState, Tree]:
    """Copies a state and its averages from one device to the devices of a mesh."""
    state, average = placed(begun, _shardings(begun, mesh, sharding))
    return state, average


def _shardings(begun: InitialState, mesh: Mesh, sharding: Sharding) -> InitialState:
    """Returns the shardings of a state and its averages."""
    (state, average), same = begun, replicated(mesh)
    of_state: TrainState = jax.tree.map(lambda leaf: same, state)
    of_state = of_state.replace(
        params=sharding.of(state.params, state.params, mesh, zero=False),
        opt_state=sharding.of(state.opt_state, state.params, mesh, zero=True),
    )
    # Validation takes parameters and averages, which therefore have the same shardings.
    return InitialState(of_state, sharding.of(average, state.params, mesh, zero=False))


def state_from(recipe: Recipe, weights: Tree, mesh: Mesh, *, seed: int) -> tuple[TrainState, Tree]:
    """Returns the state and the averaged parameters of a new run that starts from given weights.

    Args:
        weights: `{"params": …, "batch_stats": …}`.
    """
    begin = jax.jit(functools.partial(fresh_state, recipe, seed=seed))
    state = begin(weights["params"], weights.get("batch_stats", {}))
    return placed_state(InitialState(state, jax.tree.map(jnp.copy, recipe.evaluated(state))), mesh, recipe.sharding)

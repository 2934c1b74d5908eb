"""State that a job starts from: a new one, given weights, or that of the newest checkpoint."""

from collections.abc import Collection
from pathlib import Path

from jax.stages import Compiled

from asr_jax.checkpoints.store import Checkpoints
from asr_jax.core.meshes import placed, replicated
from asr_jax.core.processes import agree, together
from asr_jax.core.pytrees import Tree
from asr_jax.observe.events import EventLog
from asr_jax.training.initial_state import InitialState, fresh_scaling, placed_state, state_from
from asr_jax.training.initial_weights import GivenWeights, read_initial_weights
from asr_jax.training.setup import Setup
from asr_jax.training.state import TrainState


def given_weights(setup: Setup, shapes: InitialState) -> GivenWeights | None:
    """Reads the weights of `init.path` on all processes, which must agree. None without a path."""
    if not setup.experiment.init.path:
        return None
    of_model = setup.recipe.of_model(shapes.state)
    given = together(lambda: read_initial_weights(setup.experiment, setup.data.tokenizer, of_model))
    agree({"initial weights": given.digest()})
    return given


def new_state(setup: Setup, log: EventLog, drawn: Compiled, given: GivenWeights | None) -> tuple[TrainState, Tree]:
    """Returns the state and the averaged parameters of a new run, random or with the given weights."""
    begun = drawn()
    if given is None:
        if setup.recipe.lora.rank:
            log.write(
                "warning",
                message=f"lora.rank is {setup.recipe.lora.rank}, but the kernels below the adapters are random and are "
                "not trained: expected pre-trained weights, --init-from PATH",
            )
        return placed_state(begun, setup.mesh, setup.recipe.sharding)
    weights = given.fill(setup.recipe.of_model(begun.state))
    log.write("initialised", **vars(given.account), message="\n".join(given.account.lines()))
    return state_from(setup.recipe, weights, setup.mesh, seed=setup.experiment.seed)


def restored_state(
    setup: Setup,
    log: EventLog,
    checkpoints: Checkpoints,
    shapes: InitialState,
    *,
    changed: Collection[str],
    copied_from: Path | None,
) -> tuple[TrainState, Tree]:
    """Restores the state and the averaged parameters of the newest checkpoint.

    Args:
        copied_from: Checkpoint of another run that it is a copy of. None: it is of this run.
    """
    latest = checkpoints.latest
    assert latest is not None, "no checkpoint"
    state, average, meta = checkpoints.restore(latest, state=shapes.state, average=shapes.average)
    log.write(
        "resumed", update=latest, data_position=meta["data_position"], path=copied_from or checkpoints.path(latest)
    )
    if "training.precision" in changed:  # a scale of float16 does not suit other precisions, nor theirs float16
        state = state.replace(scaling=placed(fresh_scaling(setup.recipe), replicated(setup.mesh)))
    return state, average

"""Training step as pure functions: `gradient_of` a batch, `add` for several batches, `apply_update`.

The loss is Σ scale · total / W over the loss terms, where W is the denominator of the term over all devices and all
batches of the update. W is computed before the first gradient. Accumulation is therefore a plain sum, which is exact
for any combination of terms. A batch with a loss, gradient norm or statistic that is not finite voids the whole update:
the parameters, optimizer state, statistics and averaged parameters keep their values. An update whose denominators are
all 0 is voided in the same way. Batch normalisation uses the statistics of each batch separately.

Only `gradient_of` depends on the shape of the batch and is compiled for each bucket. Whatever is done to each parameter
is in the other two, which are compiled once.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.core import meta
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Batch
from asr_jax.core.collectives import BY_ROWS, SAME, on_each_device, total
from asr_jax.core.meshes import num_row_devices
from asr_jax.core.pytrees import AnyArray, Node, Tree, join, unflatten
from asr_jax.core.random_streams import random_streams
from asr_jax.core.sharding import by_device, manual, sharded
from asr_jax.core.sums import Sums
from asr_jax.heads.base import LEAST_WER, PROGRESS
from asr_jax.models.terms import Denominators, batch_denominators
from asr_jax.nn.normalization import frozen_norms
from asr_jax.nn.recurrent.state_passing import PASSED, after_rows, before_batch, reset, states_of
from asr_jax.optim.rules import map_with_path
from asr_jax.training.recipe import Recipe
from asr_jax.training.state import TrainState


class Accumulated(Node):
    """Sums over the batches of one update so far."""

    grads: Tree
    """Gradients of the trained parameters, divided by `factor`."""
    factor: Float[Array, ""]
    """Factor that `grads` have to be multiplied by: 1 for several batches."""
    batch_stats: Tree
    """Running statistics after the last batch."""
    passed: Any
    """States that the last batch passed on."""
    sums: Sums
    weight: Float[Array, ""]
    """Largest denominator of a loss term in the update."""
    position: Int[Array, ""]
    """Position in the plan of the only batch; -1 for several batches."""
    bad_position: Int[Array, ""]
    """Position in the plan of the first batch with a value that is not finite; -1 if all values are finite. The
    gradients of a single batch have not been checked."""

    @property
    def carried(self) -> tuple[Tree, Any]:
        """As `TrainState.carried`, after the last batch."""
        return self.batch_stats, self.passed


class UpdateReport(Node):
    """Results of an update for the event log."""

    sums: Sums
    gradient_norm: Float[Array, ""]
    """Norm of all gradients before clipping."""
    learning_rate: Float[Array, ""]
    updates: Int[Array, ""]
    """Number of updates applied so far."""
    finite: Bool[Array, ""]
    """Whether the losses, the gradient and the statistics are finite."""
    applied: Bool[Array, ""]
    """Whether the update was applied. It is voided if it is not finite or all denominators are 0."""
    bad_position: Int[Array, ""]
    """As in `Accumulated`."""
    loss_scale: Float[Array, ""]
    """Scale of the loss after the update."""
    scheduled: dict[str, Float[Array, ""]]
    """Values of the heads that change with the number of updates, as they were in the update."""


def added_denominators(each: list[Denominators]) -> Denominators:
    """Returns the sum of the denominators of each loss term over the batches of an update."""
    return jax.tree.map(lambda *values: jnp.sum(jnp.stack(values)), *each)


def accumulated(
    state: TrainState,
    parts: Sequence[tuple[Any, Batch, Any]],
    denominators: Denominators | None,
    *,
    gradients: Mapping[Any, Callable[..., Accumulated]],
    add: Callable[[Accumulated, Accumulated], Accumulated],
) -> Accumulated:
    """Computes the gradient of an update, one batch after another.

    Args:
        parts: Shape of each batch, the batch, and its position in the plan.
        denominators: Denominator of each loss term over the whole update. None: those of the only batch.
        gradients: `gradient_of` for each shape, compiled.
        add: `add`, compiled.
    """
    (shape, batch, position), *more = parts
    found = gradients[shape](state, state.carried, batch, denominators, position)
    for shape, batch, position in more:
        found = add(found, gradients[shape](state, found.carried, batch, denominators, position))
    return found


def gradient_of(
    recipe: Recipe,
    state: TrainState,
    carried: tuple[Tree, Any],
    batch: Batch,
    denominators: Denominators | None,
    position: Int[Array, ""],
    sounds: Mapping[str, Array],
    *,
    mesh: Mesh | None = None,
) -> Accumulated:
    """Computes the contribution of a batch to the gradient of an update.

    Args:
        carried: `TrainState.carried` or `Accumulated.carried` before the batch.
        denominators: Denominator of each loss term over the whole update. None: those of the batch.
        mesh: Devices that the rows are spread over. With several, the gradients have a first axis of devices, whose sum
            is the gradient. None: one device.
    """
    batch_stats, passed = carried
    states: Tree = {}
    if recipe.passing.is_on:
        passed = before_batch(recipe.passing, passed, position, key=state.key, updates=state.updates)
        states = states_of(passed, len(batch.lengths))
    state = state.replace(opt_state=None)  # which the gradient does not need
    specs = recipe.sharding.specs(state.params, mesh)
    of_rows = functools.partial(_gradient_of_rows, recipe, specs)
    same, rows = (state, batch_stats, denominators, dict(sounds)), (batch, states)
    if mesh is None or num_row_devices(mesh) == 1:
        found = of_rows(same, rows)
    else:

        def local(same: Any, rows: Any) -> _OfRows:
            found = of_rows(same, rows)
            return found._replace(grads=jax.tree.map(lambda leaf: leaf[None], found.grads))

        of_params = unflatten({path: manual(spec) for path, spec in specs.items()})
        of_grads = map_with_path(lambda path, _: manual(by_device(specs[path])), recipe.split(state.params)[0])
        inputs: Any = (jax.tree.map(lambda _: SAME, state).replace(params=of_params), SAME, SAME, SAME)
        outputs: Any = _OfRows(of_grads, BY_ROWS, *[SAME] * 5)  # type: ignore[arg-type]
        found = on_each_device(local, mesh, outputs, inputs=inputs)(same, rows)
    if recipe.passing.is_on:
        passed = after_rows(passed, found.states, len(batch.lengths))
    return Accumulated(
        grads=found.grads,
        factor=jnp.where(found.scaled > 0, 1 / jnp.maximum(found.scaled, 1e-30), 0.0),
        batch_stats=found.batch_stats,
        passed=passed,
        sums=found.sums,
        weight=found.weight,
        position=position,
        bad_position=jnp.where(found.finite, -1, position),
    )


class _OfRows(NamedTuple):
    """Results of the rows of a device."""

    grads: Tree
    states: Tree
    """States of the rows that the batch passes on."""
    batch_stats: Tree
    sums: Sums
    weight: Float[Array, ""]
    scaled: Float[Array, ""]
    """Factor of the loss."""
    finite: Bool[Array, ""]


def _gradient_of_rows(
    recipe: Recipe, specs: Mapping[str, PartitionSpec], same: tuple[Any, ...], rows: tuple[Batch, Tree]
) -> _OfRows:
    """Computes the gradient of the rows of a device, and sums over all devices of everything else."""
    (state, batch_stats, denominators, sounds), (batch, states) = same, rows
    streams = random_streams(state.key, state.updates)
    if denominators is None:
        denominators = total(batch_denominators(recipe.model, batch, streams))
    trained, frozen = recipe.split(state.params)
    given: dict[str, Tree] = {"batch_stats": batch_stats, "sounds": sounds}
    given |= {PASSED: states} if recipe.passing.is_on else {}
    mutable = [name for name in given if name != "sounds"]
    given[PROGRESS] = {f"heads_{name}": {LEAST_WER: state.least_wer} for name in recipe.model.heads}

    def loss_of(trained: Tree) -> tuple[Float[Array, ""], tuple[Sums, Tree]]:
        params = sharded(join(trained, frozen), specs)
        if recipe.lora.rank:  # adapters are added to whole kernels
            params = recipe.lora.merged(meta.unbox(params))
        variables = {"params": params, **given}
        with frozen_norms(recipe.frozen_norms(state), state.updates):
            sums, changed = recipe.model.apply(variables, batch, step=state.updates, mutable=mutable, rngs=streams)
        loss = total_loss(sums, denominators, recipe.scales)
        return scaled * loss, (sums, changed)

    # The gradient in the backward pass is that of a sum over the batch, not of a mean, because the constants of modules
    # that add to the gradient (regularisers) were chosen for sums.
    weight = jnp.max(jnp.stack(list(denominators.values())))
    scaled = weight * state.scaling.scale
    grads, (sums, changed) = jax.grad(loss_of, has_aux=True)(trained)
    is_bad = ~_all_finite([[sums[name].total for name in denominators], changed])
    sums, num_bad = total((sums, is_bad.astype(jnp.int32)))
    return _OfRows(grads, changed.get(PASSED, {}), changed.get("batch_stats", {}), sums, weight, scaled, num_bad == 0)


def add(first: Accumulated, second: Accumulated) -> Accumulated:
    """Adds the contributions of batches to the gradient of an update."""
    first, second = checked(first), checked(second)
    return second.replace(
        grads=jax.tree.map(jnp.add, first.grads, second.grads),
        sums={name: first.sums[name] + second.sums[name] for name in second.sums},
        position=jnp.full((), -1, jnp.int32),
        bad_position=jnp.where(first.bad_position >= 0, first.bad_position, second.bad_position),
    )


def summed(accumulated: Accumulated, *, num_devices: int) -> Accumulated:
    """Sums the gradients over the devices.

    Args:
        num_devices: Number of devices. With several, the gradients have a first axis of devices.
    """
    if num_devices == 1:
        return accumulated
    return accumulated.replace(grads=jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), accumulated.grads))


def checked(accumulated: Accumulated) -> Accumulated:
    """Multiplies the gradients by their factor. If their norm is not finite, `bad_position` becomes `position`."""
    grads = jax.tree.map(lambda leaf: accumulated.factor * leaf, accumulated.grads)
    is_bad = (accumulated.bad_position < 0) & ~jnp.isfinite(optax.tree.norm(grads))
    return accumulated.replace(
        grads=grads,
        factor=jnp.ones(()),
        bad_position=jnp.where(is_bad, accumulated.position, accumulated.bad_position),
    )


def total_loss(
    sums: Sums, denominators: Mapping[str, Float[AnyArray, ""]], scales: Mapping[str, float]
) -> Float[Array, ""]:
    """Returns the loss, Σ scale · total / denominator over the loss terms.

    Args:
        denominators: Denominators of the loss terms. A term with denominator 0 contributes 0.
    """
    terms = [
        scales[name.split("/")[0]] * jnp.where(value > 0, sums[name].total / jnp.maximum(value, 1e-30), 0.0)
        for name, value in denominators.items()
    ]
    return jnp.sum(jnp.stack(terms))


def apply_update(
    recipe: Recipe, state: TrainState, average: Tree, accumulated: Accumulated, *, num_devices: int = 1
) -> tuple[TrainState, Tree, UpdateReport]:
    """Applies an accumulated gradient.

    Args:
        num_devices: Number of devices. With several, the gradients have a first axis of devices, and are summed here,
            once per update.
    """
    accumulated = checked(summed(accumulated, num_devices=num_devices))
    norm, rate = optax.tree.norm(accumulated.grads), recipe.updater.rate(state.updates)
    of_heads = {name: head.scheduled(state.updates, state.least_wer) for name, head in recipe.model.heads.items()}
    scheduled = {f"{name}/{which}": value for name, each in of_heads.items() for which, value in each.items()}
    finite = (accumulated.bad_position < 0) & _all_finite([norm])
    trained, frozen = recipe.split(state.params)
    changes, opt_state = recipe.updater.update(accumulated.grads, state.opt_state, trained, updates=state.updates)
    updated = state.replace(
        updates=state.updates + 1,
        params=join(optax.apply_updates(trained, changes), frozen),
        batch_stats=accumulated.batch_stats,
        passed=accumulated.passed,
        opt_state=opt_state,
    )
    new_average = recipe.ema.next(average, recipe.evaluated(updated), updates=updated.updates)
    applied = finite & (accumulated.weight > 0)
    if recipe.passing.is_on:  # the passed states may be the cause of a voided update
        state = state.replace(passed=reset(accumulated.passed))
    state, average = _select(applied, (updated, new_average), (state, average))
    if recipe.loss_scale:  # a voided update also changes the scale
        state = state.replace(scaling=recipe.loss_scale.next(state.scaling, finite))
    report = UpdateReport(
        accumulated.sums,
        norm,
        rate,
        state.updates,
        finite,
        applied,
        accumulated.bad_position,
        state.scaling.scale,
        scheduled,
    )
    return state, average, report


def _all_finite(tree: Tree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _select(condition: Bool[Array, ""], yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), yes, no)

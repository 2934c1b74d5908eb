"""The step, as two pure functions: gradients of a batch are added up, and an update applies what was added.

The loss is Σ scale · total / W over terms, W being the term's weight over all devices and all batches of the update.
W is known before the first gradient, so that accumulation is a plain sum, exact for any mixture of terms, and a bad
batch voids the whole update: parameters, optimizer, statistics and average stay as they were. So does an update that
has nothing to count.
"""

from collections.abc import Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Batch
from asr_jax.core.pytrees import Tree
from asr_jax.core.sums import Sums, empty_sums
from asr_jax.models.base import Recogniser
from asr_jax.optim.ema import updated_average
from asr_jax.training.state import TrainState, average_of, random_streams

Weights = dict[str, Float[Array, ""]]


class Accumulated(struct.PyTreeNode):
    """What the batches of one update have added up so far."""

    grads: Tree
    batch_stats: Tree
    """Statistics as the last batch left them."""
    sums: Sums
    weight: Float[Array, ""]
    """The largest weight of a term in the update."""


class UpdateReport(struct.PyTreeNode):
    """What an update tells the log."""

    sums: Sums
    gradient_norm: Float[Array, ""]
    """Before clipping."""
    learning_rate: Float[Array, ""]
    updates: Int[Array, ""]
    """Updates applied so far."""
    finite: Bool[Array, ""]
    """False where a loss, the gradient or a statistic was not."""
    applied: Bool[Array, ""]
    """False where the update was voided: not finite, or without anything to count."""


def batch_weights(model: Recogniser, batch: Batch) -> Weights:
    """The weight of each loss term of a batch."""
    weights: Weights = model.apply({}, batch, method="weights")  # type: ignore[assignment]
    return weights


def added_weights(each: list[Weights]) -> Weights:
    """The weight of each term over all batches of an update."""
    return jax.tree.map(lambda *weights: jnp.sum(jnp.stack(weights)), *each)


def accumulate(
    model: Recogniser,
    scales: Mapping[str, float],
    state: TrainState,
    accumulated: Accumulated,
    batch: Batch,
    weights: Weights,
    position: Int[Array, ""],
) -> Accumulated:
    """Adds a batch's share of the update's gradient. `weights`: of each term over the whole update; `position`: of
    the batch in the plan, which its random numbers are drawn from."""

    def loss_of(params: Tree) -> tuple[Float[Array, ""], tuple[Sums, Tree]]:
        variables = {"params": params, "batch_stats": accumulated.batch_stats}
        streams = random_streams(state.key, position)
        sums, changed = model.apply(variables, batch, step=state.updates, mutable=["batch_stats"], rngs=streams)
        return weight * total_loss(sums, weights, scales), (sums, changed.get("batch_stats", {}))

    # What goes back through the model is the gradient of a sum over the batch, not of a mean: modules that add to the
    # gradient (regularisers) have constants that were chosen for sums.
    weight = jnp.max(jnp.stack(list(weights.values())))
    grads, (sums, batch_stats) = jax.grad(loss_of, has_aux=True)(state.params)
    share = 1 / jnp.maximum(weight, 1e-30)
    return Accumulated(
        grads=jax.tree.map(lambda old, new: old + share * new, accumulated.grads, grads),
        batch_stats=batch_stats,
        sums={name: accumulated.sums[name] + sums[name] for name in sums},
        weight=weight,
    )


def total_loss(sums: Sums, weights: Mapping[str, Float[Array, ""]], scales: Mapping[str, float]) -> Float[Array, ""]:
    """Σ scale · total / W over the terms that `weights` names; a term without weight counts 0."""
    terms = [
        scales[name.split("/")[0]] * jnp.where(weight > 0, sums[name].total / jnp.maximum(weight, 1e-30), 0.0)
        for name, weight in weights.items()
    ]
    return jnp.sum(jnp.stack(terms))


def nothing_accumulated(state: TrainState, names: Iterable[str]) -> Accumulated:
    """Zeros to begin an update with; `names` of the sums that the model gives."""
    return Accumulated(
        grads=jax.tree.map(jnp.zeros_like, state.params),
        batch_stats=state.batch_stats,
        sums=empty_sums(names),
        weight=jnp.zeros(()),
    )


def apply_update(
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    ema_decay: float,
    loss_terms: Sequence[str],
    state: TrainState,
    average: Tree,
    accumulated: Accumulated,
) -> tuple[TrainState, Tree, Accumulated, UpdateReport]:
    """The next state and average, zeros to accumulate into, and the report. `loss_terms`: of the sums, those that have
    a weight; the others are metrics."""
    norm, rate = optax.tree.norm(accumulated.grads), jnp.asarray(schedule(state.updates), jnp.float32)
    losses = [accumulated.sums[name].total for name in loss_terms]
    finite = _all_finite([norm, losses, accumulated.batch_stats])
    changes, opt_state = optimizer.update(accumulated.grads, state.opt_state, state.params)
    updated = state.replace(
        updates=state.updates + 1,
        params=optax.apply_updates(state.params, changes),
        batch_stats=accumulated.batch_stats,
        opt_state=opt_state,
    )
    live = average_of(updated)
    new_average = updated_average(average, live, decay=ema_decay, updates=updated.updates) if ema_decay else live
    applied = finite & (accumulated.weight > 0)
    state, average = _select(applied, (updated, new_average), (state, average))
    report = UpdateReport(accumulated.sums, norm, rate, state.updates, finite, applied)
    return state, average, nothing_accumulated(state, accumulated.sums), report


def _all_finite(tree: Tree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _select(condition: Bool[Array, ""], yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), yes, no)

"""The step, as two pure functions: gradients of a batch are added up, and an update applies what was added.

The loss is Σ scale · total / W over terms, W being the term's weight over all devices and all batches of the update.
W is known before the first gradient, so that accumulation is a plain sum, exact for any mixture of terms, and a bad
batch voids the whole update: parameters, optimizer, statistics and average stay as they were. So does an update that
has nothing to count. With batch normalisation the statistics are those of each batch on its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Batch
from asr_jax.core.pytrees import AnyArray, Node, Tree, join, pick
from asr_jax.core.random_streams import random_streams
from asr_jax.core.sums import Sums, empty_sums
from asr_jax.models.base import Recogniser
from asr_jax.models.terms import Denominators
from asr_jax.optim.ema import EMA
from asr_jax.optim.lora import LoRA
from asr_jax.optim.loss_scale import LossScale
from asr_jax.optim.optimizers import Updater
from asr_jax.training.state import TrainState


@dataclass(frozen=True)
class Recipe:
    """What the step is made of: nothing in it changes while a run goes on."""

    model: Recogniser
    scales: Mapping[str, float]
    """Weight of each head's terms in the loss."""
    updater: Updater
    ema: EMA = EMA()
    loss_scale: LossScale | None = None
    """Where activations are float16."""
    lora: LoRA = LoRA()

    def split(self, params: Tree) -> tuple[Tree, Tree]:
        """The parameters that are trained, and those that never change: no gradient is computed for them."""
        trained, frozen = self.updater.split(params)
        held = pick(trained, lambda path: not self.lora.is_trained(path))
        return pick(trained, self.lora.is_trained), join(frozen, held)

    def of_model(self, state: TrainState) -> Tree:
        """What the model brought itself: no adapters, and kernels without them."""
        return {"params": self.lora.without_adapters(state.params), "batch_stats": state.batch_stats}

    def evaluated(self, state: TrainState) -> Tree:
        """What the live weights are for evaluation."""
        return {"params": self.lora.merged(state.params), "batch_stats": state.batch_stats}


class Accumulated(Node):
    """What the batches of one update have added up so far."""

    grads: Tree
    """Of the parameters that are trained."""
    batch_stats: Tree
    """Statistics as the last batch left them."""
    sums: Sums
    weight: Float[Array, ""]
    """The largest weight of a term in the update."""
    bad_position: Int[Array, ""]
    """Place in the plan of the first batch after which something was not finite; -1 where all was."""


class UpdateReport(Node):
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
    bad_position: Int[Array, ""]
    """As in `Accumulated`."""
    loss_scale: Float[Array, ""]
    """After the update."""


def added_denominators(each: list[Denominators]) -> Denominators:
    """The weight of each term over all batches of an update."""
    return jax.tree.map(lambda *values: jnp.sum(jnp.stack(values)), *each)


def accumulate(
    recipe: Recipe,
    state: TrainState,
    accumulated: Accumulated,
    batch: Batch,
    denominators: Denominators,
    position: Int[Array, ""],
    sounds: Mapping[str, Array] = MappingProxyType({}),
) -> Accumulated:
    """Adds a batch's share of the update's gradient. `denominators`: of each term over the whole update; `position`: of
    the batch in the plan, which its random numbers are drawn from; `sounds`: what augmentations add.
    """
    trained, frozen = recipe.split(state.params)

    def loss_of(trained: Tree) -> tuple[Float[Array, ""], tuple[Sums, Tree]]:
        params = recipe.lora.merged(join(trained, frozen))
        variables = {"params": params, "batch_stats": accumulated.batch_stats, "sounds": dict(sounds)}
        streams = random_streams(state.key, position)
        sums, changed = recipe.model.apply(variables, batch, step=state.updates, mutable=["batch_stats"], rngs=streams)
        loss = total_loss(sums, denominators, recipe.scales)
        return scaled * loss, (sums, changed.get("batch_stats", {}))

    # What goes back through the model is the gradient of a sum over the batch, not of a mean: modules that add to the
    # gradient (regularisers) have constants that were chosen for sums.
    weight = jnp.max(jnp.stack(list(denominators.values())))
    scaled = weight * state.scaling.scale
    grads, (sums, batch_stats) = jax.grad(loss_of, has_aux=True)(trained)
    share = jnp.where(scaled > 0, 1 / jnp.maximum(scaled, 1e-30), 0.0)
    finite = _all_finite([[sums[name].total for name in denominators], batch_stats, grads])
    return Accumulated(
        grads=jax.tree.map(lambda old, new: old + share * new, accumulated.grads, grads),
        batch_stats=batch_stats,
        sums={name: accumulated.sums[name] + sums[name] for name in sums},
        weight=weight,
        bad_position=jnp.where(finite | (accumulated.bad_position >= 0), accumulated.bad_position, position),
    )


def total_loss(
    sums: Sums, denominators: Mapping[str, Float[AnyArray, ""]], scales: Mapping[str, float]
) -> Float[Array, ""]:
    """Σ scale · total / denominator over the terms that `denominators` names; a term with denominator 0 counts 0."""
    terms = [
        scales[name.split("/")[0]] * jnp.where(value > 0, sums[name].total / jnp.maximum(value, 1e-30), 0.0)
        for name, value in denominators.items()
    ]
    return jnp.sum(jnp.stack(terms))


def nothing_accumulated(recipe: Recipe, state: TrainState, names: Iterable[str]) -> Accumulated:
    """Zeros to begin an update with; `names` of the sums that the model gives."""
    return Accumulated(
        grads=jax.tree.map(jnp.zeros_like, recipe.split(state.params)[0]),
        batch_stats=state.batch_stats,
        sums=empty_sums(names),
        weight=jnp.zeros(()),
        bad_position=jnp.full((), -1, jnp.int32),
    )


def apply_update(
    recipe: Recipe, state: TrainState, average: Tree, accumulated: Accumulated
) -> tuple[TrainState, Tree, Accumulated, UpdateReport]:
    """The next state and average, zeros to accumulate into, and the report."""
    norm, rate = optax.tree.norm(accumulated.grads), recipe.updater.rate(state.updates)
    finite = (accumulated.bad_position < 0) & _all_finite([norm])
    trained, frozen = recipe.split(state.params)
    changes, opt_state = recipe.updater.update(accumulated.grads, state.opt_state, trained, updates=state.updates)
    updated = state.replace(
        updates=state.updates + 1,
        params=join(optax.apply_updates(trained, changes), frozen),
        batch_stats=accumulated.batch_stats,
        opt_state=opt_state,
    )
    new_average = recipe.ema.next(average, recipe.evaluated(updated), updates=updated.updates)
    applied = finite & (accumulated.weight > 0)
    state, average = _select(applied, (updated, new_average), (state, average))
    if recipe.loss_scale:  # a voided update changes it as well
        state = state.replace(scaling=recipe.loss_scale.next(state.scaling, finite))
    report = UpdateReport(
        accumulated.sums, norm, rate, state.updates, finite, applied, accumulated.bad_position, state.scaling.scale
    )
    return state, average, nothing_accumulated(recipe, state, accumulated.sums), report


def _all_finite(tree: Tree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _select(condition: Bool[Array, ""], yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), yes, no)

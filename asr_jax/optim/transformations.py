"""Optimizers as optax transformations whose `update` takes `learning_rate` and gives what is to be added.

A tensor is a parameter array, or one layer of an array that stacks the layers of a model (`rules.is_stacked`): what is
done for each tensor does not depend on how layers are stored.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int
from optax import GradientTransformationExtraArgs as Transformation

from asr_jax.core.pytrees import Tree
from asr_jax.optim.rules import is_stacked, map_with_path

Clip = Literal["global_norm", "tensor_norm", "value"]


def tensor_axes(path: str, array: Any) -> tuple[int, ...]:
    """The axes of a parameter that belong to one tensor."""
    return tuple(range(1 if is_stacked(path) else 0, array.ndim))


def tensor_norms(path: str, array: Float[Array, "..."]) -> Float[Array, "..."]:
    """L2 norm of each tensor, with axes of length 1 to multiply by."""
    return jnp.sqrt(jnp.sum(jnp.square(array), axis=tensor_axes(path, array), keepdims=True))


def clipped(grads: Tree, clip: Clip, limit: float) -> Tree:
    """Gradients scaled down to a global norm, each tensor to a norm, or each value cut to ±limit."""
    if clip == "value":
        return jax.tree.map(lambda g: jnp.clip(g, -limit, limit), grads)
    if clip == "tensor_norm":
        return map_with_path(lambda path, g: g * (limit / jnp.maximum(tensor_norms(path, g), limit)), grads)
    factor = limit / jnp.maximum(optax.tree.norm(grads), limit)
    return jax.tree.map(lambda g: g * factor, grads)


def times_rate() -> Transformation:
    """Multiplies a direction by minus the learning rate."""

    def update(directions: Tree, state: Any, params: Tree = None, *, learning_rate: Any, **_: Any) -> tuple[Tree, Any]:
        return jax.tree.map(lambda d: -learning_rate * d, directions), state

    return Transformation(lambda _: optax.EmptyState(), update)


def add_decay(decay: Any) -> Transformation:
    """Adds `decay(params)` (a number for each parameter) times the parameter to its direction."""

    def update(directions: Tree, state: Any, params: Tree = None, **_: Any) -> tuple[Tree, Any]:
        return jax.tree.map(lambda d, p, rate: d + rate * p if rate else d, directions, params, decay(params)), state

    return Transformation(lambda _: optax.EmptyState(), update)


class FairseqAdamState(NamedTuple):
    step: Int[Array, ""]
    first: Tree
    second: Tree


def fairseq_adam(b1: float, b2: float, eps: float) -> Transformation:
    """Adam whose eps is added before the second moment is corrected: m / (√v + eps) · √(1 - b2^t) / (1 - b1^t).

    Source: fairseq/optim/adam.py.
    """

    def init(params: Tree) -> FairseqAdamState:
        return FairseqAdamState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def update(grads: Tree, state: FairseqAdamState, params: Tree = None, **_: Any) -> tuple[Tree, FairseqAdamState]:
        step = state.step + 1
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.first, grads)
        second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.second, grads)
        scale = jnp.sqrt(1 - jnp.float32(b2) ** step) / (1 - jnp.float32(b1) ** step)
        directions = jax.tree.map(lambda m, v: scale * m / (jnp.sqrt(v) + eps), first, second)
        return directions, FairseqAdamState(step, first, second)

    return Transformation(init, update)


class NovoGradState(NamedTuple):
    momentum: Tree
    squares: Tree
    """Moving mean of each tensor's squared norm."""
    largest: Tree
    """The largest of them so far; empty without `amsgrad`."""


def novograd(b1: float, b2: float, eps: float, *, decay: Any, grad_averaging: bool, amsgrad: bool) -> Transformation:
    """For each tensor: v = b2 v + (1 - b2) ‖g‖², which is ‖g‖² where it was 0; m = b1 m + g / (√v + eps) + decay · p;
    the direction is m. With `grad_averaging` what is added to m is multiplied by 1 - b1.

    Source: Ginsburg et al. 2019 (arXiv:1905.11286); NVIDIA's QuartzNet, common/optimizers.py. Differs from optax's,
    which has other defaults, initial values and places for decay and eps.
    """

    def init(params: Tree) -> NovoGradState:
        squares = map_with_path(lambda path, p: jnp.zeros_like(tensor_norms(path, p)), params)
        return NovoGradState(optax.tree.zeros_like(params), squares, squares if amsgrad else {})

    def update(grads: Tree, state: NovoGradState, params: Tree = None, **_: Any) -> tuple[Tree, NovoGradState]:
        norms = map_with_path(lambda path, g: jnp.square(tensor_norms(path, g)), grads)
        squares = jax.tree.map(lambda v, n: jnp.where(v == 0, n, b2 * v + (1 - b2) * n), state.squares, norms)
        largest = jax.tree.map(jnp.maximum, state.largest, squares) if amsgrad else {}

        def moved(m: Any, g: Any, p: Any, v: Any, rate: float) -> Any:
            return b1 * m + (g / (jnp.sqrt(v) + eps) + rate * p) * (1 - b1 if grad_averaging else 1)

        momentum = jax.tree.map(moved, state.momentum, grads, params, largest if amsgrad else squares, decay(params))
        return momentum, NovoGradState(momentum, squares, largest)

    return Transformation(init, update)


def trust_ratio(decay: Any) -> Transformation:
    """LAMB's: each tensor's direction is scaled to the norm of its parameter, where both are above 0 and where the
    parameter decays; others (gains and biases) keep theirs.

    Source: You et al. 2019 (arXiv:1904.00962); NVIDIA Apex's FusedLAMB, which leaves out what does not decay.
    """

    def update(directions: Tree, state: Any, params: Tree = None, **_: Any) -> tuple[Tree, Any]:
        def scaled(path: str, direction: Any, param: Any, rate: float) -> Any:
            if not rate:
                return direction
            of_param, of_direction = tensor_norms(path, param), tensor_norms(path, direction)
            good = (of_param > 0) & (of_direction > 0)
            return direction * jnp.where(good, of_param / jnp.where(good, of_direction, 1.0), 1.0)

        return map_with_path(scaled, directions, params, decay(params)), state

    return Transformation(lambda _: optax.EmptyState(), update)


def muon(momentum: float, b1: float, b2: float, *, decay: Any, adam_factor: float) -> Transformation:
    """Muon for parameters that decay and are matrices, with their last axis as output and all others but that of
    layers as input; Adam, at `adam_factor` times the rate, for all others.

    Source: optax.contrib.muon; Jordan 2024, "Muon"; Liu et al. 2025 (arXiv:2502.16982) for the size of the update.
    """

    def axes(path: str, param: Any, rate: float) -> Any:
        of_tensor = tensor_axes(path, param)
        if not rate or len(of_tensor) < 2:
            return None
        return optax.contrib.MuonDimensionNumbers(of_tensor[:-1], of_tensor[-1:])

    def of(params: Tree) -> Any:
        return optax.contrib.muon(
            1.0, beta=momentum, adam_b1=b1, adam_b2=b2, adam_learning_rate=adam_factor, consistent_rms=0.2,
            muon_weight_dimension_numbers=map_with_path(axes, params, decay(params)),
        )  # fmt: skip

    def update(grads: Tree, state: Any, params: Tree = None, **_: Any) -> tuple[Tree, Any]:
        changes, state = of(params).update(grads, state, params)
        return jax.tree.map(jnp.negative, changes), state  # a direction, as others give it

    return Transformation(lambda params: of(params).init(params), update)

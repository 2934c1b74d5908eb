"""Optimizers as optax transformations whose `update` takes `learning_rate` and returns the changes of the parameters.

A tensor is a parameter array, or one layer of an array that stacks the layers of a model (`rules.is_stacked`).
Operations per tensor therefore do not depend on the storage of layers.
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
    """Returns the axes of a parameter that belong to one tensor."""
    return tuple(range(1 if is_stacked(path) else 0, array.ndim))


def tensor_norms(path: str, array: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the L2 norm of each tensor; reduced axes have length 1."""
    return jnp.sqrt(jnp.sum(jnp.square(array), axis=tensor_axes(path, array), keepdims=True))


def clipped(grads: Tree, clip: Clip, limit: float) -> Tree:
    """Returns clipped gradients.

    Args:
        clip: Quantity that is limited: the global norm, the norm of each tensor, or the magnitude of each value.
        limit: Maximum of that quantity.
    """
    if clip == "value":
        return jax.tree.map(lambda g: jnp.clip(g, -limit, limit), grads)
    if clip == "tensor_norm":
        return map_with_path(lambda path, g: g * (limit / jnp.maximum(tensor_norms(path, g), limit)), grads)
    factor = limit / jnp.maximum(optax.tree.norm(grads), limit)
    return jax.tree.map(lambda g: g * factor, grads)


def times_rate() -> Transformation:
    """Returns a transformation that multiplies directions by -learning_rate."""

    def update(directions: Tree, state: Any, params: Tree = None, *, learning_rate: Any, **_: Any) -> tuple[Tree, Any]:
        return jax.tree.map(lambda d: -learning_rate * d, directions), state

    return Transformation(lambda _: optax.EmptyState(), update)


def add_decay(decay: Any) -> Transformation:
    """Returns a transformation that adds weight decay: d + rate · p, with the rates that `decay(params)` returns."""

    def update(directions: Tree, state: Any, params: Tree = None, **_: Any) -> tuple[Tree, Any]:
        return jax.tree.map(lambda d, p, rate: d + rate * p if rate else d, directions, params, decay(params)), state

    return Transformation(lambda _: optax.EmptyState(), update)


class FairseqAdamState(NamedTuple):
    step: Int[Array, ""]
    first: Tree
    second: Tree


def fairseq_adam(b1: float, b2: float, eps: float) -> Transformation:
    """Returns Adam with eps added before the bias correction: m / (√v + eps) · √(1 - b2^t) / (1 - b1^t).

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
    """Largest of these means so far; empty without `amsgrad`."""


def novograd(b1: float, b2: float, eps: float, *, decay: Any, grad_averaging: bool, amsgrad: bool) -> Transformation:
    """Returns NovoGrad, whose direction is the momentum m = b1 m + g / (√v + eps) + decay · p of each tensor.

    v = b2 v + (1 - b2) ‖g‖², or ‖g‖² while v is 0.

    Source: Ginsburg et al. 2019 (arXiv:1905.11286); NVIDIA's QuartzNet, common/optimizers.py.
    Differs from: optax, which has other defaults and initial values, and applies decay and eps at other places.

    Args:
        decay: `decay(params)` returns the weight decay of each parameter.
        grad_averaging: Whether terms that are added to m are multiplied by 1 - b1.
        amsgrad: Whether gradients are divided by the root of the largest v so far.
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
    """Returns LAMB's scaling of each tensor's direction to the norm of the tensor.

    Directions keep their norm if either norm is 0, or if the parameter has no weight decay (gains and biases).
    `decay(params)` returns the weight decay of each parameter.

    Source: You et al. 2019 (arXiv:1904.00962); NVIDIA Apex's FusedLAMB, which excludes parameters without weight decay.
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


def muon(momentum: float, b1: float, b2: float, *, decay: Any, eps: float) -> Transformation:
    """Returns Muon for matrices with weight decay, and Adam for all other parameters.

    A parameter is a matrix if its tensors have two or more axes. The last axis is the output, all others except that of
    layers are the input.

    Source: optax.contrib.muon; Jordan 2024, "Muon"; Liu et al. 2025 (arXiv:2502.16982) for the size of the update.

    Args:
        decay: `decay(params)` returns the weight decay of each parameter.
    """

    def axes(path: str, param: Any, rate: float) -> Any:
        of_tensor = tensor_axes(path, param)
        if not rate or len(of_tensor) < 2:
            return None
        return optax.contrib.MuonDimensionNumbers(of_tensor[:-1], of_tensor[-1:])

    def of(params: Tree) -> Any:
        return optax.contrib.muon(
            1.0,
            beta=momentum,
            eps=eps,
            adam_b1=b1,
            adam_b2=b2,
            adam_learning_rate=1.0,
            consistent_rms=0.2,
            muon_weight_dimension_numbers=map_with_path(axes, params, decay(params)),
        )

    def update(grads: Tree, state: Any, params: Tree = None, **_: Any) -> tuple[Tree, Any]:
        changes, state = of(params).update(grads, state, params)
        return jax.tree.map(jnp.negative, changes), state  # directions of the other optimizers have this sign

    return Transformation(lambda params: of(params).init(params), update)

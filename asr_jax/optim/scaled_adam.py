"""ScaledAdam: Adam with updates proportional to the tensor's root mean square, which is learned as well.

Source: Yao et al. 2023, "Zipformer" (arXiv:2310.11230), section 3.5; icefall's egs/librispeech/ASR/zipformer/optim.py
at commit 36e0420c.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from asr_jax.core.pytrees import Tree, flatten, unflatten
from asr_jax.optim.rules import map_with_path
from asr_jax.optim.transformations import Transformation, tensor_axes

EARLY = (10, 20, 40)
"""Updates after which the limit of the norm is set before the first period ends, to twice its usual value."""


class ScaledAdamState(NamedTuple):
    step: Int[Array, ""]
    delta: Tree
    """Momentum of the changes of the parameters."""
    squares: Tree
    """Moving mean of squared gradients."""
    rms: Tree
    """Root mean square of each tensor at the end of the last size period; 0 for scalars."""
    size_grads: Tree
    """Gradients with respect to the logarithm of each tensor's size, for each update of the last size period."""
    size_squares: Tree
    """Moving mean of the squares of `size_grads`."""
    norms: Float[Array, " period"]
    """Gradient norms of the last updates; a single value without clipping."""
    limit: Float[Array, ""]
    """Limit of the gradient norm; infinite until it is first set."""


class Options(NamedTuple):
    """Constants of ScaledAdam. The defaults are those of icefall's recipes."""

    b1: float
    """Decay rate of the momentum."""
    b2: float
    """Decay rate of the second moments."""
    eps: float
    """Epsilon added to the roots of the second moments."""
    clipping_scale: float
    """Limit of the gradient norm as a multiple of its recent median. 0: no clipping."""
    clipping_period: int = 100
    """Number of updates over which the median is computed, and after which it is computed again."""
    scalar_factor: float = 0.1
    """Factor of the learning rate for scalars, and for the root mean squares of tensors."""
    min_rms: float = 1e-5
    """Minimum of the root mean square that updates are proportional to."""
    max_rms: float = 3.0
    """Maximum root mean square of a tensor."""
    scalar_max: float = 10.0
    """Maximum absolute value of scalar parameters."""
    size_period: int = 4
    """Number of updates between two updates of the root mean squares."""


def scaled_adam(options: Options) -> Transformation:
    """Returns a transformation whose `update` takes `learning_rate` and returns the changes of the parameters."""
    return Transformation(functools.partial(_init, options), functools.partial(_update, options))


def _init(options: Options, params: Tree) -> ScaledAdamState:
    rms = map_with_path(_rms, params)
    return ScaledAdamState(
        step=jnp.zeros((), jnp.int32),
        delta=optax.tree.zeros_like(params),
        squares=optax.tree.zeros_like(params),
        rms=rms,
        size_grads=jax.tree.map(lambda r: jnp.zeros((options.size_period, *r.shape), r.dtype), rms),
        size_squares=optax.tree.zeros_like(rms),
        norms=jnp.zeros(options.clipping_period if options.clipping_scale else 1),
        limit=jnp.array(jnp.inf, jnp.float32),
    )


def _update(
    options: Options, grads: Tree, state: ScaledAdamState, params: Tree = None, *, learning_rate: Any, **_: Any
) -> tuple[Tree, ScaledAdamState]:
    grads, norms, limit = _clipped(options, grads, state)
    parts = [flatten(tree).values() for tree in (grads, state.squares, state.rms, state.size_grads, state.size_squares)]
    found = {
        path: _of_array(options, path, param, *leaves, step=state.step, rate=learning_rate)
        for (path, param), *leaves in zip(flatten(params).items(), *parts, strict=True)
    }
    deltas, squares, rms, size_grads, size_squares = (
        unflatten({path: values[i] for path, values in found.items()}) for i in range(5)
    )
    delta = jax.tree.map(lambda old, new: options.b1 * old + (1 - options.b1) * new, state.delta, deltas)

    def limited(path: str, param: Any, change: Any) -> Any:
        """Limits the change of a scalar to keep its magnitude within `scalar_max`."""
        if not _is_scalar(path, param):
            return change
        return jnp.clip(param + change, -options.scalar_max, options.scalar_max) - param

    changes = map_with_path(limited, params, delta)
    return changes, ScaledAdamState(state.step + 1, delta, squares, rms, size_grads, size_squares, norms, limit)


def _clipped(options: Options, grads: Tree, state: ScaledAdamState) -> tuple[Tree, Any, Any]:
    """Returns gradients whose norm is limited to a multiple of the recent median, and the new norms and limit."""
    if not options.clipping_scale:
        return grads, state.norms, state.limit
    step, period = state.step, options.clipping_period

    def squared(path: str, grad: Any, rms: Any) -> Any:
        return jnp.sum(jnp.square(grad * (options.scalar_factor if _is_scalar(path, grad) else rms)))

    norm = jnp.sqrt(sum(jax.tree.leaves(map_with_path(squared, grads, state.rms)), start=jnp.zeros(())))
    norms = jnp.where(step > 0, state.norms.at[step % period].set(norm), state.norms)
    early = jnp.isin(step, jnp.array([n for n in EARLY if n < period] or [-1]))
    sets = (step > 0) & ((step % period == 0) | early)
    kept = jnp.where(early, step, period)  # During the first period, fewer norms than `period` have been recorded.
    median = jnp.sort(norms)[period - kept + jnp.minimum(kept - 1, kept // 4 * 2)]
    limit = jnp.where(sets, options.clipping_scale * median * jnp.where(early, 2.0, 1.0), state.limit)
    factor = jnp.where(step > 0, jnp.minimum(1.0, limit / (norm + 1e-20)), 1.0)
    return jax.tree.map(lambda g: g * factor, grads), norms, limit


def _of_array(
    options: Options,
    path: str,
    param: Any,
    grad: Any,
    square: Any,
    rms: Any,
    size_grads: Any,
    size_square: Any,
    *,
    step: Any,
    rate: Any,
) -> tuple[Any, ...]:
    """Returns a parameter's change before momentum, and its next square, rms, size_grads and size_square."""
    correction = 1 - jnp.float32(options.b2) ** (step + 1)
    square = options.b2 * square + (1 - options.b2) * jnp.square(grad)
    direction = grad / (jnp.sqrt(square / jnp.where(correction < 0.99, correction, 1.0)) + options.eps)
    if _is_scalar(path, param):
        return -rate * options.scalar_factor * direction, square, rms, size_grads, size_square
    period, axes = options.size_period, tensor_axes(path, param)
    ends_period = step % period == period - 1
    size_grads = size_grads.at[step % period].set(jnp.sum(param * grad, axis=axes, keepdims=True))
    rms = jnp.where(ends_period, _rms(path, param), rms)
    delta = -rate * direction * jnp.maximum(rms, options.min_rms)
    b2 = options.b2**period
    resizes = ends_period & (step > 0)
    size_square = jnp.where(
        resizes, b2 * size_square + (1 - b2) * jnp.mean(jnp.square(size_grads), axis=0), size_square
    )
    corrected = jnp.sqrt(1 - jnp.float32(b2) ** ((step + 1) // period))
    size_step = (
        -rate * options.scalar_factor * corrected * size_grads.sum(axis=0) / (jnp.sqrt(size_square) + options.eps)
    )
    size_step = jnp.clip(jnp.where(rms < options.min_rms, 0.0, size_step), -0.1, 0.1)
    size_step = jnp.minimum(size_step, (options.max_rms - rms) / rms)
    return delta + jnp.where(resizes, param * size_step, 0.0), square, rms, size_grads, size_square


def _is_scalar(path: str, param: Any) -> bool:
    """Returns whether each tensor of a parameter has a single value."""
    return all(param.shape[axis] == 1 for axis in tensor_axes(path, param))


def _rms(path: str, param: Any) -> Any:
    if _is_scalar(path, param):
        return jnp.zeros(())  # never read, but Orbax cannot save empty arrays
    return jnp.sqrt(jnp.mean(jnp.square(param), axis=tensor_axes(path, param), keepdims=True))

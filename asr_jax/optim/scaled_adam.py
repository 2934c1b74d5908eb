"""ScaledAdam: Adam whose steps are proportional to the size of the tensor, and which learns that size as well.

Source: Yao et al. 2023, "Zipformer" (arXiv:2310.11230), section 3.5; icefall's egs/librispeech/ASR/zipformer/optim.py
at commit 36e0420c.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from asr_jax.core.pytrees import Tree, flatten, unflatten
from asr_jax.optim.rules import map_with_path
from asr_jax.optim.transformations import Transformation, tensor_axes

EARLY = (10, 20, 40)
"""Updates after which the limit of the norm is set first, to twice what it would be later."""


class ScaledAdamState(NamedTuple):
    step: Int[Array, ""]
    delta: Tree
    """Momentum of what is added to the parameters."""
    squares: Tree
    """Moving mean of squared gradients."""
    rms: Tree
    """Root mean square of each tensor, as of the last update of its size; empty arrays for scalars."""
    size_grads: Tree
    """Gradients with respect to the logarithm of each tensor's size, of the last period."""
    size_squares: Tree
    """Moving mean of their squares."""
    norms: Float[Array, " period"]
    """Norms of the last updates' gradients; a single value without clipping."""
    limit: Float[Array, ""]
    """Of the norm; infinite until the first is set."""


def scaled_adam(
    b1: float,
    b2: float,
    *,
    eps: float,
    clipping_scale: float,
    clipping_period: int,
    scalar_factor: float,
    min_rms: float,
    max_rms: float,
    scalar_max: float,
    size_period: int,
) -> Transformation:
    """See `optimizers.ScaledAdam` for what the arguments mean."""

    def init(params: Tree) -> ScaledAdamState:
        rms = map_with_path(_rms, params)
        return ScaledAdamState(
            step=jnp.zeros((), jnp.int32),
            delta=optax.tree.zeros_like(params),
            squares=optax.tree.zeros_like(params),
            rms=rms,
            size_grads=jax.tree.map(lambda r: jnp.zeros((size_period, *r.shape), r.dtype), rms),
            size_squares=optax.tree.zeros_like(rms),
            norms=jnp.zeros(clipping_period if clipping_scale else 1),
            limit=jnp.array(jnp.inf, jnp.float32),
        )

    def clip(grads: Tree, state: ScaledAdamState) -> tuple[Tree, Any, Any]:
        """Gradients, scaled down where their norm is far above the median of late; norms and limit."""
        if not clipping_scale:
            return grads, state.norms, state.limit
        step = state.step

        def normalised(path: str, grad: Any, rms: Any) -> Any:
            return jnp.sum(jnp.square(grad * (scalar_factor if _is_scalar(path, grad) else rms)))

        norm = jnp.sqrt(sum(jax.tree.leaves(map_with_path(normalised, grads, state.rms)), start=jnp.zeros(())))
        norms = jnp.where(step > 0, state.norms.at[step % clipping_period].set(norm), state.norms)
        early = jnp.isin(step, jnp.array([n for n in EARLY if n < clipping_period] or [-1]))
        sets = (step > 0) & ((step % clipping_period == 0) | early)
        # Of the last `count` norms in the first period, later of all that are kept.
        kept = jnp.where(early, step, clipping_period)
        median = jnp.sort(norms)[clipping_period - kept + jnp.minimum(kept - 1, kept // 4 * 2)]
        limit = jnp.where(sets, clipping_scale * median * jnp.where(early, 2.0, 1.0), state.limit)
        factor = jnp.where(step > 0, jnp.minimum(1.0, limit / (norm + 1e-20)), 1.0)
        return jax.tree.map(lambda g: g * factor, grads), norms, limit

    def update(
        grads: Tree, state: ScaledAdamState, params: Tree = None, *, learning_rate: Any, **_: Any
    ) -> tuple[Tree, ScaledAdamState]:
        grads, norms, limit = clip(grads, state)
        step = state.step
        resizes = step % size_period == size_period - 1
        correction = 1 - jnp.float32(b2) ** (step + 1)
        correction = jnp.where(correction < 0.99, correction, 1.0)
        b2_of_sizes = b2**size_period
        of_sizes = jnp.sqrt(1 - jnp.float32(b2_of_sizes) ** ((step + 1) // size_period))

        def step_of(path: str, param: Any, grad: Any, square: Any, rms: Any, size_grads: Any, size_square: Any) -> Any:
            square = b2 * square + (1 - b2) * jnp.square(grad)
            direction = grad / (jnp.sqrt(square / correction) + eps)
            if _is_scalar(path, param):
                return -learning_rate * scalar_factor * direction, square, rms, size_grads, size_square
            axes = tensor_axes(path, param)
            size_grads = size_grads.at[step % size_period].set(jnp.sum(param * grad, axis=axes, keepdims=True))
            rms = jnp.where(resizes, _rms(path, param), rms)
            delta = -learning_rate * direction * jnp.maximum(rms, min_rms)
            decayed = b2_of_sizes * size_square + (1 - b2_of_sizes) * jnp.mean(jnp.square(size_grads), axis=0)
            resizing = resizes & (step > 0)
            size_square = jnp.where(resizing, decayed, size_square)
            size_step = (
                -learning_rate * scalar_factor * of_sizes * jnp.sum(size_grads, axis=0) / (jnp.sqrt(size_square) + eps)
            )
            size_step = jnp.clip(jnp.where(rms < min_rms, 0.0, size_step), -0.1, 0.1)
            size_step = jnp.minimum(size_step, (max_rms - rms) / rms)
            return delta + jnp.where(resizing, param * size_step, 0.0), square, rms, size_grads, size_square

        found = {
            path: step_of(path, param, *leaves)
            for (path, param), *leaves in zip(
                flatten(params).items(),
                *(
                    flatten(tree).values()
                    for tree in (grads, state.squares, state.rms, state.size_grads, state.size_squares)
                ),
                strict=True,
            )
        }
        deltas, squares, rms, size_grads, size_squares = (
            unflatten({path: values[i] for path, values in found.items()}) for i in range(5)
        )
        delta = jax.tree.map(lambda old, new: b1 * old + (1 - b1) * new, state.delta, deltas)

        def limited(path: str, param: Any, change: Any) -> Any:
            """What is added to a scalar must not lead beyond `scalar_max`."""
            if not _is_scalar(path, param):
                return change
            return jnp.clip(param + change, -scalar_max, scalar_max) - param

        changes = map_with_path(limited, params, delta)
        return changes, ScaledAdamState(step + 1, delta, squares, rms, size_grads, size_squares, norms, limit)

    return Transformation(init, update)


def _is_scalar(path: str, param: Any) -> bool:
    """Whether each tensor of a parameter has a single value."""
    return all(param.shape[axis] == 1 for axis in tensor_axes(path, param))


def _rms(path: str, param: Any) -> Any:
    if _is_scalar(path, param):
        return jnp.zeros(0)
    return jnp.sqrt(jnp.mean(jnp.square(param), axis=tensor_axes(path, param), keepdims=True))

"""The joint network of transducers with the logits of all nodes in memory: the specification of the others."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.devices import traced_for
from asr_jax.kernels.gradients import with_gradient

Activation = Literal["relu", "tanh"]


def joint(
    frames: Float[Array, "B T D"],
    predictions: Float[Array, "B S D"],
    kernel: Float[Array, "D V"],
    bias: Float[Array, " V"],
    labels: Int[Array, "B U"],
    *,
    blank_id: int,
    activation: Activation,
) -> tuple[Float[Array, "B T S"], Float[Array, "B T U"]]:
    """Computes `api.transducer_joint` for all nodes, padding included."""
    hidden = frames[:, :, None] + predictions[:, None]
    hidden = jax.nn.relu(hidden) if activation == "relu" else jnp.tanh(hidden)
    logits = jnp.matmul(hidden, kernel, preferred_element_type=jnp.float32) + bias[None, None, None]
    return arc_log_probs(logits, labels, blank_id=blank_id)


def arc_log_probs(
    logits: Float[Array, "B T S V"], labels: Int[Array, "B U"], *, blank_id: int
) -> tuple[Float[Array, "B T S"], Float[Array, "B T U"]]:
    """Returns the log-probabilities of the blank and of the next label at each node.

    Args:
        logits: Logits of V labels, at S = U + 1 label positions.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_norm = jax.nn.logsumexp(logits, axis=-1)
    blank = logits[..., blank_id] - log_norm
    num_labels = logits.shape[2] - 1
    ids = labels[:, None, :num_labels]
    return blank, picked(logits[:, :, :num_labels], ids) - log_norm[:, :, :num_labels]


def picked(logits: Float[Array, "*rest V"], ids: Int[Array, "*#rest"]) -> Float[Array, "*rest"]:
    """Returns the logit of one label at each node.

    The gradient of a gather is a scatter, which on accelerators takes several passes over the logits. There, the
    gradient is masked instead, in the same pass as the gradient of the softmax.
    """
    num_labels, dtype = logits.shape[-1], logits.dtype

    def forward(logits: Array, ids: Array) -> tuple[Array, Array]:
        chosen = jnp.broadcast_to(ids, logits.shape[:-1])[..., None]
        return jnp.take_along_axis(logits, chosen, axis=-1)[..., 0], ids

    def backward(ids: Array, gradient: Array) -> tuple[Array, None]:
        ids = jnp.broadcast_to(ids, gradient.shape)[..., None]
        if traced_for().platform != "cpu":
            numbers = jnp.arange(num_labels).reshape((1,) * gradient.ndim + (-1,))
            return jnp.where(ids == numbers, gradient[..., None], 0).astype(dtype), None
        zeros = jnp.zeros((*gradient.shape, num_labels), dtype)
        return jnp.put_along_axis(zeros, ids, gradient[..., None], axis=-1, inplace=False), None

    return with_gradient(forward, backward)(logits, ids)

"""The joint network of transducers with the logits of all nodes in memory: the specification of the others."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.devices import traced_for

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
    """Computes `api.transducer_joint` for all nodes, padding included.

    Args:
        frames: Projected frames.
        predictions: Projected predictions.
        kernel: Weights of the output.
        bias: Bias of the output.
        labels: Label ids.
        blank_id: Id of the blank.
        activation: Activation of the joint network.
    """
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
        labels: Label ids.
        blank_id: Id of the blank.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_norm = jax.nn.logsumexp(logits, axis=-1)
    blank = logits[..., blank_id] - log_norm
    num_labels = logits.shape[2] - 1
    ids = labels[:, None, :num_labels]
    return blank, picked(logits[:, :, :num_labels], ids) - log_norm[:, :, :num_labels]


def picked(logits: Float[Array, "*rest V"], ids: Int[Array, "*#rest"]) -> Float[Array, "*rest"]:
    """Returns the logit of one label at each node.

    The gradient of a gather is a scatter, which on accelerators takes several passes over the logits. There, the logits
    of other labels are masked instead, whose gradient is computed together with the gradient of the softmax.

    Args:
        logits: Logits of V labels.
        ids: Label ids.
    """
    if traced_for().platform == "cpu":
        ids = jnp.broadcast_to(ids, logits.shape[:-1])
        return jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
    numbers = jnp.arange(logits.shape[-1]).reshape((1,) * ids.ndim + (-1,))
    return jnp.sum(jnp.where(ids[..., None] == numbers, logits, 0), axis=-1)

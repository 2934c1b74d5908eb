"""How far what is recognised in one view of an utterance is from what is recognised in another."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask


def view_divergence(logits: Float[Array, "B T V"], lengths: Int[Array, " B"], *, views: int) -> Float[Array, " B"]:
    """The Kullback-Leibler divergence (nats) of each row's distributions over labels from those of the utterance's next
    view, the first one after the last: `Σ_t Σ_v q (log q - log p)`, `p` being the row's own. `views` rows after one
    another are an utterance's. Neither summed over rows nor averaged.

    The gradient goes to `p` alone: the two views together are drawn towards each other from both sides. Computed in
    float32; frames beyond the lengths, which the views of an utterance have alike, have no influence.

    Source: Yao et al. 2024 (arXiv:2410.05101), equation 3; `forward_cr_ctc` in icefall's zipformer/model.py at commit
    36e0420c. Differs from: there, the views of a batch are its two halves.
    """
    valid = length_mask(lengths, logits.shape[1])[:, :, None]
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    log_probs = jax.nn.log_softmax(jnp.where(valid, logits, 0).astype(dtype))
    by_utterance = log_probs.reshape(-1, views, *log_probs.shape[1:])
    targets = jax.lax.stop_gradient(jnp.roll(by_utterance, -1, axis=1).reshape(log_probs.shape))
    return jnp.sum(jnp.exp(targets) * (targets - log_probs), axis=(1, 2))

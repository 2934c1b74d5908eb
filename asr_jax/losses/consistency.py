"""The consistency loss between views of an utterance (CR-CTC)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask


def view_divergence(logits: Float[Array, "B T V"], lengths: Int[Array, " B"], *, views: int) -> Float[Array, " B"]:
    """Computes the Kullback-Leibler divergence between the label distributions of an utterance's views.

    The divergence of a row is `Σ_t Σ_v q (log q - log p)`, where p is the distribution of the row and q is that of the
    utterance's next view; the next view of the last one is the first one. The gradient is with respect to p only;
    together, the rows of an utterance pull its views towards each other. It is computed in float32. Padding frames have
    no influence; the views of an utterance have the same length.

    Source: Yao et al. 2024 (arXiv:2410.05101), equation 3; `forward_cr_ctc` in icefall's zipformer/model.py at commit
    36e0420c. Differs from: icefall, where the views of a batch are its two halves.

    Args:
        logits: Logits of the labels. `views` successive rows belong to one utterance.
        lengths: Number of valid frames of each row.
        views: Number of views of each utterance.

    Returns:
        Divergence of each row in nats, neither summed over rows nor averaged.
    """
    valid = length_mask(lengths, logits.shape[1])[:, :, None]
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    log_probs = jax.nn.log_softmax(jnp.where(valid, logits, 0).astype(dtype))
    by_utterance = log_probs.reshape(-1, views, *log_probs.shape[1:])
    targets = jax.lax.stop_gradient(jnp.roll(by_utterance, -1, axis=1).reshape(log_probs.shape))
    return jnp.sum(jnp.exp(targets) * (targets - log_probs), axis=(1, 2))

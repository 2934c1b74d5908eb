"""Cross-entropy of labels, with smoothed targets, in two definitions."""

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Float, Int


def smoothed_cross_entropy(
    logits: Float[Array, "*rest V"], labels: Int[Array, "*rest"], *, smoothing: float
) -> Float[Array, "*rest"]:
    """Returns the Kullback-Leibler divergence of the model's distribution from the smoothed targets, in float32.

    The targets are 1 - smoothing for the label and smoothing / (V - 1) for each other one. The result is the
    cross-entropy minus the entropy of the targets, so that its minimum is 0.

    Source: `LabelSmoothingLoss` in FunASR's funasr/losses/label_smoothing_loss.py at commit 3c58cb56.

    Args:
        smoothing: Probability of all other labels together, from 0 to less than 1.
    """
    num_labels = logits.shape[-1]
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    of_label = jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    if not smoothing:
        return -of_label
    other, one = smoothing / max(num_labels - 1, 1), 1.0 - smoothing
    entropy = xlogy(one, one) + (num_labels - 1) * xlogy(other, other)
    return entropy - one * of_label - other * (jnp.sum(log_probs, axis=-1) - of_label)


def uniformly_smoothed_cross_entropy(
    logits: Float[Array, "*rest V"], labels: Int[Array, "*rest"], *, smoothing: float
) -> Float[Array, "*rest"]:
    """Returns the cross-entropy with targets of which a share is uniform over all labels, in float32.

    The targets are 1 - smoothing + smoothing / V for the label and smoothing / V for each other one. The minimum is the
    entropy of the targets, which is not subtracted.

    Source: `LabelSmoothingLoss` in icefall's egs/librispeech/ASR/zipformer/label_smoothing.py at commit 36e0420c, and
    `torch.nn.functional.cross_entropy` with `label_smoothing`.

    Args:
        smoothing: Share of the uniform distribution in the targets, from 0 to less than 1.
    """
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    of_label = jnp.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    return -(1.0 - smoothing) * of_label - smoothing * jnp.mean(log_probs, axis=-1)

"""Pruned RNN-T.

The joint network of the simple loss is an addition. The simple loss selects the label positions that the full joint
network computes.

Source: Kuang et al. 2022 (arXiv:2206.13236); k2-fsa/fast_rnnt's rnnt_loss.py.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from asr_jax.kernels.log_space import NEVER
from asr_jax.kernels.transducer_joint.reference import picked
from asr_jax.losses.lattice import lattice_loss


def simple_log_probs(
    acoustic: Float[Array, "B T V"],
    language: Float[Array, "B S V"],
    labels: Int[Array, "B U"],
    *,
    blank_id: int,
    acoustic_scale: float = 0.0,
    language_scale: float = 0.0,
    weights: Float[Array, "B S"] | None = None,
) -> tuple[Float[Array, "B T S"], Float[Array, "B T U"]]:
    """Returns the log-probabilities of blanks and labels for logits that are sums of two parts.

    They are interpolated with those of each part alone: with `acoustic_scale` for the acoustic part and the mean
    distribution of the language part, with `language_scale` for the language part, and the rest for the sum. The logits
    of all nodes are never computed.

    Args:
        acoustic: Acoustic part of the logits.
        language: Language part of the logits, at S = U + 1 label positions.
        acoustic_scale: Share of the log-probabilities of the acoustic part.
        language_scale: Share of the log-probabilities of the language part.
        weights: Weights of the label positions in the mean distribution of the language part. None: 1, also in padding,
            as in fast_rnnt.
    """
    dtype = jnp.promote_types(acoustic.dtype, jnp.float32)
    acoustic, language = acoustic.astype(dtype), language.astype(dtype)
    num_labels = language.shape[1] - 1
    ids = labels[:, :num_labels]
    acoustic_max = lax.stop_gradient(acoustic.max(-1, keepdims=True))
    language_max = lax.stop_gradient(language.max(-1, keepdims=True))
    of_acoustic, of_language = jnp.exp(acoustic - acoustic_max), jnp.exp(language - language_max)
    tiny = jnp.finfo(dtype).tiny

    def log(values: Array) -> Array:
        return jnp.log(values + tiny)

    def of_next(values: Array) -> Array:
        """Returns the values of the next label: [B N V] to [B N U]."""
        return _selected(values, ids)

    def next_label(values: Array) -> Array:
        """Returns the values of the next label at each label position: [B S V] to [B U]."""
        return jax.vmap(_selected, 1, 1)(values[:, :num_labels, None], ids[..., None])[..., 0, 0]

    log_norm = log(jnp.einsum("btv,bsv->bts", of_acoustic, of_language, precision=lax.Precision.HIGHEST))
    log_norm += acoustic_max + language_max[:, :, 0][:, None]
    blank = acoustic[..., blank_id, None] + language[:, None, :, blank_id] - log_norm
    of_labels = of_next(acoustic)
    label = of_labels + next_label(language)[:, None] - log_norm[:, :, :num_labels]
    if not acoustic_scale and not language_scale:
        return blank, label
    language_norm = of_language.sum(-1, keepdims=True)
    each = of_language / language_norm
    counted = jnp.ones(each.shape[:2], dtype) if weights is None else weights.astype(dtype)
    mean = jnp.einsum("bsv,bs->v", each, counted) / jnp.maximum(counted.sum(), 1) + tiny
    acoustic_norm = log(jnp.einsum("btv,v->bt", of_acoustic, mean))[..., None] + acoustic_max
    language_norm = jnp.log(language_norm) + language_max
    log_mean = jnp.log(mean)
    acoustic_blank = acoustic[..., blank_id, None] + log_mean[blank_id] - acoustic_norm
    acoustic_label = of_labels + of_next(jnp.broadcast_to(log_mean, (len(ids), 1, len(log_mean)))) - acoustic_norm
    language_blank = (language[..., blank_id] - language_norm[..., 0])[:, None]
    language_label = (next_label(language) - language_norm[:, :num_labels, 0])[:, None]
    share = 1.0 - acoustic_scale - language_scale
    return (
        share * blank + acoustic_scale * acoustic_blank + language_scale * language_blank,
        share * label + acoustic_scale * acoustic_label + language_scale * language_label,
    )


def _selected(values: Array, ids: Array) -> Array:
    """Returns the values of ids: [B N V] and [B U] to [B N U].

    Elsewhere than on CPUs, the gradient of a gather is a scatter, which adds the values of equal ids in an order that
    changes from call to call. A product with one-hot vectors has the same values.
    """
    return lax.platform_dependent(values, ids, cpu=_gather, default=_product)


def _gather(values: Array, ids: Array) -> Array:
    return jnp.take_along_axis(values, jnp.broadcast_to(ids[:, None], (*values.shape[:2], ids.shape[1])), axis=-1)


def _product(values: Array, ids: Array) -> Array:
    one_hot = jax.nn.one_hot(ids, values.shape[-1], dtype=values.dtype)
    return jnp.einsum("bnv,buv->bnu", values, one_hot, precision=lax.Precision.HIGHEST)


def occupancies(
    blank: Float[Array, "B T S"],
    label: Float[Array, "B T U"],
    num_frames: Int[Array, " B"],
    num_labels: Int[Array, " B"],
) -> tuple[Float[Array, "B T S"], Float[Array, "B T U"]]:
    """Returns the occupancy of each arc, without gradient."""

    def total(blank: Array, label: Array) -> Array:
        return -lattice_loss(blank[None], label[None], num_frames, num_labels).sum()

    return jax.grad(total, argnums=(0, 1))(lax.stop_gradient(blank), lax.stop_gradient(label))


def kept_positions(
    of_blank: Float[Array, "B T S"],
    of_label: Float[Array, "B T U"],
    num_frames: Int[Array, " B"],
    num_labels: Int[Array, " B"],
    *,
    size: int,
) -> Int[Array, "B T"]:
    """Returns the first of the `size` label positions that are kept at each frame.

    The kept positions have the largest occupancy. They begin with position 0, end with the last label, and move by less
    than `size` positions from frame to frame.

    Args:
        num_frames: Number of valid frames of each row.
        num_labels: Number of valid labels of each row.
        size: Number of label positions to keep, at least 2, at most S.
    """
    num_places = of_blank.shape[2] - size + 1
    sums = jnp.stack([of_blank[:, :, n : n + num_places] for n in range(size)]).sum(0)
    entering = jnp.pad(of_label, ((0, 0), (0, 0), (1, 0)))[:, :, :num_places]
    starts = jnp.argmax(sums - entering, axis=2)
    t = jnp.arange(of_blank.shape[1])[None]
    ends_at = jnp.maximum(num_labels - size + 1, 0)[:, None]
    starts = jnp.where(t < num_frames[:, None] - 1, starts, ends_at)

    def increasing(values: Array) -> Array:
        """Returns the largest sequence that does not decrease and does not exceed `values`."""
        return lax.cummin(values, axis=1, reverse=True)

    starts = increasing(starts)
    moved = jnp.maximum(increasing((size - 1) * t - starts), 0)
    return (size - 1) * t - moved


def at_positions(
    values: Float[Array, "B T R"], starts: Int[Array, "B T"], *, num_positions: int
) -> Float[Array, "B T S"]:
    """Returns log-probabilities at all label positions from those at the kept ones. Others have probability 0.

    Args:
        values: Log-probabilities at R kept positions.
        starts: First kept position of each frame.
        num_positions: Number of all label positions.
    """
    place = jnp.arange(num_positions)[None, None] - starts[..., None]
    inside = (place >= 0) & (place < values.shape[2])
    found = jnp.take_along_axis(values, jnp.clip(place, 0, values.shape[2] - 1), axis=2)
    return jnp.where(inside, found, NEVER)


def kept_log_probs(
    logits: Float[Array, "B T R V"],
    starts: Int[Array, "B T"],
    labels: Int[Array, "B U"],
    *,
    blank_id: int,
) -> tuple[Float[Array, "B T R"], Float[Array, "B T R"]]:
    """Returns the log-probabilities of blanks and labels at the kept label positions.

    Args:
        starts: First kept position of each frame, from `kept_positions`.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_norm = jax.nn.logsumexp(logits, axis=-1)
    blank = logits[..., blank_id] - log_norm
    num_labels = labels.shape[1]
    if not num_labels:
        return blank, jnp.full_like(blank, NEVER)
    # No label follows the last position. Its value is not used (`at_positions`).
    positions = jnp.minimum(starts[..., None] + jnp.arange(logits.shape[2])[None, None], num_labels - 1)
    ids = jax.vmap(lambda row, places: row[places])(labels, positions)
    return blank, picked(logits, ids) - log_norm


def pruned_log_probs(
    blank: Float[Array, "B T R"], label: Float[Array, "B T R"], starts: Int[Array, "B T"], *, num_labels: int
) -> tuple[Float[Array, "B T S"], Float[Array, "B T U"]]:
    """Returns the log-probabilities of all arcs from those at the kept label positions, `kept_log_probs`."""
    width = num_labels + 1
    spread = at_positions(blank, starts, num_positions=width)
    return spread, at_positions(label, starts, num_positions=width)[..., :-1]

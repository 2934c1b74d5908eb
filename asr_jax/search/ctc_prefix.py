"""CTC log-probabilities of label prefixes, which a label-synchronous search adds to those of its own decoder.

Source: Watanabe et al. 2017, "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition", algorithm 2;
`CTCPrefixScoreTH` in espnet/nets/ctc_prefix_score.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Frames, length_mask
from asr_jax.kernels.log_space import NEVER

TINY = 1e-37
"""Smallest probability of a label relative to that of its prefix; smaller ones are raised to it."""


class Prefixes(NamedTuple):
    """Forward log-probabilities of K prefixes of each row, before the first frame and after each frame."""

    in_label: Float[Array, "B K T+1"]
    """Log-probability of the paths that end in the last label of the prefix."""
    in_blank: Float[Array, "B K T+1"]
    """Log-probability of the paths that end in a blank."""
    last: Int[Array, "B K"]
    """Last label; -1 for the empty prefix."""


def without_padding(log_probs: Frames, *, blank_id: int) -> Float[Array, "B T V"]:
    """Returns log-probabilities whose padding is certainly blank, so that it changes no prefix.

    Args:
        log_probs: Log-probabilities of a CTC head.
    """
    values = log_probs.values.astype(jnp.float32)
    padding = jnp.where(jnp.arange(values.shape[-1]) == blank_id, 0.0, NEVER)[None, None]
    return jnp.where(length_mask(log_probs.lengths, values.shape[1])[..., None], jnp.maximum(values, NEVER), padding)


def empty_prefixes(values: Float[Array, "B T V"], *, width: int, blank_id: int) -> Prefixes:
    """Returns K = `width` empty prefixes for each row.

    Args:
        values: Result of `without_padding`.
    """
    in_blank = jnp.pad(jnp.cumsum(values[..., blank_id], axis=1), ((0, 0), (1, 0)))
    in_blank = jnp.repeat(in_blank[:, None], width, axis=1)
    return Prefixes(jnp.full_like(in_blank, NEVER), in_blank, jnp.full(in_blank.shape[:2], -1, jnp.int32))


def prefix_scores(
    prefixes: Prefixes, values: Float[Array, "B T V"], *, blank_id: int, end_id: int
) -> Float[Array, "B K V"]:
    """Returns the log-probability of all texts that begin with a prefix and a further label.

    For the label of the end, it is the log-probability of the prefix as a whole text. For the blank, if it is not the
    end, it is `NEVER`.

    Args:
        values: Result of `without_padding`.
    """
    total = jnp.logaddexp(prefixes.in_label, prefixes.in_blank)
    before = total[..., :-1]
    best = jnp.max(before, axis=-1, keepdims=True)
    summed = jnp.einsum("bkt,btv->bkv", jnp.exp(before - best), jnp.exp(values))
    scores = jnp.log(jnp.maximum(summed, TINY)) + best
    labels = jnp.arange(values.shape[-1])[None, None]
    of_last = jax.vmap(lambda row, last: row[:, last].T)(values, jnp.maximum(prefixes.last, 0))
    repeated = jax.nn.logsumexp(prefixes.in_blank[..., :-1] + of_last, axis=-1)
    scores = jnp.where(labels == prefixes.last[..., None], repeated[..., None], scores)
    scores = jnp.where(labels == blank_id, NEVER, scores)
    return jnp.where(labels == end_id, total[..., -1:], scores)


def extended(
    prefixes: Prefixes, values: Float[Array, "B T V"], labels: Int[Array, "B K"], *, blank_id: int
) -> Prefixes:
    """Returns each prefix with one more label.

    Args:
        values: Result of `without_padding`.
        labels: Label that follows each prefix.
    """
    of_label = jax.vmap(lambda row, label: row[:, label].T)(values, labels)
    total = jnp.logaddexp(prefixes.in_label, prefixes.in_blank)
    before = jnp.where((labels == prefixes.last)[..., None], prefixes.in_blank, total)[..., :-1]

    def step(carried: tuple[Array, Array], given: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
        (label, blank), (before, of_label, of_blank) = carried, given
        found = (jnp.logaddexp(label, before) + of_label, jnp.logaddexp(blank, label) + of_blank[:, None])
        return found, jnp.stack(found)

    never = jnp.full(labels.shape, NEVER)
    frames_first = (before.transpose(2, 0, 1), of_label.transpose(2, 0, 1), values[..., blank_id].T)
    _, found = jax.lax.scan(step, (never, never), frames_first)
    in_label, in_blank = jnp.pad(found.transpose(1, 2, 3, 0), ((0, 0), (0, 0), (0, 0), (1, 0)), constant_values=NEVER)
    return Prefixes(in_label, in_blank, labels.astype(jnp.int32))

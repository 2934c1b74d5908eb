"""Search of decoders that compute all labels of an utterance at once: the most likely label of each query."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.core.settings import settings
from asr_jax.core.timed_tokens import TimedTokens
from asr_jax.search.base import Decoding


@settings
class ParallelDecoding(Decoding):
    """Settings of the search of Paraformer: the most likely label of each query, all in one pass of the decoder."""

    refine: bool = True
    """Whether labels are those after refinement in the enhanced Paraformer-v2. Refinement has its own output layer,
    which reads a second decoder for labels of low confidence. Other models have no refinement."""

    def __str__(self) -> str:
        return "parallel" if self.refine else "parallel, not refined"

    def digest(self) -> str:
        return str(self)


def parallel_tokens(
    log_probs: Float[Array, "B U V"],
    lengths: Int[Array, " B"],
    starts: Int[Array, "B U"],
    ends: Int[Array, "B U"],
    *,
    dropped: tuple[int, ...],
) -> TimedTokens:
    """Returns one hypothesis per row, with shapes [B 1 U].

    The score is the sum of the largest log-probabilities of all queries. A row whose score is not finite has no tokens.

    Args:
        log_probs: Natural log-probabilities of the labels of each query.
        lengths: Number of queries.
        starts: First frame of each query.
        ends: Frame after the last frame of each query.
        dropped: Label ids that are left out of the tokens, such as that of the end.
    """
    num_queries = log_probs.shape[1]
    is_there = length_mask(lengths, num_queries)
    labels, best = jnp.argmax(log_probs, axis=-1).astype(jnp.int32), jnp.max(log_probs, axis=-1)
    is_token = is_there
    for label in dropped:
        is_token &= labels != label
    place = jnp.where(is_token, jnp.cumsum(is_token, axis=1) - 1, num_queries)  # mode="drop" ignores the last index

    def moved(values: Array) -> Array:
        """Moves the values of tokens to their places. vmap keeps sharded rows on their devices."""
        of_row = jax.vmap(lambda place, values: jnp.zeros_like(values).at[place].set(values, mode="drop"))
        return of_row(place, values)[:, None]

    scores = jnp.sum(jnp.where(is_there, best, 0.0), axis=1)
    return TimedTokens(
        tokens=moved(labels),
        starts=moved(starts),
        ends=moved(ends),
        log_probs=moved(best),
        lengths=jnp.where(jnp.isfinite(scores), is_token.sum(axis=1), 0).astype(jnp.int32)[:, None],
        scores=scores[:, None],
    )

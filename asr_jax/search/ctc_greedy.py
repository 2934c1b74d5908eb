"""Greedy CTC search on the device: the most likely label of every frame, without repetitions and blanks."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import length_mask
from asr_jax.core.timed_tokens import TimedTokens


def greedy_search(log_probs: Float[Array, "B T V"], lengths: Int[Array, " B"], *, blank_id: int) -> TimedTokens:
    """Returns one hypothesis per row, with shapes [B 1 T]. It can be jitted with the model, with sharded rows.

    A token's log-probability is the largest one of its frames. The score is the sum of the largest log-probability of
    each frame. A row whose score is not finite has no tokens.

    Args:
        log_probs: Natural log-probabilities.
        lengths: Number of valid frames.
    """
    num_frames = log_probs.shape[1]
    is_there, frame = length_mask(lengths, num_frames), jnp.arange(num_frames, dtype=jnp.int32)
    path = jnp.where(is_there, jnp.argmax(log_probs, axis=-1), blank_id).astype(jnp.int32)
    best = jnp.where(is_there, jnp.max(log_probs, axis=-1), 0.0)
    before = jnp.pad(path[:, :-1], ((0, 0), (1, 0)), constant_values=blank_id)
    is_label = path != blank_id
    token = jnp.cumsum(is_label & (path != before), axis=1, dtype=jnp.int32)
    place = jnp.where(is_label, token - 1, num_frames)  # mode="drop" ignores this index

    def largest(values: Array, start: float, dtype: DTypeLike) -> Array:
        """Returns the largest value of the frames of each token. vmap keeps sharded rows on their devices."""
        empty = jnp.full(num_frames, start, dtype)
        of_row = jax.vmap(lambda place, values: empty.at[place].max(values, mode="drop"))
        return of_row(place, jnp.broadcast_to(values, path.shape))[:, None]

    scores = best.sum(axis=1)
    return TimedTokens(
        tokens=largest(path, 0, jnp.int32),
        starts=-largest(-frame, -num_frames, jnp.int32),
        ends=largest(frame + 1, 0, jnp.int32),
        log_probs=largest(best, -jnp.inf, jnp.float32),
        lengths=jnp.where(jnp.isfinite(scores), token.max(axis=1, initial=0), 0)[:, None],
        scores=scores[:, None],
    )

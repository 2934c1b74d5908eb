"""Greedy CTC decoding: the best symbol of every frame on the device, text on the host."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32

from asr_jax.core.batch import AnyArray, length_mask
from asr_jax.text.tokenizer import Tokenizer


def greedy_ids(
    scores: Float[Array, "B T V"], lengths: Int[Array, " B"], blank_id: int
) -> tuple[Int32[Array, "B T"], Int32[Array, " B"]]:
    """Labels of the best symbol per frame, repeats merged and blanks left out, and their number in each row.

    `scores` are logits or log-probabilities. Labels stand at the left, -1 behind them; shapes are static, so this may
    be jitted with the model and its batch sharded.
    """
    best = jnp.argmax(scores, axis=-1).astype(jnp.int32)
    previous = jnp.pad(best[:, :-1], ((0, 0), (1, 0)), constant_values=blank_id)
    kept = (best != blank_id) & (best != previous) & length_mask(lengths, best.shape[1])
    num_frames = best.shape[1]
    targets = jnp.where(kept, jnp.cumsum(kept, axis=1) - 1, num_frames)  # beyond the row: dropped

    def compact(row: Array, target: Array) -> Array:
        return jnp.full(num_frames, -1, jnp.int32).at[target].set(row, mode="drop")

    return jax.vmap(compact)(best, targets), kept.sum(axis=1, dtype=jnp.int32)


def to_texts(ids: Int[AnyArray, "B T"], num: Int[AnyArray, " B"], tokenizer: Tokenizer) -> list[str]:
    """The text of each row's first `num` labels, words parted by single spaces."""
    rows = zip(np.asarray(ids), np.asarray(num), strict=True)
    return [" ".join(tokenizer.decode(row[:length].tolist()).split()) for row, length in rows]

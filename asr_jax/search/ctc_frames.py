"""Selection of the frames and labels that a prefix beam search considers; other frames are summed in advance.

SearchedFrames in which only the blank is a candidate are skipped.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, Int32

from asr_jax.core.batch import length_mask
from asr_jax.search.ctc_beam_state import NEVER, Frame
from asr_jax.search.hypotheses import Search


class SearchedFrames(struct.PyTreeNode):
    """A batch of log-probabilities, and the frames that are considered: those with candidates besides the blank."""

    staying: Float[Array, "B T V"]
    """As `Frame.staying`."""
    growing: Float[Array, "B T V"]
    """As `Frame.growing`."""
    tokens: Int32[Array, "B T K"] | None
    """As `Frame.tokens`. None: all labels."""
    is_looked_at: Bool[Array, "B T"]
    """Whether each frame is considered."""
    order: Int32[Array, "B T"]
    """Numbers of the considered frames in their order, followed by the others."""
    num: Int32[Array, " B"]
    """Number of considered frames."""
    is_blank_before: Bool[Array, "B T+1"]
    """Whether skipped frames precede the i-th considered frame; for i = `num`, whether they follow the last one."""
    skipped: Float[Array, "B T"]
    """Log-probability of the blank in skipped frames; 0 in others."""

    def at(self, i: Int[Array, ""] | int) -> Frame:
        """Returns the i-th frame that the search evaluates, for each row.

        `is_there` is False beyond the last one.
        """
        rows, frame = jnp.arange(len(self.num)), self.order[:, jnp.minimum(i, self.order.shape[1] - 1)]
        is_there = i < self.num
        num_labels = self.growing.shape[2]
        every = jnp.tile(jnp.arange(num_labels), (len(rows), 1))
        return Frame(
            staying=self.staying[rows, frame],
            growing=jnp.where(is_there[:, None], self.growing[rows, frame], NEVER),
            tokens=every if self.tokens is None else self.tokens[rows, frame],
            is_there=is_there,
            is_blank_before=self.is_blank_before[:, i],
        )


@functools.partial(jax.jit, static_argnames=("search", "blank_id", "are_all_looked_at"))
def frames_of(
    log_probs: Float[Array, "B T V"],
    lengths: Int[Array, " B"],
    *,
    search: Search,
    blank_id: int,
    are_all_looked_at: bool,
) -> SearchedFrames:
    """Selects frames and labels.

    Args:
        log_probs: Natural log-probabilities.
        lengths: Number of valid frames.
        are_all_looked_at: Whether all frames are considered, as a lexicon needs: unlikely labels may then continue a
            prefix that ends in them.
    """
    num_frames, num_symbols = log_probs.shape[1:]
    kept = _kept(log_probs, search)
    is_frame = length_mask(lengths, num_frames)
    is_label = (jnp.arange(num_symbols) != blank_id)[None, None]
    looked_at = is_frame & ((kept & is_label).any(-1) | are_all_looked_at)
    order = jnp.argsort(~looked_at, axis=1, stable=True).astype(jnp.int32)
    num = looked_at.sum(1, dtype=jnp.int32)
    place = jnp.arange(num_frames + 1)[None]
    at = jnp.where(place < num[:, None], jnp.pad(order, ((0, 0), (0, 1))), lengths[:, None])
    gaps = jnp.diff(at, axis=1, prepend=-1)
    growing = jnp.where(kept & is_label, log_probs, NEVER)
    num_tokens = _most_kept(num_symbols, search)
    return SearchedFrames(
        staying=log_probs if are_all_looked_at else jnp.where(kept, log_probs, NEVER),
        growing=growing,
        tokens=None if num_tokens == num_symbols else jax.lax.top_k(growing, num_tokens)[1],
        is_looked_at=looked_at,
        order=order,
        num=num,
        is_blank_before=(gaps > 1) & (place <= num[:, None]),
        skipped=jnp.where(is_frame & ~looked_at, log_probs[..., blank_id], 0.0),
    )


def _kept(log_probs: Float[Array, "B T V"], search: Search) -> Bool[Array, "B T V"]:
    """Returns the candidate labels of each frame: the most probable ones, within the limits of `search`."""
    num_symbols = log_probs.shape[-1]
    kept = log_probs >= search.token_min_logp
    if 0 < search.max_tokens < num_symbols:
        kept &= log_probs >= jax.lax.top_k(log_probs, search.max_tokens)[0].min(-1, keepdims=True)
    return kept | (jnp.arange(num_symbols)[None, None] == log_probs.argmax(-1, keepdims=True))


def _most_kept(num_symbols: int, search: Search) -> int:
    """Returns the largest possible number of candidates: at most 1 / p labels have a probability of at least p."""
    most = search.max_tokens or num_symbols
    if -search.token_min_logp < math.log(num_symbols):
        most = min(most, math.ceil(math.exp(-search.token_min_logp)))
    return min(most, num_symbols)

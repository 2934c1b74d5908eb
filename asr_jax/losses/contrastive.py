"""The contrastive loss of wav2vec 2.0: identifies the target of a masked frame among distractors."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from asr_jax.core.random_streams import uniform_of_rows


class Distractors(NamedTuple):
    """N distractors of each frame."""

    vectors: Float[Array, "B T N D"]
    """Vectors of the distractors."""
    equal: Bool[Array, "B T N"]
    """Whether a distractor equals the frame's target."""


class Contrast(NamedTuple):
    """Contrastive loss and accuracy of each frame."""

    losses: Float[Array, "B T"]
    """Losses in nats."""
    correct: Bool[Array, "B T"]
    """Whether the target has the highest similarity, and not at the same time the lowest."""


def contrastive_loss(
    predictions: Float[Array, "B T D"],
    targets: Float[Array, "B T D"],
    counts: Int[Array, "B T T"],
    *,
    equal: Bool[Array, "B T T"],
    temperature: float,
    others: Distractors | None = None,
) -> Contrast:
    """Computes the contrastive loss of each frame.

    The loss is -log of the softmax of cosine / temperature over a frame's target and its distractors. Distractors that
    equal the frame's target are excluded. The similarities of a row are one matrix product of its predictions and
    targets; distractors are not copied.

    Source: Baevski et al. 2020 (arXiv:2006.11477), equation 3; `compute_preds` in fairseq's models/wav2vec/wav2vec2.py
    and criterions/wav2vec_criterion.py at commit 3d262bb2.

    Args:
        predictions: Outputs of the encoder.
        counts: Number of times that the target of frame s (last axis) is a distractor of frame t (second axis).
        equal: Whether the target of frame s (last axis) equals that of frame t (second axis).
        temperature: Divisor of the cosine similarities.
    """
    predictions, targets = _unit(predictions), _unit(targets)
    own = jnp.sum(predictions * targets, axis=-1)[..., None]
    scores = [own, jnp.einsum("btd,bsd->bts", predictions, targets)]
    weights = [jnp.ones_like(own), jnp.where(equal, 0, counts).astype(own.dtype)]
    excluded = jnp.any(equal & (counts > 0), axis=-1)
    if others is not None:
        scores.append(jnp.einsum("btd,btnd->btn", predictions, _unit(others.vectors)))
        weights.append((~others.equal).astype(own.dtype))
        excluded |= jnp.any(others.equal, axis=-1)
    score, weight = jnp.concatenate(scores, axis=-1) / temperature, jnp.concatenate(weights, axis=-1)
    losses = jax.nn.logsumexp(score, axis=-1, b=weight) - score[..., 0]
    rest, drawn = score[..., 1:], weight[..., 1:] > 0
    highest = jnp.all(~drawn | (rest <= score[..., :1]), axis=-1)
    lowest = jnp.all(~drawn | (rest >= score[..., :1]), axis=-1) & ~excluded
    return Contrast(losses, highest & ~lowest)


def _unit(x: Float[Array, "*rest D"]) -> Float[Array, "*rest D"]:
    """Normalises vectors to length 1 in float32; vectors of nearly zero length remain shorter."""
    x = x.astype(jnp.float32)
    squares = jnp.sum(x**2, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squares, 1e-16))


def draw_distractors(
    key: PRNGKeyArray, eligible: Bool[Array, "B T"], *, num: int, same_row: bool
) -> Int[Array, "B T {num}"]:
    """Draws distractors for each frame uniformly, with replacement, from the other eligible frames.

    If there is only one eligible frame, it is its own distractor.

    Args:
        eligible: Whether a frame can be a distractor.
        num: Number of distractors per frame.
        same_row: Whether distractors are from the same row; otherwise they are from the whole batch.

    Returns:
        Positions of the distractors in the row or, if `same_row` is False, in the concatenated rows of the batch.
    """
    rows, size = eligible.shape
    flat = eligible if same_row else eligible.reshape(1, -1)
    count = jnp.sum(flat, axis=1)[:, None, None]
    places = jnp.argsort(~flat, axis=1, stable=True)
    rank = (jnp.cumsum(flat, axis=1) - 1)[..., None]
    if same_row:
        uniform = uniform_of_rows(key, (*flat.shape, num))
    else:
        uniform = jax.random.uniform(key, (*flat.shape, num))
    drawn = uniform * (count - 1)
    drawn = jnp.minimum(jnp.floor(drawn).astype(jnp.int32), jnp.maximum(count - 2, 0))
    drawn = jnp.where(count > 1, drawn + (drawn >= rank), 0)
    found = jnp.take_along_axis(places[:, None], drawn, axis=2)
    return found.reshape(rows, size, num)


def counted(places: Int[Array, "B T N"], size: int) -> Int[Array, "B T S"]:
    """Returns how often each position below `size` occurs among the positions of each frame."""
    rows, frames, _ = places.shape
    row, frame = jnp.arange(rows)[:, None, None], jnp.arange(frames)[None, :, None]
    return jnp.zeros((rows, frames, size), jnp.int32).at[row, frame, places].add(1)

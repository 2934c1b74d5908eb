"""The contrastive loss of wav2vec 2.0: which of a true target and distractors belongs to a hidden frame."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray


class Distractors(NamedTuple):
    """Vectors of which each frame has its own choice, and whether each equals the frame's target."""

    vectors: Float[Array, "B T N D"]
    equal: Bool[Array, "B T N"]


class Contrast(NamedTuple):
    """For each frame."""

    losses: Float[Array, "B T"]
    """In nats."""
    correct: Bool[Array, "B T"]
    """The target has the highest similarity, and not the lowest as well."""


def contrastive_loss(
    predictions: Float[Array, "B T D"],
    targets: Float[Array, "B T D"],
    counts: Int[Array, "B T T"],
    *,
    equal: Bool[Array, "B T T"],
    temperature: float,
    others: Distractors | None = None,
) -> Contrast:
    """-log of the softmax, over a frame's target and its distractors, of cosine / temperature.

    `counts`: of each frame (first T), how many times the target of each frame of its row (last axis) is its distractor;
    `equal`: where that equals the frame's own target, and so does not count; `others`: more distractors. The
    similarities of a row's frames and targets are one product of matrices, so that no distractor is copied.

    Source: Baevski et al. 2020 (arXiv:2006.11477), equation 3; `compute_preds` in fairseq's models/wav2vec/wav2vec2.py
    and criterions/wav2vec_criterion.py at commit 3d262bb2.
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
    """In float32, of length 1, or shorter where `x` has next to none."""
    x = x.astype(jnp.float32)
    squares = jnp.sum(x**2, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squares, 1e-16))


def draw_distractors(
    key: PRNGKeyArray, eligible: Bool[Array, "B T"], *, num: int, same_row: bool
) -> Int[Array, "B T {num}"]:
    """For each frame, `num` of the other eligible frames, with repetition: their places in the row, or with `same_row`
    off in the batch's rows one behind the other. A row (a batch) with one eligible frame has that as its distractor.
    """
    rows, size = eligible.shape
    flat = eligible if same_row else eligible.reshape(1, -1)
    count = jnp.sum(flat, axis=1)[:, None, None]
    places = jnp.argsort(~flat, axis=1, stable=True)
    rank = (jnp.cumsum(flat, axis=1) - 1)[..., None]
    drawn = jax.random.uniform(key, (*flat.shape, num)) * (count - 1)
    drawn = jnp.minimum(jnp.floor(drawn).astype(jnp.int32), jnp.maximum(count - 2, 0))
    drawn = jnp.where(count > 1, drawn + (drawn >= rank), 0)
    found = jnp.take_along_axis(places[:, None], drawn, axis=2)
    return found.reshape(rows, size, num)


def counted(places: Int[Array, "B T N"], size: int) -> Int[Array, "B T S"]:
    """How many times each of `size` places is among a frame's."""
    rows, frames, _ = places.shape
    row, frame = jnp.arange(rows)[:, None, None], jnp.arange(frames)[None, :, None]
    return jnp.zeros((rows, frames, size), jnp.int32).at[row, frame, places].add(1)

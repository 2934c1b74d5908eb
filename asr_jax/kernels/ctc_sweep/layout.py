"""Arrays that the kernels of the recursion of CTC read: one direction after the other, and padded to whole tiles."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.kernels.ctc_sweep.reference import differs_from_before, first_states
from asr_jax.kernels.log_space import NEVER, add


class Prepared(NamedTuple):
    """Inputs of a kernel."""

    emissions: Float[Array, "K T B W"]
    """Log-probabilities of the blank (column 0) and of each label, in the order of each direction."""
    new: Float[Array, "K B W"]
    """Column u: 1 if label u + 1 differs from label u, otherwise 0."""
    first: Float[Array, "K B W"]
    """States of blanks before the first frame."""
    blank_bonus: Float[Array, "K B W"] | None
    """Values that are added to the log-probabilities of blanks."""


def prepared(
    emissions: Float[Array, "T B N"],
    labels: Int[Array, "K B U"],
    label_lengths: Int[Array, " B"],
    blank_bonus: Float[Array, "K B U+1"] | None,
    *,
    frames: int,
    rows: int,
    width: int,
) -> Prepared:
    """Returns the inputs of a kernel, padded to multiples of the sizes of its tiles.

    Padding frames emit the blank with probability 1, which does not change the result.

    Args:
        emissions: Log-probabilities as in `api.ctc_sweep`.
        label_lengths: Number of valid labels of each row.
        blank_bonus: Values that are added to the log-probabilities of blanks.
        frames: Divisor of the number of frames.
        rows: Divisor of the number of rows.
        width: Divisor of the number of columns.
    """
    by_direction = jnp.stack([emissions[..., :-1], emissions[::-1, :, :0:-1]][: len(labels)])
    more_frames, more_rows, more_columns = (
        -size % tile for size, tile in zip(by_direction.shape[1:], (frames, rows, width), strict=True)
    )
    neutral = jnp.where(jnp.arange(by_direction.shape[3]) == 0, 0.0, NEVER).astype(emissions.dtype)
    shape = (len(labels), more_frames, *by_direction.shape[2:])
    by_direction = jnp.concatenate([by_direction, jnp.broadcast_to(neutral, shape)], axis=1)
    new = jnp.pad(differs_from_before(labels).astype(emissions.dtype), ((0, 0), (0, 0), (0, 1)))
    first = first_states(labels, label_lengths).astype(emissions.dtype)
    rest = ((0, more_rows), (0, more_columns))
    return Prepared(
        jnp.pad(by_direction, ((0, 0), (0, 0), *rest), constant_values=NEVER),
        jnp.pad(new, ((0, 0), *rest)),
        jnp.pad(first, ((0, 0), *rest), constant_values=NEVER),
        None if blank_bonus is None else jnp.pad(blank_bonus, ((0, 0), *rest)),
    )


def log_probability(
    largest: Float[Array, " B"], blank: Float[Array, "B N"], label: Float[Array, "B N"], label_lengths: Int[Array, " B"]
) -> Float[Array, " B"]:
    """Returns the log-probability of the labels from the last states of the first direction.

    Args:
        largest: Sum over the frames of the values that were subtracted from the states.
        blank: Last states of blanks.
        label: Last states of labels.
        label_lengths: Number of valid labels of each row.
    """
    return largest + jnp.take_along_axis(add(blank, label), label_lengths[:, None], axis=1)[:, 0]

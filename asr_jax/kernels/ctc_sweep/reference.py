"""The reference implementation of the recursion of CTC: a scan over frames."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from asr_jax.kernels.log_space import NEVER, add

States = tuple[Float[Array, "T K B U+1"], Float[Array, "T K B U+1"]]


def sweep(
    emissions: Float[Array, "T B N"],
    labels: Int[Array, "K B U"],
    label_lengths: Int[Array, " B"],
    blank_bonus: Float[Array, "K B U+1"] | None = None,
) -> tuple[Float[Array, " B"], States]:
    """Computes `api.ctc_sweep`."""
    num_directions, num_frames = len(labels), len(emissions)
    if not num_frames:  # the step is traced also if it is not run, and indexes the frames
        emissions = jnp.zeros((1, *emissions.shape[1:]), emissions.dtype)
    blank = first_states(labels, label_lengths).astype(emissions.dtype)
    new = differs_from_before(labels)

    def step(states: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        emission = jnp.stack([emissions[t][:, :-1], emissions[num_frames - 1 - t][:, :0:-1]][:num_directions])
        blank, label = states
        either = add(blank, label)
        before = jnp.where(new, either[..., :-1], blank[..., :-1])  # a blank is required between equal labels
        entered = add(label, jnp.pad(before, ((0, 0), (0, 0), (1, 0)), constant_values=NEVER))
        of_blank = emission[..., :1] if blank_bonus is None else emission[..., :1] + blank_bonus
        blank, label = either + of_blank, entered + emission
        largest = jnp.maximum(blank, label).max(-1, keepdims=True)
        return (blank - largest, label - largest), (either, entered, largest[0, :, 0])

    states, (blanks, entered, largest) = lax.scan(step, (blank, jnp.full_like(blank, NEVER)), jnp.arange(num_frames))
    last = jnp.take_along_axis(add(states[0][0], states[1][0]), label_lengths[:, None], axis=1)[:, 0]
    return largest.sum(0) + last, (blanks, entered)


def first_states(labels: Int[Array, "K B U"], label_lengths: Int[Array, " B"]) -> Float[Array, "K B U+1"]:
    """Returns the states of blanks before the first frame. The states of labels are all `NEVER` then.

    Args:
        label_lengths: Number of valid labels of each row.
    """
    num_directions, _, num_labels = labels.shape
    start = jnp.stack([jnp.zeros_like(label_lengths), num_labels - label_lengths])[:num_directions]
    return jnp.where(jnp.arange(num_labels + 1)[None, None] == start[..., None], 0.0, NEVER)


def differs_from_before(labels: Int[Array, "K B U"]) -> Bool[Array, "K B U"]:
    """Returns whether each label differs from the one before it. The first one does."""
    new = jnp.pad(labels[..., 1:] != labels[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=True)
    return new[..., : labels.shape[-1]]

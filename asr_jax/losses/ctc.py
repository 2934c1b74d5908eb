"""Connectionist temporal classification: right where a row has too few frames, and deaf to padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import AnyArray, length_mask

# Logarithm of an impossible probability: finite, because a difference of two infinities is not a number, and so low
# that real log-probabilities added to it change nothing.
NEVER = -1e30

# Up to this vocabulary a product with one-hot rows adds occupancies up faster than a scatter (on a CPU, for each: 0.7
# against 1.8 ns at 32 symbols, 2.9 against 2.1 ns at 128).
ONE_HOT_VOCABULARY = 64

Residuals = tuple[Array, Array, Array, Array, Array]


def ctc_loss(
    logits: Float[Array, "B T V"],
    logit_lengths: Int[Array, " B"],
    labels: Int[Array, "B U"],
    label_lengths: Int[Array, " B"],
    *,
    blank_id: int,
) -> tuple[Float[Array, " B"], Bool[Array, " B"]]:
    """Minus the log-probability of each row's labels, and which rows are feasible. Neither summed nor averaged.

    A row with fewer frames than labels and repeats has no path: its loss is 0 and its gradient exactly 0; the caller
    gives it weight 0 and counts it. Computed in float32 (float64 for float64 logits) whatever the logits' type; the
    gradient has their type. What lies beyond the lengths has no influence and gets no gradient. Logits within the
    lengths that are not finite give a loss that is not finite. Labels must not contain the blank: nothing can be
    raised for that here; `training.setup.check_labels` looks at all of them before a run.

    Source: Graves et al. 2006, "Connectionist temporal classification", equations 6-16.
    Differs from: the paper in its scaling (by a frame's largest state; occupancies are normalised per frame, which
    keeps the gradient of long rows precise); optax 0.2.8, which gives infeasible rows a loss of 1e5 and a gradient,
    falls below zero, and takes the softmax of bfloat16 logits in bfloat16. PyTorch's `zero_infinity=True` is equal.
    """
    losses = _losses(logits, logit_lengths, labels, label_lengths, blank_id)
    return losses, is_feasible(logit_lengths, labels, label_lengths)


def is_feasible(
    frame_lengths: Int[AnyArray, " B"], labels: Int[AnyArray, "B U"], label_lengths: Int[AnyArray, " B"]
) -> Bool[AnyArray, " B"]:
    """True where a path exists: a frame for each label, and one for the blank between two equal labels.

    NumPy arrays in, NumPy array out; the same for JAX arrays.
    """
    repeats = (labels[:, 1:] == labels[:, :-1]) & (label_lengths[:, None] > np.arange(1, max(labels.shape[1], 1))[None])
    return frame_lengths >= label_lengths + repeats.sum(1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _losses(logits: Array, logit_lengths: Array, labels: Array, label_lengths: Array, blank_id: int) -> Array:
    """Losses without a gradient: the forward direction is enough."""
    _, emissions = _emissions(logits, logit_lengths, labels, label_lengths, blank_id)
    log_probability, _ = _sweep(emissions, labels[None], label_lengths)
    return _to_losses(log_probability, is_feasible(logit_lengths, labels, label_lengths))


def _losses_forward(
    logits: Array, logit_lengths: Array, labels: Array, label_lengths: Array, blank_id: int
) -> tuple[Array, Residuals]:
    """Losses, and what their gradient needs: occupancies from both directions, which one scan computes together."""
    log_norm, emissions = _emissions(logits, logit_lengths, labels, label_lengths, blank_id)
    log_probability, states = _sweep(emissions, jnp.stack([labels, labels[:, ::-1]]), label_lengths)
    occupancies = jnp.swapaxes(_occupancies(*states, emissions[..., :-1]), 0, 1)
    feasible = is_feasible(logit_lengths, labels, label_lengths)
    counted = length_mask(logit_lengths, logits.shape[1]) & feasible[:, None]
    symbols = _symbols(labels, label_lengths, blank_id)[:, :-1]
    return _to_losses(log_probability, feasible), (logits, log_norm, occupancies, symbols, counted)


def _losses_backward(blank_id: int, residuals: Residuals, cotangent: Array) -> tuple[Array, None, None, None]:
    """Equation 16: softmax less occupancies, scaled; exactly zero in padding and in infeasible rows."""
    logits, log_norm, occupancies, symbols, counted = residuals
    scale, counted = cotangent[:, None, None], counted[..., None]
    expected = jnp.where(counted, scale * jnp.exp(logits.astype(log_norm.dtype) - log_norm[..., None]), 0)
    gradient = _subtract(expected, jnp.where(counted, scale * occupancies, 0), symbols)
    return gradient.astype(logits.dtype), None, None, None


_losses.defvjp(_losses_forward, _losses_backward)


def _symbols(labels: Array, label_lengths: Array, blank_id: int) -> Array:
    """`[B U+2]`: the labels between two blanks; what is padding in them is the blank too."""
    labels = jnp.where(length_mask(label_lengths, labels.shape[1]), labels, blank_id)
    return jnp.pad(labels, ((0, 0), (1, 1)), constant_values=blank_id)


def _emissions(
    logits: Array, logit_lengths: Array, labels: Array, label_lengths: Array, blank_id: int
) -> tuple[Array, Array]:
    """Logarithm of the softmax's denominator `[B T]`, and log-probabilities of the symbols `[T B U+2]`.

    A frame of the padding emits the blank with certainty: the forward direction carries its result through it to the
    end, and the backward direction passes it unchanged before its first real frame.
    """
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    symbols = _symbols(labels, label_lengths, blank_id)
    log_norm = jax.nn.logsumexp(logits.astype(dtype), axis=-1)
    pick = jax.vmap(lambda row, ids: row.at[:, ids].get(mode="fill", fill_value=jnp.nan), out_axes=1)
    picked = pick(logits, symbols).astype(dtype) - log_norm.T[..., None]
    frames = length_mask(logit_lengths, logits.shape[1]).T[..., None]
    column = jnp.arange(symbols.shape[1])[None]
    blank = (column == 0) | (column == symbols.shape[1] - 1)
    used = blank | (column <= label_lengths[:, None])
    padding = jnp.where(blank, 0, NEVER).astype(dtype)[None]
    emissions = jnp.where(frames & used[None], jnp.maximum(picked, NEVER), padding)
    return log_norm, lax.optimization_barrier(emissions)  # else XLA gathers anew for each of its readers


def _sweep(emissions: Array, labels: Array, label_lengths: Array) -> tuple[Array, tuple[Array, Array]]:
    """Forward variables (equations 6-7) of K directions: emissions `[T B U+2]`, labels `[K B U]`.

    Direction 0 reads frames and labels from the start, direction 1 from the end: its forward variables are the
    backward variables (9-10). They have an axis of their own, so that the rows of a sharded batch stay where they are.
    Blanks and labels are kept apart: blank u comes after u labels; label u counts from 1, and 0 stands for no label.
    Returns the log-probability `[B]` of the labels (8), and the states `[T K B U+1]` of blanks and of labels before
    the frame's own emission, up to a constant per frame.
    """
    num_directions, _, num_labels = labels.shape
    num_frames = len(emissions)
    start = jnp.stack([jnp.zeros_like(label_lengths), num_labels - label_lengths])[:num_directions]
    blank = jnp.where(jnp.arange(num_labels + 1)[None, None] == start[..., None], 0, NEVER).astype(emissions.dtype)
    new = jnp.pad(labels[..., 1:] != labels[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=True)
    new = new[..., :num_labels]

    def step(states: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        emission = jnp.stack([emissions[t][:, :-1], emissions[num_frames - 1 - t][:, :0:-1]][:num_directions])
        blank, label = states
        either = _add(blank, label)
        before = jnp.where(new, either[..., :-1], blank[..., :-1])  # between equal labels there must be a blank
        entered = _add(label, jnp.pad(before, ((0, 0), (0, 0), (1, 0)), constant_values=NEVER))
        blank, label = either + emission[..., :1], entered + emission
        largest = jnp.maximum(blank, label).max(-1, keepdims=True)
        return (blank - largest, label - largest), (either, entered, largest[0, :, 0])

    states, (blanks, entered, largest) = lax.scan(step, (blank, jnp.full_like(blank, NEVER)), jnp.arange(num_frames))
    last = jnp.take_along_axis(_add(states[0][0], states[1][0]), label_lengths[:, None], axis=1)[:, 0]
    return largest.sum(0) + last, (blanks, entered)


def _add(a: Array, b: Array) -> Array:
    """log(exp a + exp b). Rounding 1 + exp loses less than the larger one's own rounding does."""
    ratio = 1 + jnp.exp(-jnp.abs(a - b))
    # XLA's CPU compiler does not vectorise a loop with both functions: in two loops they take a third of the time.
    ratio = lax.platform_dependent(ratio, cpu=lax.optimization_barrier, default=lambda ratio: ratio)
    return jnp.maximum(a, b) + jnp.log(ratio)


def _to_losses(log_probability: Array, feasible: Array) -> Array:
    """Never negative; infinite where logits of minus infinity forbid every path; 0 where frames are too few."""
    possible = jnp.where(log_probability < NEVER / 2, jnp.inf, jnp.maximum(-log_probability, 0))
    return jnp.where(feasible, possible, 0)


def _occupancies(blanks: Array, entered: Array, emissions: Array) -> Array:
    """Probability, given the labels, that a frame emits the blank (column 0) or each label: `[T B U+1]`, of (14)."""
    blank = blanks[:, 0] + blanks[::-1, 1, :, ::-1] + emissions[..., :1]
    label = entered[:, 0, :, 1:] + entered[::-1, 1, :, :0:-1] + emissions[..., 1:]
    # A softmax over both kinds of states; to join them for it would take several times the memory and the time.
    largest = jnp.maximum(blank.max(-1), label.max(-1, initial=NEVER))[..., None]
    blank, label = jnp.exp(blank - largest).sum(-1, keepdims=True), jnp.exp(label - largest)
    total = blank + label.sum(-1, keepdims=True)
    return jnp.concatenate([blank / total, label / total], axis=-1)


def _subtract(expected: Array, occupancies: Array, symbols: Array) -> Array:
    """`expected` `[B T V]` less the occupancies `[B T N]` of symbols `[B N]` that may repeat."""
    if expected.shape[-1] <= ONE_HOT_VOCABULARY:
        return _subtract_product(expected, occupancies, symbols)
    # Elsewhere than on a CPU a scatter adds in an order that changes from run to run, and the product is cheap.
    return lax.platform_dependent(expected, occupancies, symbols, cpu=_subtract_scatter, default=_subtract_product)


def _subtract_product(expected: Array, occupancies: Array, symbols: Array) -> Array:
    one_hot = jax.nn.one_hot(symbols, expected.shape[-1], dtype=expected.dtype)
    return expected - jnp.einsum("btn,bnv->btv", occupancies, one_hot, precision=lax.Precision.HIGHEST)


def _subtract_scatter(expected: Array, occupancies: Array, symbols: Array) -> Array:
    return jax.vmap(lambda row, less, ids: row.at[:, ids].add(-less))(expected, occupancies, symbols)

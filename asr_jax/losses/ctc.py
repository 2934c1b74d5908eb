"""The loss of connectionist temporal classification (CTC), independent of padding and defined for infeasible rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import AnyArray, length_mask
from asr_jax.kernels.ctc_sweep.api import ctc_sweep
from asr_jax.kernels.log_space import NEVER

# Up to this vocabulary size a product with one-hot vectors sums occupancies faster than a scatter (on a CPU, per
# occupancy: 0.7 against 1.8 ns with 32 labels, 2.9 against 2.1 ns with 128).
ONE_HOT_VOCABULARY = 64

Norms = tuple[Array, Array]
Residuals = tuple[Array, Norms, Array, Array, Array]


def ctc_loss(
    logits: Float[Array, "B T V"],
    logit_lengths: Int[Array, " B"],
    labels: Int[Array, "B U"],
    label_lengths: Int[Array, " B"],
    *,
    blank_id: int,
    delay_penalty: float = 0.0,
) -> tuple[Float[Array, " B"], Bool[Array, " B"]]:
    """Computes the negative log-likelihood of each row's labels.

    A row with fewer frames than labels plus repeats has no path and is infeasible: its loss and its gradient are
    exactly 0, and the caller excludes it from the denominator and counts it. The loss is computed in float32 (float64
    for float64 logits); the gradient has the dtype of the logits. Padding has no influence and no gradient. Non-finite
    logits within the lengths result in a non-finite loss. Labels must not contain the blank, which is not checked here;
    `training.setup.check_labels` checks all labels before a run.

    With a delay penalty λ, λ · ((T - 1) / 2 - t) is added to the log-probability of a path for each label that begins
    at frame t of T: paths that emit labels early count more. The loss includes it, and can be negative.

    Source: Graves et al. 2006, "Connectionist temporal classification", equations 6-16; Yao et al. 2023
    (arXiv:2305.11539) for the delay penalty, as in `ctc_loss` of k2 at commit 0042b744, which has T // 2 instead of
    (T - 1) / 2: the gradient is the same.
    Differs from: the paper in its scaling (by a frame's largest state; occupancies are normalised per frame, which
    keeps the gradient of long rows precise); optax 0.2.8, in which infeasible rows have a loss of 1e5 and a gradient,
    losses can be negative, and the softmax of bfloat16 logits is computed in bfloat16. PyTorch's loss with
    `zero_infinity=True` is equal.

    Args:
        logits: Logits of V labels, including the blank.
        logit_lengths: Number of valid frames of each row.
        label_lengths: Number of valid labels of each row.
        delay_penalty: λ, in nats per frame. 0: no penalty.

    Returns:
        Loss of each row, neither summed nor averaged, and whether each row is feasible.
    """
    losses = _losses(logits, logit_lengths, labels, label_lengths, blank_id, delay_penalty)
    return losses, is_feasible(logit_lengths, labels, label_lengths)


def is_feasible(
    frame_lengths: Int[AnyArray, " B"], labels: Int[AnyArray, "B U"], label_lengths: Int[AnyArray, " B"]
) -> Bool[AnyArray, " B"]:
    """Returns whether each row has enough frames: one per label, and one for the blank between two equal labels."""
    return frame_lengths >= label_lengths + num_repeats(labels, label_lengths)


def num_repeats(labels: Int[AnyArray, "B U"], label_lengths: Int[AnyArray, " B"]) -> Int[AnyArray, " B"]:
    """Returns the number of labels of each row that equal the label before."""
    repeats = (labels[:, 1:] == labels[:, :-1]) & (label_lengths[:, None] > np.arange(1, max(labels.shape[1], 1))[None])
    return repeats.sum(1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _losses(
    logits: Array, logit_lengths: Array, labels: Array, label_lengths: Array, blank_id: int, delay_penalty: float
) -> Array:
    """Computes losses without a gradient, for which the forward direction is sufficient."""
    _, emissions = _emissions(logits, logit_lengths, labels, label_lengths, blank_id)
    emissions, waiting = _with_penalty(emissions, label_lengths, delay_penalty)
    log_probability, _ = ctc_sweep(emissions, labels[None], label_lengths, None if waiting is None else waiting[None])
    feasible = is_feasible(logit_lengths, labels, label_lengths)
    return _to_losses(log_probability, feasible, _most_added(logit_lengths, label_lengths, delay_penalty))


def _losses_forward(
    logits: Array, logit_lengths: Array, labels: Array, label_lengths: Array, blank_id: int, delay_penalty: float
) -> tuple[Array, Residuals]:
    """Computes losses and the residuals of their gradient: occupancies from both directions, computed in one scan."""
    norms, emissions = _emissions(logits, logit_lengths, labels, label_lengths, blank_id)
    emissions, waiting = _with_penalty(emissions, label_lengths, delay_penalty)
    bonus = None if waiting is None else jnp.stack([waiting, waiting[:, ::-1]])
    log_probability, states = ctc_sweep(emissions, jnp.stack([labels, labels[:, ::-1]]), label_lengths, bonus)
    occupancies = jnp.swapaxes(_occupancies(*states, emissions[..., :-1], waiting), 0, 1)
    feasible = is_feasible(logit_lengths, labels, label_lengths)
    counted = length_mask(logit_lengths, logits.shape[1]) & feasible[:, None]
    symbols = _symbols(labels, label_lengths, blank_id)[:, :-1]
    losses = _to_losses(log_probability, feasible, _most_added(logit_lengths, label_lengths, delay_penalty))
    return losses, (logits, norms, occupancies, symbols, counted)


def _losses_backward(
    blank_id: int, delay_penalty: float, residuals: Residuals, cotangent: Array
) -> tuple[Array, None, None, None]:
    """Computes the gradient, equation 16: softmax minus occupancies; exactly 0 in padding and in infeasible rows."""
    logits, norms, occupancies, symbols, counted = residuals
    scale, counted = cotangent[:, None, None], counted[..., None]
    log_probs = _normalised(logits, *(norm[..., None] for norm in norms))
    expected = jnp.where(counted, scale * jnp.exp(log_probs), 0)
    gradient = _subtract(expected, jnp.where(counted, scale * occupancies, 0), symbols)
    return gradient.astype(logits.dtype), None, None, None


_losses.defvjp(_losses_forward, _losses_backward)


def _symbols(labels: Array, label_lengths: Array, blank_id: int) -> Array:
    """Returns the labels between two blanks, `[B U+2]`; padding of the labels is replaced by the blank."""
    labels = jnp.where(length_mask(label_lengths, labels.shape[1]), labels, blank_id)
    return jnp.pad(labels, ((0, 0), (1, 1)), constant_values=blank_id)


def _emissions(
    logits: Array, logit_lengths: Array, labels: Array, label_lengths: Array, blank_id: int
) -> tuple[Norms, Array]:
    """Returns the two norms `[B T]` of `_normalised`, and log-probabilities of `_symbols` `[T B U+2]`.

    Padding frames emit the blank with probability 1, which does not change the states: the forward direction carries
    its result through them to the end, and the backward direction passes them before its first valid frame.
    """
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    symbols = _symbols(labels, label_lengths, blank_id)
    largest = logits.max(axis=-1).astype(dtype)
    largest = jnp.where(jnp.isfinite(largest), largest, 0)
    norms = largest, jnp.log(jnp.exp(logits.astype(dtype) - largest[..., None]).sum(axis=-1))
    pick = jax.vmap(lambda row, ids: row.at[:, ids].get(mode="fill", fill_value=jnp.nan), out_axes=1)
    picked = _normalised(pick(logits, symbols), *(norm.T[..., None] for norm in norms))
    frames = length_mask(logit_lengths, logits.shape[1]).T[..., None]
    column = jnp.arange(symbols.shape[1])[None]
    blank = (column == 0) | (column == symbols.shape[1] - 1)
    used = blank | (column <= label_lengths[:, None])
    padding = jnp.where(blank, 0, NEVER).astype(dtype)[None]
    emissions = jnp.where(frames & used[None], jnp.maximum(picked, NEVER), padding)
    return norms, lax.optimization_barrier(emissions)  # otherwise XLA repeats the gather for each use


def _normalised(logits: Array, largest: Array, log_sum: Array) -> Array:
    """Returns log-probabilities for logits, the frame's largest logit and the logarithm of Σ exp(logit - largest).

    The largest logit is subtracted first, which is exact for logits near it. The sum of both norms would be rounded to
    the precision of the logits.
    """
    return (logits.astype(log_sum.dtype) - largest) - log_sum


def _with_penalty(emissions: Array, label_lengths: Array, delay_penalty: float) -> tuple[Array, Array | None]:
    """Returns the emissions with the delay penalty of labels, and the penalty of blanks after 0..U labels `[B U+1]`.

    A label that begins at frame t is still to come in t frames. Each of these frames has the penalty -λ for it. After
    the last label there is none, and none in padding.
    """
    if not delay_penalty:
        return emissions, None
    still_to_come = jnp.maximum(label_lengths[:, None] - jnp.arange(emissions.shape[2] - 1)[None], 0)
    waiting = (-delay_penalty * still_to_come).astype(emissions.dtype)
    return emissions + jnp.pad(waiting[:, 1:], ((0, 0), (1, 1)))[None], waiting


def _most_added(logit_lengths: Array, label_lengths: Array, delay_penalty: float) -> Array | None:
    """Returns λ · U · (T - 1) / 2 `[B]`: what the delay penalty adds for labels that all begin at frame 0."""
    return delay_penalty * label_lengths * ((logit_lengths - 1) / 2) if delay_penalty else None


def _to_losses(log_probability: Array, feasible: Array, added: Array | None) -> Array:
    """Returns losses: infinity if logits of -inf exclude every path, and 0 for infeasible rows.

    Args:
        added: Value to add to the logarithm. None: it is 0, and losses are not negative.
    """
    excluded = log_probability < NEVER / 2
    losses = jnp.maximum(-log_probability, 0) if added is None else -(log_probability + added)
    return jnp.where(feasible, jnp.where(excluded, jnp.inf, losses.astype(log_probability.dtype)), 0)


def _occupancies(blanks: Array, entered: Array, emissions: Array, waiting: Array | None) -> Array:
    """Returns the probability, given the labels, of the blank (column 0) and of each label: `[T B U+1]`, from (14)."""
    blank = blanks[:, 0] + blanks[::-1, 1, :, ::-1] + emissions[..., :1]
    if waiting is not None:
        blank += waiting[None]
    label = entered[:, 0, :, 1:] + entered[::-1, 1, :, :0:-1] + emissions[..., 1:]
    # A softmax over both kinds of states; concatenating them first takes several times the memory and the time.
    largest = jnp.maximum(blank.max(-1), label.max(-1, initial=NEVER))[..., None]
    blank, label = jnp.exp(blank - largest).sum(-1, keepdims=True), jnp.exp(label - largest)
    total = blank + label.sum(-1, keepdims=True)
    return jnp.concatenate([blank / total, label / total], axis=-1)


def _subtract(expected: Array, occupancies: Array, symbols: Array) -> Array:
    """Subtracts the occupancies `[B T N]` of symbols `[B N]`, which can repeat, from `expected` `[B T V]`."""
    if expected.shape[-1] <= ONE_HOT_VOCABULARY:
        return _subtract_product(expected, occupancies, symbols)
    # On other platforms than CPUs a scatter adds in an order that changes from run to run, and the product is cheap.
    return lax.platform_dependent(expected, occupancies, symbols, cpu=_subtract_scatter, default=_subtract_product)


def _subtract_product(expected: Array, occupancies: Array, symbols: Array) -> Array:
    one_hot = jax.nn.one_hot(symbols, expected.shape[-1], dtype=expected.dtype)
    return expected - jnp.einsum("btn,bnv->btv", occupancies, one_hot, precision=lax.Precision.HIGHEST)


def _subtract_scatter(expected: Array, occupancies: Array, symbols: Array) -> Array:
    return jax.vmap(lambda row, less, ids: row.at[:, ids].add(-less))(expected, occupancies, symbols)

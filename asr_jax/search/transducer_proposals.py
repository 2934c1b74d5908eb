"""Candidates of the next step of the beam search of transducers, by the prediction network and the joint network."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from asr_jax.search.ctc_beam_state import NEVER
from asr_jax.search.transducer_beam_state import FrameBeam, Nodes, Proposal, TransducerFrames


def blank_durations(durations: Sequence[int]) -> tuple[int, ...]:
    """Returns the numbers of frames that a blank can consume, for the durations of labels; none for RNN-T."""
    return tuple(each for each in durations if each) or (1,)


def propose(
    beam: FrameBeam,
    nodes: Nodes,
    slots: Int[Array, "R P"],
    frames: TransducerFrames,
    *,
    num_candidates: int,
    least: float,
    scaled: Callable[[Array], Array],
) -> tuple[FrameBeam, Nodes, Proposal]:
    """Computes the prediction network for pending labels, and the joint network at the current frames.

    Args:
        nodes: Tree of labels.
        slots: Slots of the hypotheses whose candidates are computed.
        num_candidates: Largest number K of labels, of which the blank may be one, or of their pairs with a duration.
        least: Labels whose log-probability is lower than the largest one plus this (negative) number are no candidates.
        scaled: Returns the logits with temperature and penalties.

    Returns:
        The beam without pending labels in `slots`, the tree with these labels, and the candidates. Rows without a
        further frame keep their pending labels.
    """
    beam, nodes = _with_predictions(beam, nodes, slots, frames)
    networks, row = frames.networks, jnp.arange(len(slots))[:, None]
    values = frames.values[row, jnp.minimum(beam.frame, frames.values.shape[1] - 1)[:, None]]
    projected = beam.hypotheses.predicted["projected"][row, slots]
    logits = scaled(networks.apply(frames.variables, values, projected, method="logits"))
    num_labels = logits.shape[-1] - len(networks.durations)
    labels, durations = logits[..., :num_labels], logits[..., num_labels:]
    norm = jax.nn.logsumexp(labels, axis=-1)
    without_blank = jax.nn.logsumexp(labels.at[..., networks.blank_id].set(NEVER), axis=-1)
    best, tokens = jax.lax.top_k(labels, min(num_candidates, num_labels))
    best = best - norm[..., None]
    is_candidate = (tokens != networks.blank_id) & (best >= best.max(-1, keepdims=True) + least)
    is_candidate &= jnp.isfinite(best)
    of_labels = jnp.where(is_candidate, best + (norm - without_blank)[..., None], NEVER)
    best = jnp.where(is_candidate, best, NEVER)
    blank = (labels[..., networks.blank_id] - norm)[..., None]
    blank, tokens = jnp.where(jnp.isfinite(blank), blank, NEVER), tokens.astype(jnp.int32)
    if networks.durations:
        of_durations = jax.nn.log_softmax(durations, axis=-1)
        num = min(num_candidates, tokens.shape[-1] * len(networks.durations))
        given = (slots, blank, tokens, best, of_labels, of_durations, networks.durations, num)
        return beam, nodes, _with_durations(*given)
    return beam, nodes, Proposal(slots, blank, tokens, jnp.zeros_like(tokens), best, of_labels)


def _with_durations(
    slots: Int[Array, "R P"],
    blank: Float[Array, "R P 1"],
    tokens: Int[Array, "R P V"],
    values: Float[Array, "R P V"],
    of_labels: Float[Array, "R P V"],
    of_durations: Float[Array, "R P D"],
    durations: Sequence[int],
    num: int,
) -> Proposal:
    """Returns blanks with their durations, and the likeliest pairs of a label and a duration.

    Args:
        blank: Log-probability of the blank.
        values: Log-probabilities of labels.
        of_labels: Log-probabilities of labels among all labels but the blank.
        of_durations: Log-probability of each duration.
        num: Number of pairs.
    """
    of_durations = jnp.where(jnp.isfinite(of_durations), of_durations, NEVER)
    pairs = (values[..., None] + of_durations[..., None, :]).reshape(*values.shape[:-1], -1)
    best, index = jax.lax.top_k(pairs, num)
    place, duration = jnp.divmod(index, len(durations))
    return Proposal(
        slots=slots,
        blanks=blank + of_durations[..., jnp.array([place for place, each in enumerate(durations) if each])],
        tokens=jnp.take_along_axis(tokens, place, axis=-1),
        durations=jnp.asarray(durations, jnp.int32)[duration],
        values=best,
        of_labels=jnp.take_along_axis(of_labels, place, axis=-1),
    )


def _with_predictions(
    beam: FrameBeam, nodes: Nodes, slots: Int[Array, "R P"], frames: TransducerFrames
) -> tuple[FrameBeam, Nodes]:
    """Computes the prediction network for the pending labels in `slots`, and adds these labels to the tree."""
    hypotheses, networks, row = beam.hypotheses, frames.networks, jnp.arange(len(slots))[:, None]
    small = jax.tree.map(lambda each: each[row, slots], hypotheses.replace(predicted=()))
    before = jax.tree.map(lambda each: each[row, slots], hypotheses.predicted)
    num_slots, size = hypotheses.log_prob.shape[1], nodes.before.shape[1]
    is_new = (small.pending >= 0) & (beam.frame < frames.lengths)[:, None]
    # One step of a frame extends all slots, or each of at most `num_slots` steps extends one.
    place = (beam.frame * num_slots + beam.num_extended)[:, None] + jnp.arange(slots.shape[1])[None]
    column = jnp.where(is_new, place, size)  # mode="drop" ignores this index
    of_labels = (small.node, small.pending, small.since, jnp.maximum(small.reached, small.since + 1))
    of_nodes = (nodes.before, nodes.token, nodes.start, nodes.end, nodes.log_prob)
    nodes = Nodes(
        *(
            old.at[row, column].set(new, mode="drop")
            for old, new in zip(of_nodes, (*of_labels, small.label_log_prob), strict=True)
        )
    )

    def advance(before: Any) -> Any:
        flat = jax.tree.map(lambda each: each.reshape(-1, *each.shape[2:]), before)
        after = networks.apply(frames.variables, flat, jnp.maximum(small.pending, 0).reshape(-1), method="advance")
        return jax.tree.map(
            lambda new, old: jnp.where(
                is_new.reshape(*is_new.shape, *(1,) * (old.ndim - 2)), new.reshape(old.shape).astype(old.dtype), old
            ),
            after,
            before,
        )

    predicted = jax.lax.cond(is_new.any(), advance, lambda before: before, before)
    hypotheses = hypotheses.replace(
        predicted=jax.tree.map(lambda all, some: all.at[row, slots].set(some), hypotheses.predicted, predicted),
        node=hypotheses.node.at[row, slots].set(jnp.where(is_new, place, small.node)),
        pending=hypotheses.pending.at[row, slots].set(jnp.where(is_new, -1, small.pending)),
    )
    return beam.replace(hypotheses=hypotheses), nodes

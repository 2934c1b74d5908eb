"""One step of the beam search of transducers, for one row: a frame, or a hypothesis of a frame.

With one label per frame at most, a step extends all hypotheses by the blank or by a label, as icefall's modified beam
search. With several, a step extends the best hypothesis that has no blank in its frame, until as many hypotheses with
their blank as the beam is wide are better than all others. Source: Graves 2012 (arXiv:1211.3711), algorithm 1, without
its sum over prefixes, as in icefall's beam_search and in CAIMAN-ASR.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, UInt32

from asr_jax.search.ctc_beam_state import NEVER
from asr_jax.search.transducer_beam_state import Beam, Moves, Proposal, Texts
from asr_jax.search.word_tables import Words, WordTables, grown_words


def extend_all(
    beam: Beam, proposal: Proposal, is_there: Bool[Array, ""], words: Words, texts: Texts, *, least: float, start: int
) -> tuple[Beam, Moves]:
    """Extends all hypotheses of a row by the blank or one label, and keeps the best.

    As in icefall, equal sequences are merged after the best ones are chosen, so that fewer may remain.

    Args:
        beam: Hypotheses of one row.
        proposal: Candidates of all hypotheses.
        is_there: Whether the row has the frame.
        words: Word scores of each hypothesis extended by each candidate.
        texts: Hash functions.
        least: Hypotheses whose score per label is lower than the best one plus this (negative) number are pruned.
        start: Number of labels before the first one.
    """
    num_slots, num_tokens = proposal.tokens.shape
    stay, grow = beam.log_prob + proposal.blank, beam.log_prob[:, None] + proposal.values
    scores = jnp.concatenate([stay + beam.words.extra, (grow + words.extra).reshape(-1)])
    scores, index = jax.lax.top_k(_without_nan(scores), num_slots)
    is_new = index >= num_slots
    column = (index - num_slots) % num_tokens
    source = jnp.where(is_new, (index - num_slots) // num_tokens, index)
    before = jax.tree.map(lambda each: each[source], beam.replace(frame=jnp.zeros_like(source)))
    token = proposal.tokens[source, column]
    longer, is_border = texts.longer(before.prefix, before.is_border, token)
    prefix = jnp.where(is_new[:, None], longer, before.prefix)
    totals, is_first = merged(scores, prefix)
    of_words = jax.tree.map(lambda new, old: jnp.where(is_new, new[source, column], old), words, before.words)
    log_prob = jnp.where(is_new, grow[source, column], stay[source])
    length = before.length + is_new
    after = before.replace(
        log_prob=_pruned(jnp.where(is_first, log_prob + totals - scores, NEVER), of_words, length + start, least),
        prefix=prefix,
        is_border=jnp.where(is_new, is_border, before.is_border),
        words=of_words,
        length=length,
        pending=jnp.where(is_new, token, -1),
        since=jnp.where(is_new, beam.frame, before.since),
        label_log_prob=jnp.where(is_new, proposal.values[source, column], before.label_log_prob),
        frame=beam.frame + 1,
    )
    moves = Moves(source, jnp.where(is_new, token, -1))
    return jax.tree.map(lambda new, old: jnp.where(is_there, new, old), (after, moves), (beam, _unmoved(beam)))


def extend_best(
    beam: Beam,
    proposal: Proposal,
    is_there: Bool[Array, ""],
    words: Words,
    texts: Texts,
    *,
    width: int,
    max_symbols: int,
    least: float,
    start: int,
) -> tuple[Beam, Moves]:
    """Extends one hypothesis of a row by the blank and by labels, and ends the frame if its hypotheses are found.

    New hypotheses replace the worst that have no blank, if there is no other place.

    Args:
        beam: Hypotheses of one row, with and without their blank in the current frame.
        proposal: Candidates of the best hypothesis without a blank.
        is_there: Whether the row has the frame.
        words: Word scores of the hypothesis extended by each candidate.
        texts: Hash functions.
        width: Number of hypotheses that continue to the next frame.
        max_symbols: Largest number of labels of a frame.
        least: Hypotheses whose score per label is lower than the best one plus this (negative) number are pruned.
        start: Number of labels before the first one.
    """
    num_slots, i, tokens = len(beam.log_prob), proposal.slots[0], proposal.tokens[0]
    num_tokens = len(tokens)
    values = jnp.where(is_there & (beam.at_frame[i] < max_symbols), proposal.values[0], NEVER)
    grow = beam.log_prob[i] + values
    prefix, is_border = texts.longer(
        jnp.broadcast_to(beam.prefix[i][None], (num_tokens, 2)), jnp.broadcast_to(beam.is_border[i], num_tokens), tokens
    )

    # The blank. An equal sequence that came from another hypothesis has its place already.
    ended = beam.log_prob[i] + proposal.blank[0]
    is_twin = beam.is_done & (beam.log_prob > NEVER) & _equal(beam.prefix, beam.prefix[i][None])
    has_twin, twin = is_twin.any(), is_twin.argmax()
    to = jnp.where(has_twin, twin, i)
    log_prob = beam.log_prob.at[i].set(NEVER)
    log_prob = log_prob.at[to].set(jnp.logaddexp(log_prob[to], ended))
    node, is_done = beam.node[to], beam.is_done.at[i].set(~has_twin)

    # Labels. Sequences that are there without a blank get the probability; others get a place.
    scores, is_first = merged(_without_nan(grow + words.extra[0]), prefix)
    scores = jnp.where(is_first, scores, NEVER)
    is_open = (log_prob > NEVER) & ~is_done
    is_same = is_open[None] & _equal(prefix[:, None], beam.prefix[None])
    is_there_already, old = is_same.any(1), is_same.argmax(1)
    extra = beam.words.extra
    more = jnp.logaddexp(log_prob[old], scores - extra[old])
    log_prob = log_prob.at[jnp.where(is_there_already & is_first, old, num_slots)].set(more, mode="drop")
    scores = jnp.where(is_there_already, NEVER, scores)
    open_scores = jnp.where(is_done, jnp.inf, jnp.where(log_prob > NEVER, log_prob + extra, NEVER))
    lowest, place = jax.lax.top_k(-open_scores, num_tokens)
    scores, column = jax.lax.top_k(scores, num_tokens)
    to = jnp.where(scores > -lowest, place, num_slots)
    of_words = jax.tree.map(lambda each: each[0, column], words)

    def placed(old: Array, new: Array) -> Array:
        return old.at[to].set(jnp.broadcast_to(new, (num_tokens, *old.shape[1:])), mode="drop")

    after = beam.replace(
        log_prob=placed(log_prob, scores - of_words.extra),
        prefix=placed(beam.prefix, prefix[column]),
        is_border=placed(beam.is_border, is_border[column]),
        words=jax.tree.map(placed, beam.words, of_words),
        length=placed(beam.length, beam.length[i] + 1),
        node=placed(beam.node, node),
        pending=placed(beam.pending, tokens[column]),
        since=placed(beam.since, beam.frame),
        label_log_prob=placed(beam.label_log_prob, proposal.values[0, column]),
        is_done=placed(is_done, jnp.array(False)),
        at_frame=placed(beam.at_frame, beam.at_frame[i] + 1),
        predicted=beam.predicted,
    )
    score = jnp.where(after.log_prob > NEVER, after.score, NEVER)
    is_open = (score > NEVER) & ~after.is_done
    best_open = jnp.where(is_open, score, NEVER).max()
    is_better = after.is_done & (score > best_open)
    has_ended = (is_better.sum() >= width) | ~is_open.any()
    _, chosen = jax.lax.top_k(jnp.where(after.is_done, score, NEVER), width)
    is_kept = jnp.zeros(num_slots, bool).at[chosen].set(True) & after.is_done
    kept = _pruned(jnp.where(is_kept, after.log_prob, NEVER), after.words, after.length + start, least)
    after = after.replace(
        log_prob=jnp.where(has_ended, kept, after.log_prob),
        is_done=after.is_done & ~has_ended,
        at_frame=jnp.where(has_ended, 0, after.at_frame),
        frame=beam.frame + has_ended,
    )
    # The states of the prediction network are large. They are written to their places alone, and only if there is one.
    small = jax.tree.map(
        lambda new, old: jnp.where(is_there, new, old), after.replace(predicted=()), beam.replace(predicted=())
    )
    after = small.replace(predicted=jax.tree.map(lambda each: placed(each, each[i][None]), beam.predicted))
    source, token = _unmoved(beam)
    return after, Moves(placed(source, i), placed(token, tokens[column]))


def grown(words: Words, proposal: Proposal, tables: WordTables | None, given: Float[Array, "..."] | None) -> Words:
    """Returns the word scores of each proposed hypothesis of a row, extended by each candidate.

    Args:
        words: Word scores of all hypotheses of a row.
        proposal: Candidates.
        tables: Tables of word scores. None: words do not change the score.
        given: With tables, the score [S] that the open word of each hypothesis adds if it ends; None: that of the
            tables. Without tables, the score [P K] that each candidate adds; None: 0.
    """
    shape, slots = proposal.tokens.shape, proposal.slots
    pairs = jax.tree.map(lambda each: jnp.broadcast_to(each[slots][:, None], shape), words)
    if tables is None:
        return pairs if given is None else pairs.replace(added=pairs.added + given)
    closing = None if given is None else jnp.broadcast_to(given[slots][:, None], shape)
    return grown_words(pairs, proposal.tokens, tables, closing)


def merged(scores: Float[Array, " N"], prefix: UInt32[Array, "N 2"]) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """Returns for each hypothesis the combined score of all equal ones, and whether it is the best of them."""
    is_used = scores > NEVER
    is_same = is_used[:, None] & is_used[None] & _equal(prefix[:, None], prefix[None])
    of_same = jnp.where(is_same, scores[None], NEVER)
    best = of_same.max(1)
    total = jnp.where(is_used, best, 0.0) + jnp.log(jnp.exp(of_same - jnp.where(is_used, best, 0.0)[:, None]).sum(1))
    return total, is_used & (of_same.argmax(1) == jnp.arange(len(scores)))


def _equal(a: Array, b: Array) -> Array:
    return (a == b).all(-1)


def _pruned(log_prob: Float[Array, " S"], words: Words, length: Int[Array, " S"], least: float) -> Float[Array, " S"]:
    """Returns the log-probabilities, with minus infinity for hypotheses whose score per label is too low."""
    per_label = jnp.where(log_prob > NEVER, (log_prob + words.extra) / length, NEVER)
    return jnp.where(per_label >= per_label.max() + least, log_prob, NEVER)


def _without_nan(scores: Float[Array, " N"]) -> Float[Array, " N"]:
    return jnp.where(jnp.isnan(scores), NEVER, scores)


def _unmoved(beam: Beam) -> Moves:
    return Moves(jnp.arange(len(beam.log_prob)), jnp.full(len(beam.log_prob), -1))

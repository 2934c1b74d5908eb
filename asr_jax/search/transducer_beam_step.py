"""One step of the beam search of transducers, for one row: a frame, or a hypothesis of a frame.

With one label per frame at most, a step extends all hypotheses by the blank or by a label, as icefall's modified beam
search. With several, a step extends the best hypothesis of the frame, until as many hypotheses that wait for later
frames as the beam is wide are better than all others. Source: Graves 2012 (arXiv:1211.3711), algorithm 1, without its
sum over prefixes, as in icefall's beam_search and in CAIMAN-ASR.

A blank leads a hypothesis of RNN-T to the next frame, where it waits for the others, and a label leaves it in its
frame. Blanks and labels of TDT have durations, which lead it further, and hypotheses are at different frames: two are
equal if their frames are equal too.

Source for TDT: NeMo's `default_beam_search` (`tdt_beam_decoding.py` at commit 8cfedd72). With several labels per frame,
lists and log-probabilities equal NeMo's, except for what these differences change:

- NeMo extends a hypothesis by as many pairs of a label and a duration, and by as many durations of the blank, as the
  beam is wide. Here, there may be one more pair, and the blank has all durations.
- NeMo merges equal hypotheses that wait, but not those in the current frame.
- When NeMo ends a frame early, it keeps all hypotheses that are better than the best one in the frame; here, the best.
- NeMo lets durations exceed the number of frames. Here, they end there, so that hypotheses that differ in nothing else
  are equal.
- NeMo has no limit of labels per frame.

One label per frame with durations is a search of this package: a label of duration 0 then consumes a frame, as in
greedy search. NeMo's adaptive search (maes), which extends all hypotheses for some steps per frame, is not here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, UInt32

from asr_jax.search.ctc_beam_state import NEVER, Moves
from asr_jax.search.transducer_beam_state import FrameBeam, Hypotheses, Proposal, Texts
from asr_jax.search.word_tables import Words, WordTables, grown_words


class StepLimits(NamedTuple):
    """Static settings of a step."""

    blank_durations: tuple[int, ...]
    max_symbols: int
    """Largest number of labels of a frame."""
    width: int
    """Number of hypotheses that continue to the next frame."""
    least: float
    """Hypotheses whose score per label is lower than the best one plus this (negative) number are pruned."""
    start: int
    """Number of labels before the first one."""


class Candidates(NamedTuple):
    """Extensions of P hypotheses of one row by C blanks and labels, or of N chosen ones."""

    token: Int[Array, "*N"]
    """Label; -1 for a blank."""
    log_prob: Float[Array, "*N"]
    """Log-probability of the longer hypothesis."""
    label_log_prob: Float[Array, "*N"]
    reached: Int[Array, "*N"]
    prefix: UInt32[Array, "*N 2"]
    is_border: Bool[Array, "*N"]
    words: Words

    @property
    def score(self) -> Float[Array, "*N"]:
        scores = self.log_prob + self.words.extra
        return jnp.where(jnp.isnan(scores), NEVER, scores)


def extend_all(
    beam: FrameBeam, proposal: Proposal, length: Int[Array, ""], words: Words, texts: Texts, *, limits: StepLimits
) -> tuple[FrameBeam, Moves]:
    """Extends all hypotheses of a row by the blank or one label, and keeps the best.

    As in icefall, equal sequences are merged after the best ones are chosen, so that fewer may remain.

    Args:
        beam: Hypotheses of one row.
        proposal: Candidates of all hypotheses.
        length: Number of frames of the row.
        words: Word scores of each hypothesis extended by each candidate.
        texts: Hash functions.
    """
    found = _candidates(beam, proposal, length, words, texts, limits)
    num_slots, num_candidates = found.token.shape
    scores, index = jax.lax.top_k(found.score.reshape(-1), num_slots)
    source, column = jnp.divmod(index, num_candidates)
    chosen = jax.tree.map(lambda each: each[source, column], found)
    totals, is_first = merged(scores, chosen.prefix, chosen.reached)
    chosen = chosen._replace(log_prob=jnp.where(is_first, chosen.log_prob + totals - scores, NEVER))
    after = _extended(jax.tree.map(lambda each: each[source], beam.hypotheses), chosen, beam.frame)
    after = after.replace(log_prob=_pruned(after, limits))
    moves = Moves(source, chosen.token)
    ended = beam.replace(hypotheses=after, frame=_next_frame(after, length))
    is_there = beam.frame < length
    return jax.tree.map(lambda new, old: jnp.where(is_there, new, old), (ended, moves), (beam, _unmoved(num_slots)))


def extend_best(
    beam: FrameBeam, proposal: Proposal, length: Int[Array, ""], words: Words, texts: Texts, *, limits: StepLimits
) -> tuple[FrameBeam, Moves]:
    """Extends one hypothesis of a row by blanks and by labels, and ends the frame if its hypotheses are found.

    New hypotheses replace the worst, except for the best that wait for later frames, if there is no other place.

    Args:
        beam: Hypotheses of one row, in the current frame and after it.
        proposal: Candidates of the best hypothesis in the current frame.
        length: Number of frames of the row.
        words: Word scores of the hypothesis extended by each candidate.
        texts: Hash functions.
    """
    is_there, i, hypotheses = beam.frame < length, proposal.slots[0], beam.hypotheses
    found = jax.tree.map(lambda each: each[0], _candidates(beam, proposal, length, words, texts, limits))
    others = hypotheses.replace(log_prob=hypotheses.log_prob.at[i].set(NEVER))
    scores, is_first = merged(jnp.where(is_there, found.score, NEVER), found.prefix, found.reached)
    log_prob, scores = _added(others, found, jnp.where(is_first, scores, NEVER))
    others = others.replace(log_prob=log_prob)
    to, column = _places(others, scores, beam.frame, limits.width)
    chosen = jax.tree.map(lambda each: each[column], found)
    chosen = chosen._replace(log_prob=scores[column] - chosen.words.extra)
    # The states of the prediction network are large. They are written to their places alone.
    before = jax.tree.map(
        lambda each: jnp.broadcast_to(each[i][None], (len(to), *each.shape[1:])), hypotheses.replace(predicted=())
    )
    after = jax.tree.map(
        lambda old, new: old.at[to].set(new, mode="drop"),
        others.replace(predicted=()),
        _extended(before, chosen, beam.frame),
    )
    ended = _ended(beam.replace(hypotheses=after), length, limits)
    small = beam.replace(hypotheses=hypotheses.replace(predicted=()))
    after = jax.tree.map(lambda new, old: jnp.where(is_there, new, old), ended, small)
    predicted = jax.tree.map(lambda each: each.at[to].set(each[i][None], mode="drop"), hypotheses.predicted)
    source, token = _unmoved(len(hypotheses.log_prob))
    moves = Moves(source.at[to].set(i, mode="drop"), token.at[to].set(chosen.token, mode="drop"))
    return after.replace(hypotheses=after.hypotheses.replace(predicted=predicted)), moves


def grown(words: Words, proposal: Proposal, tables: WordTables | None, given: Float[Array, "..."] | None) -> Words:
    """Returns the word scores of each proposed hypothesis of a row, extended by each label.

    Args:
        words: Word scores of all hypotheses of a row.
        tables: Tables of word scores. None: words do not change the score.
        given: With tables, the score [S] that the open word of each hypothesis adds if it ends; None: that of the
            tables. Without tables, the score [P K] that each label adds; None: 0.
    """
    shape, slots = proposal.tokens.shape, proposal.slots
    pairs = jax.tree.map(lambda each: jnp.broadcast_to(each[slots][:, None], shape), words)
    if tables is None:
        return pairs if given is None else pairs.replace(added=pairs.added + given)
    closing = None if given is None else jnp.broadcast_to(given[slots][:, None], shape)
    return grown_words(pairs, proposal.tokens, tables, closing)


def merged(
    scores: Float[Array, " N"], prefix: UInt32[Array, "N 2"], reached: Int[Array, " N"]
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """Returns for each hypothesis the combined score of all equal ones, and whether it is the best of them.

    Args:
        prefix: Hash of its labels.
    """
    is_used = scores > NEVER
    is_same = (prefix[:, None] == prefix[None]).all(-1) & (reached[:, None] == reached[None])
    of_same = jnp.where(is_used[:, None] & is_used[None] & is_same, scores[None], NEVER)
    best = of_same.max(1)
    total = jnp.where(is_used, best, 0.0) + jnp.log(jnp.exp(of_same - jnp.where(is_used, best, 0.0)[:, None]).sum(1))
    return total, is_used & (of_same.argmax(1) == jnp.arange(len(scores)))


def _candidates(
    beam: FrameBeam, proposal: Proposal, length: Int[Array, ""], words: Words, texts: Texts, limits: StepLimits
) -> Candidates:
    """Returns the extensions of the proposed hypotheses by blanks and labels, in this order.

    A hypothesis that waits for a later frame has itself as its only extension.
    """
    before = jax.tree.map(lambda each: each[proposal.slots], beam.hypotheses.replace(predicted=()))

    def joined(of_blanks: Array, of_labels: Array) -> Array:
        shape = (*proposal.blanks.shape, *of_labels.shape[2:])
        return jnp.concatenate([jnp.broadcast_to(of_blanks, shape), of_labels], axis=1)

    may_grow = before.at_frame < limits.max_symbols
    values = joined(proposal.blanks, jnp.where(may_grow[:, None], proposal.values, NEVER))
    durations = proposal.durations if limits.max_symbols > 1 else jnp.maximum(proposal.durations, 1)
    durations = joined(jnp.array(limits.blank_durations, jnp.int32)[None], durations)
    longer, is_border = texts.longer(before.prefix[:, None], before.is_border[:, None], proposal.tokens)
    waits = (before.reached > beam.frame)[:, None]
    stays = jnp.where(jnp.arange(values.shape[1])[None] == 0, 0.0, NEVER)
    reached = jnp.where(waits, before.reached[:, None], jnp.minimum(beam.frame + durations, length))
    return Candidates(
        token=jnp.where(waits, -1, joined(jnp.array([[-1]]), proposal.tokens)),
        log_prob=before.log_prob[:, None] + jnp.where(waits, stays, values),
        label_log_prob=joined(proposal.blanks, proposal.of_labels),
        reached=reached,
        prefix=joined(before.prefix[:, None], longer),
        is_border=joined(before.is_border[:, None], is_border),
        words=jax.tree.map(lambda old, new: joined(old[:, None], new), before.words, words),
    )


def _extended(before: Hypotheses, chosen: Candidates, frame: Int[Array, ""]) -> Hypotheses:
    """Returns hypotheses that are extended by one candidate each."""
    is_new = chosen.token >= 0
    return before.replace(
        log_prob=chosen.log_prob,
        prefix=chosen.prefix,
        is_border=chosen.is_border,
        words=chosen.words,
        length=before.length + is_new,
        pending=jnp.where(is_new, chosen.token, before.pending),
        since=jnp.where(is_new, frame, before.since),
        label_log_prob=jnp.where(is_new, chosen.label_log_prob, before.label_log_prob),
        reached=chosen.reached,
        at_frame=jnp.where(chosen.reached > frame, 0, before.at_frame + is_new),
    )


def _added(
    hypotheses: Hypotheses, found: Candidates, scores: Float[Array, " C"]
) -> tuple[Float[Array, " S"], Float[Array, " C"]]:
    """Adds the probabilities of candidates to equal hypotheses.

    Args:
        scores: Combined score of equal candidates, at one of them; minus infinity at the others.

    Returns:
        The log-probabilities of the hypotheses, and the scores of the candidates that equal none.
    """
    is_same = (found.prefix[:, None] == hypotheses.prefix[None]).all(-1) & (hypotheses.log_prob > NEVER)[None]
    is_same &= found.reached[:, None] == hypotheses.reached[None]
    is_there, old = is_same.any(1), is_same.argmax(1)
    more = jnp.logaddexp(hypotheses.log_prob[old], scores - hypotheses.words.extra[old])
    to = jnp.where(is_there & (scores > NEVER), old, len(hypotheses.log_prob))  # mode="drop" ignores this index
    return hypotheses.log_prob.at[to].set(more, mode="drop"), jnp.where(is_there, NEVER, scores)


def _places(
    hypotheses: Hypotheses, scores: Float[Array, " C"], frame: Int[Array, ""], width: int
) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
    """Returns the slots for the best new hypotheses, and the column of each in `scores`.

    Slots are those that are unused or have a worse hypothesis, except for the best `width` that wait for later frames.
    The number of slots is returned where there is none.
    """
    num_slots = len(hypotheses.log_prob)
    there = jnp.where(_best_waiting(hypotheses, frame, width), jnp.inf, _scores(hypotheses))
    num = min(len(scores), num_slots)
    lowest, place = jax.lax.top_k(-there, num)
    scores, column = jax.lax.top_k(scores, num)
    return jnp.where(scores > -lowest, place, num_slots), column


def _ended(beam: FrameBeam, length: Int[Array, ""], limits: StepLimits) -> FrameBeam:
    """Ends the frame of a row if enough of the hypotheses that wait are better than those in the frame.

    It also ends after as many steps as there are slots, since each adds a node.
    """
    hypotheses, num_extended = beam.hypotheses, beam.num_extended + 1
    score, waits = _scores(hypotheses), hypotheses.reached > beam.frame
    best_open = jnp.where(waits, NEVER, score).max()
    has_ended = ((waits & (score > best_open)).sum() >= limits.width) | (best_open == NEVER)
    has_ended |= num_extended >= len(score)
    is_kept = _best_waiting(hypotheses, beam.frame, limits.width)
    kept = hypotheses.replace(log_prob=jnp.where(is_kept, hypotheses.log_prob, NEVER))
    kept = kept.replace(log_prob=_pruned(kept, limits))
    return FrameBeam(
        hypotheses.replace(log_prob=jnp.where(has_ended, kept.log_prob, hypotheses.log_prob)),
        frame=jnp.where(has_ended, _next_frame(kept, length), beam.frame),
        num_extended=jnp.where(has_ended, 0, num_extended),
    )


def _best_waiting(hypotheses: Hypotheses, frame: Int[Array, ""], width: int) -> Bool[Array, " S"]:
    """Returns which hypotheses wait for later frames and are among the best `width` that do."""
    waits = hypotheses.reached > frame
    _, chosen = jax.lax.top_k(jnp.where(waits, _scores(hypotheses), NEVER), width)
    return jnp.zeros(len(waits), bool).at[chosen].set(True) & waits & (hypotheses.log_prob > NEVER)


def _next_frame(hypotheses: Hypotheses, length: Int[Array, ""]) -> Int[Array, ""]:
    """Returns the first frame that a hypothesis waits for; `length` if there is none."""
    return jnp.where(hypotheses.log_prob > NEVER, hypotheses.reached, length).min()


def _scores(hypotheses: Hypotheses) -> Float[Array, " S"]:
    return jnp.where(hypotheses.log_prob > NEVER, hypotheses.score, NEVER)


def _pruned(hypotheses: Hypotheses, limits: StepLimits) -> Float[Array, " S"]:
    """Returns the log-probabilities, with minus infinity for hypotheses whose score per label is too low."""
    per_label = _scores(hypotheses) / (hypotheses.length + limits.start)
    return jnp.where(per_label >= per_label.max() + limits.least, hypotheses.log_prob, NEVER)


def _unmoved(num_slots: int) -> Moves:
    return Moves(jnp.arange(num_slots), jnp.full(num_slots, -1))

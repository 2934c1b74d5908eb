"""One frame of the batched prefix beam search for one utterance."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from asr_jax.search.ctc_beam_state import NEVER, BackPointers, Frame, Moves, PrefixBeam, longer
from asr_jax.search.hypotheses import Search
from asr_jax.search.word_tables import WordTables, grown_words

BLANK, LABEL = 0, 1
"""Last label of alignments: indices of `PrefixBeam.endings`."""
Ways = tuple[Array, Array]
"""Log-probabilities, and back-pointers as in `BackPointers.back`."""


def step(
    beam: PrefixBeam,
    frame: Frame,
    *,
    search: Search,
    border: int,
    blank_id: int,
    tables: WordTables | None = None,
    closing: Float[Array, " W"] | None = None,
) -> tuple[PrefixBeam, BackPointers, Moves]:
    """Computes the beam after one frame.

    Args:
        beam: PrefixBeam before the frame.
        frame: Log-probabilities of the frame.
        border: Label that is a word border; -1 if there is none.
        tables: Tables of word scores. None: no fusion.
        closing: Score that each slot's open word adds when it ends. None: the scores in `tables`.

    Returns:
        The new beam, the back-pointers of the frame, and the origin of each prefix.
    """
    beam, was_label = _after_blanks(beam, frame.is_blank_before, search)
    is_border = (beam.last == border) & (border >= 0 and search.merges_borders)
    parents = beam.parents()
    stays, stays_back = _stay(beam, frame, is_border, parents, search, blank_id=blank_id)
    grows = _grow(beam, frame, is_border, parents, search)
    pairs = jax.tree.map(lambda each: jnp.broadcast_to(each[:, None], grows.shape), (beam.words, closing))
    longer_words = grown_words(pairs[0], jnp.broadcast_to(frame.tokens[None], grows.shape), tables, pairs[1])
    merged = stays.max(1) if search.counts_endings else _combined(stays, search)[:, 0]
    source, column, is_new = _best(merged + beam.words.extra, grows + longer_words.extra)

    token, before = frame.tokens[column], jax.tree.map(lambda each: each[source], beam.words)
    words = grown_words(before, token, tables, None if closing is None else closing[source])
    words = jax.tree.map(functools.partial(jnp.where, is_new), words, before)
    stays, stays_back = stays[source], stays_back[source]
    endings = [jnp.where(is_new, NEVER, stays[:, BLANK]), jnp.where(is_new, grows[source, column], stays[:, LABEL])]
    pruned = _prune(jnp.stack(endings, 1), words.extra, search)
    shown = _shown(beam.endings, beam.endings + beam.words.extra[:, None], search)
    grows_back = 2 * source + jnp.where(token == beam.last[source], BLANK, shown[source])
    back = jnp.stack([stays_back[:, BLANK], jnp.where(is_new, grows_back, stays_back[:, LABEL])], 1)
    back = jnp.where((back % 2 == BLANK) & was_label[back // 2], back + 1, back)
    best, is_used = pruned.max(), (pruned > NEVER).any(1)
    moves = Moves(jnp.where(is_used, source, -1), jnp.where(is_new & is_used, token, -1))
    is_longer = moves.token >= 0
    last = jnp.where(is_longer, moves.token, beam.last[source])
    prefix = beam.prefix[source]
    after = PrefixBeam(
        endings=pruned - best,
        last=last,
        prefix=jnp.where(is_longer[:, None], longer(prefix, moves.token), prefix),
        shorter=jnp.where(is_longer[:, None], prefix, beam.shorter[source]),
        words=words.replace(added=words.added - words.added[0]),  # only differences count; small values keep precision
    )
    return after, BackPointers(back=back, last=last, best=best), moves


def _combined(ways: Float[Array, "W N"], search: Search) -> Float[Array, "W 1"]:
    """Returns the combined log-probability of several groups of alignments."""
    combine = jnp.logaddexp if search.alignments == "sum" else jnp.maximum
    return functools.reduce(combine, jnp.split(ways, ways.shape[1], axis=1))


def _shown(ways: Float[Array, "W N"], scores: Float[Array, "W N"], search: Search) -> Int[Array, " W"]:
    """Returns which of several origins of an ending supplies its path.

    Args:
        ways: Log-probabilities by origin.
        scores: Scores of the endings that the origins are.
    """
    if search.shows_likeliest:
        return ways.argmax(1)
    return jnp.where(ways > NEVER, scores, jnp.inf).argmin(1)


def _after_blanks(beam: PrefixBeam, is_any: Bool[Array, ""], search: Search) -> tuple[PrefixBeam, Bool[Array, " W"]]:
    """Returns the beam after skipped frames, in which only the blank was a candidate, if there were any.

    Skipped frames change all log-probabilities by the same amount, so their number does not matter. They combine the
    two endings of each prefix into the one that ends in a blank, and remove prefixes with too low scores.

    Returns:
        The beam, and for each slot whether its path ended in its label before the skipped frames.
    """
    extra = beam.words.extra[:, None]
    total = _combined(beam.endings, search)
    total = jnp.where(total + extra >= (total + extra).max() + search.beam_prune_logp, total, NEVER)
    was_label = _shown(beam.endings, beam.endings + extra, search) == LABEL
    after = jnp.concatenate([total, jnp.full_like(total, NEVER)], 1)
    return beam.replace(endings=jnp.where(is_any, after, beam.endings)), is_any & was_label


def _stay(
    beam: PrefixBeam,
    frame: Frame,
    is_border: Bool[Array, " W"],
    parents: Int[Array, " W"],
    search: Search,
    *,
    blank_id: int,
) -> Ways:
    """Returns the two endings [W 2] of the prefixes in the beam, after a frame that does not extend them.

    Alignments come from the prefix itself, or from its parent if the beam contains the parent as well. `is_border` is
    True for prefixes that a further border leaves unchanged.
    """
    me, parent, has_parent = jnp.arange(len(beam.last)), jnp.maximum(parents, 0), parents >= 0
    repeated = frame.staying[beam.last]  # irrelevant for a last label of -1: no alignment ends in it
    made = jnp.where(has_parent, frame.growing[beam.last], NEVER)
    is_repeat = beam.last[parent] == beam.last
    ways = [
        beam.endings[:, LABEL] + repeated,
        jnp.where(is_border, beam.endings[:, BLANK] + repeated, NEVER),
        beam.endings[parent, BLANK] + made,
        jnp.where(is_repeat, NEVER, beam.endings[parent, LABEL] + made),
    ]
    to_label = jnp.stack(ways, 1)
    from_ending = jnp.stack([2 * me + LABEL, 2 * me + BLANK, 2 * parent + BLANK, 2 * parent + LABEL], 1)
    scores = beam.endings + beam.words.extra[:, None]
    shown = _shown(to_label, scores.reshape(-1)[from_ending], search)
    logps = [_combined(beam.endings, search)[:, 0] + frame.staying[blank_id], _combined(to_label, search)[:, 0]]
    back = [2 * me + _shown(beam.endings, scores, search), from_ending[me, shown]]
    unmoved = jnp.arange(2 * len(me)).reshape(-1, 2)
    return (
        jnp.where(frame.is_there, jnp.stack(logps, 1), beam.endings),
        jnp.where(frame.is_there, jnp.stack(back, 1), unmoved),
    )


def _grow(
    beam: PrefixBeam, frame: Frame, is_border: Bool[Array, " W"], parents: Int[Array, " W"], search: Search
) -> Float[Array, "W K"]:
    """Returns the log-probabilities of each prefix extended by each label.

    They are minus infinity for results that are in the beam already, which `_stay` computes. Alignments that end in a
    label are not extended by the same label, which would be merged with it.
    """
    width, num_tokens = len(beam.last), len(frame.tokens)
    is_repeat = frame.tokens[None] == beam.last[:, None]
    behind_blank = jnp.where(is_border, NEVER, beam.endings[:, BLANK])[:, None]
    logps = jnp.where(is_repeat, behind_blank, _combined(beam.endings, search)) + frame.growing[frame.tokens][None]
    columns = jnp.where(is_repeat, jnp.arange(num_tokens)[None], -1).max(1)  # column of each prefix's last label
    is_there = (parents >= 0) & (columns >= 0)
    return logps.at[jnp.where(is_there, parents, width), columns].set(NEVER, mode="drop")


def _best(staying: Float[Array, " W"], growing: Float[Array, "W K"]) -> tuple[Array, Array, Array]:
    """Returns the best candidates: the slot that each comes from, its column of labels, and whether it was extended."""
    width, num_columns = growing.shape
    _, index = jax.lax.top_k(jnp.concatenate([staying, growing.reshape(-1)]), width)
    is_new = index >= width
    return jnp.where(is_new, (index - width) // num_columns, index), (index - width) % num_columns, is_new


def _prune(endings: Float[Array, "W 2"], extra: Float[Array, " W"], search: Search) -> Float[Array, "W 2"]:
    """Returns the endings, with minus infinity where the score is too low."""
    scores = endings + extra[:, None]
    if not search.counts_endings:
        scores = _combined(scores, search)
    least = scores.max() + search.beam_prune_logp
    if search.counts_endings:
        # min() instead of a slice of top_k's result: for a slice, XLA sorts everything on CPUs, ten times slower
        least = jnp.maximum(least, jax.lax.top_k(scores.reshape(-1), len(extra))[0].min())
    return jnp.where((scores >= least) & (scores > NEVER), endings, NEVER)

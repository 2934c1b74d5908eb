"""One frame of the prefix beam search of one utterance, on static shapes. `ctc_beam` runs it over batches and frames.

How equal prefixes are found, exactly: every slot of the beam holds the labels of its prefix, and `begins[a, b]` says
whether prefix a is the begin of prefix b. Both are kept up to date by comparing labels, never by hashes. A prefix that
would be made by putting label c behind prefix a is already there as b if and only if a is the begin of b, b is one
label longer, and that label is c: then the probability goes to b, and no second slot is made.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, Int32

from asr_jax.decoding.hypotheses import Search
from asr_jax.decoding.word_tables import NO_WORD, WordTables, open_scores, spell

NEVER = -jnp.inf


class Beam(struct.PyTreeNode):
    """The prefixes of one utterance in W slots, no two of them equal. A slot that is not in use never scores."""

    blank: Float[Array, " W"]
    """Log-probability of the alignments that end in a blank, less what `Step.best` sums up to."""
    label: Float[Array, " W"]
    """Of those that end in the prefix's last label."""
    last: Int32[Array, " W"]
    """The last label; of the empty prefix the border, or -1 in a vocabulary without one."""
    labels: Int[Array, "W U"]
    num_labels: Int32[Array, " W"]
    begins: Bool[Array, "W W"]
    """Whether a prefix is the begin of another one, or that one itself."""
    node: Int32[Array, " W"]
    """Of the word tables: which beginning of a word the open word is."""
    num_letters: Int32[Array, " W"]
    """Of the open word."""
    added: Float[Array, " W"]
    """By finished words."""


class Frame(NamedTuple):
    """One frame of one utterance, or none."""

    staying: Float[Array, " V"]
    """Log-probabilities of symbols that leave a prefix as it is."""
    growing: Float[Array, " V"]
    """Log-probabilities of labels that make a prefix longer; minus infinity for the blank, for labels that are left
    out, and for all where there is no frame."""
    tokens: Int32[Array, " K"]
    """The labels among which all others than these are minus infinity."""
    is_there: Bool[Array, ""]
    is_blank_before: Bool[Array, ""]
    """Whether there were frames before in which nothing but the blank was looked at."""


class Step(struct.PyTreeNode):
    """What is needed to find the way back."""

    back: Int[Array, "W 2"]
    """Twice the slot that a slot's alignments came from, and 1 where these ended in a label; for alignments that end in
    a blank, and for those that end in a label."""
    last: Int[Array, " W"]
    best: Float[Array, ""]
    """The best score of the frame, which was taken off all."""


def start(search: Search, *, max_labels: int, vocab_size: int, border: int) -> Beam:
    """The empty prefix, as though a border stood before the first frame; `border` -1: there is none."""
    width = search.beam_width
    is_first = jnp.arange(width) == 0
    never, first = jnp.full(width, NEVER), jnp.where(is_first, 0.0, NEVER)
    none = jnp.zeros(width, jnp.int32)
    return Beam(
        blank=first if border < 0 else never,
        label=never if border < 0 else first,
        last=jnp.full(width, border, jnp.int32),
        labels=jnp.zeros((width, max_labels), jnp.int16 if vocab_size < 2**15 else jnp.int32),
        num_labels=none,
        begins=is_first[:, None] & is_first,
        node=none,
        num_letters=none,
        added=jnp.zeros(width),
    )


def step(
    beam: Beam,
    frame: Frame,
    *,
    search: Search,
    border: int,
    blank_id: int,
    tables: WordTables | None = None,
    closing: Float[Array, " W"] | None = None,
) -> tuple[Beam, Step, Int32[Array, " W"], Int32[Array, " W"]]:
    """The beam after one frame; also which slot each slot's prefix comes from, and the label that it has more, or -1.

    `closing`: what each slot's open word adds when it ends.
    """
    extra = beam.added + _open(tables, beam.node, beam.num_letters)
    beam, was_label = _after_blanks(beam, frame.is_blank_before, extra, search)
    parent = beam.begins & (beam.num_labels[:, None] + 1 == beam.num_labels)
    stays, stays_back = _stay(beam, frame, parent, extra, search, border=border, blank_id=blank_id)
    grows, grows_back = _grow(beam, frame, parent, extra, search, border=border)
    node, num_letters, added = _grown_words(beam, frame.tokens, tables, closing)
    merged = stays.max(1) if search.counts == "endings" else _combine(search, stays[:, 0], stays[:, 1])
    grown_score = grows + added + _open(tables, node, num_letters)
    source, column, is_new = _best_slots(merged + extra, grown_score)

    def chosen(staying: Array, growing: Array) -> Array:
        return jnp.where(is_new, growing[source, column], staying[source])

    node, num_letters = chosen(beam.node, node), chosen(beam.num_letters, num_letters)
    added = chosen(beam.added, added)
    never = jnp.full_like(grows, NEVER)
    endings = jnp.stack([chosen(stays[:, 0], never), chosen(stays[:, 1], grows)], axis=1)
    endings = _prune(endings, added + _open(tables, node, num_letters), search)
    is_used = (endings > NEVER).any(1)
    token = jnp.where(is_new & is_used, frame.tokens[column], -1)
    best = endings.max()
    back = jnp.stack([stays_back[source, 0], chosen(stays_back[:, 1], grows_back)], axis=1)
    back = back + ((back % 2 == 0) & was_label[back // 2])
    after = Beam(
        blank=endings[:, 0] - best,
        label=endings[:, 1] - best,
        last=jnp.where(token < 0, beam.last[source], token),
        labels=_longer(beam, source, token),
        num_labels=beam.num_labels[source] + is_new,
        begins=_begins(beam, source, token) & is_used & is_used[:, None],
        node=node,
        num_letters=num_letters,
        added=added - added[0],
    )
    return after, Step(back=back, last=after.last, best=best), source, token


def _combine(search: Search, *ways: Array) -> Array:
    return functools.reduce(jnp.logaddexp if search.alignments == "sum" else jnp.maximum, ways)


def _choose(logps: Array, ranks: Array, search: Search) -> Array:
    """Which of several ways to the same ending (the first axis) it takes its frames from. `ranks`: scores of what these
    come from."""
    if search.frames == "likeliest":
        return logps.argmax(0)
    return jnp.where(logps > NEVER, ranks, jnp.inf).argmin(0)


def _after_blanks(beam: Beam, is_any: Array, extra: Array, search: Search) -> tuple[Beam, Array]:
    """The beam after frames in which nothing but the blank was looked at: how many makes no difference but to all
    scores alike. Also whether a slot's frames are of the alignments that ended in its label before."""
    endings = jnp.stack([beam.blank, beam.label])
    total = _combine(search, beam.blank, beam.label)
    total = jnp.where(total + extra >= (total + extra).max() + search.beam_prune_logp, total, NEVER)
    was_label = _choose(endings, endings + extra, search) == 1
    blank, label = jnp.where(is_any, total, beam.blank), jnp.where(is_any, NEVER, beam.label)
    return beam.replace(blank=blank, label=label), is_any & was_label


def _stay(
    beam: Beam, frame: Frame, parent: Array, extra: Array, search: Search, *, border: int, blank_id: int
) -> tuple[Float[Array, "W 2"], Int32[Array, "W 2"]]:
    """Log-probabilities of prefixes that stay as they are, ending in a blank and in their last label, and where they
    come from. A prefix whose parent is in the beam comes from that too, by its last label."""
    me, before, has_parent = jnp.arange(len(beam.last)), parent.argmax(0), parent.any(0)
    repeated = frame.staying[beam.last]  # a last label of -1 has no probability to repeat
    made = jnp.where(has_parent, frame.growing[beam.last], NEVER)
    is_border = _is_border(beam, search, border)
    is_repeat = beam.last[before] == beam.last
    blank, label = beam.blank + extra, beam.label + extra
    ways = jnp.stack(
        [
            beam.label + repeated,
            jnp.where(is_border, beam.blank + repeated, NEVER),
            beam.blank[before] + made,
            jnp.where(is_repeat, NEVER, beam.label[before] + made),
        ]
    )
    origins = jnp.stack([2 * me + 1, 2 * me, 2 * before, 2 * before + 1])
    chosen = _choose(ways, jnp.stack([label, blank, blank[before], label[before]]), search)
    was_label = _choose(jnp.stack([beam.blank, beam.label]), jnp.stack([blank, label]), search)
    logps = jnp.stack([_combine(search, beam.blank, beam.label) + frame.staying[blank_id], _combine(search, *ways)], 1)
    back = jnp.stack([2 * me + was_label, origins[chosen, me]], 1)
    unchanged = jnp.stack([beam.blank, beam.label], 1), jnp.stack([2 * me, 2 * me + 1], 1)
    return jnp.where(frame.is_there, logps, unchanged[0]), jnp.where(frame.is_there, back, unchanged[1])


def _grow(
    beam: Beam, frame: Frame, parent: Array, extra: Array, search: Search, *, border: int
) -> tuple[Float[Array, "W K"], Int32[Array, "W K"]]:
    """Log-probabilities of prefixes with one more label, which they end in, and where they come from; those that are in
    the beam already never are."""
    width, num_tokens = len(beam.last), len(frame.tokens)
    repeats = frame.tokens == beam.last[:, None]
    alone = jnp.where(_is_border(beam, search, border), NEVER, beam.blank)
    total = _combine(search, beam.blank, beam.label)
    logp = jnp.where(repeats, alone[:, None], total[:, None]) + frame.growing[frame.tokens]
    column = jnp.where(repeats.any(1), repeats.argmax(1), num_tokens)  # of each slot's last label
    slot = jnp.where(parent.any(0), parent.argmax(0), width)
    is_there = jnp.zeros(logp.shape, bool).at[slot, column].set(True, mode="drop")
    endings = jnp.stack([beam.blank, beam.label])
    was_label = _choose(endings, endings + extra, search)
    back = 2 * jnp.arange(width)[:, None] + jnp.where(repeats, 0, was_label[:, None])
    return jnp.where(is_there, NEVER, logp), back


def _is_border(beam: Beam, search: Search, border: int) -> Bool[Array, " W"]:
    """Whether another border behind a prefix would not be another label."""
    return (beam.last == border) & (border >= 0 and search.same != "labels")


def _open(tables: WordTables | None, node: Array, num_letters: Array) -> Array | float:
    return 0.0 if tables is None else open_scores(tables, node, num_letters)


def _grown_words(
    beam: Beam, tokens: Array, tables: WordTables | None, closing: Array | None
) -> tuple[Int32[Array, "W K"], Int32[Array, "W K"], Float[Array, "W K"]]:
    """Node, number of letters and what words added, of prefixes with one more label."""
    shape = (len(beam.node), len(tokens))
    if tables is None:
        none = jnp.zeros(shape, jnp.int32)
        return none, none, jnp.zeros(shape)
    node, num_letters = spell(tables, tokens, beam.node, beam.num_letters)
    ends = tables.opens[tokens] & (beam.node != NO_WORD)[:, None]
    closing = jnp.zeros(len(beam.node)) if closing is None else closing
    return node, num_letters, beam.added[:, None] + jnp.where(ends, closing[:, None], 0.0)


def _best_slots(staying: Float[Array, " W"], growing: Float[Array, "W K"]) -> tuple[Array, Array, Array]:
    """For the best of all: which slot each comes from, by which column, and whether it grew at all."""
    width, num_columns = growing.shape
    _, index = jax.lax.top_k(jnp.concatenate([staying, growing.reshape(-1)]), width)
    is_new = index >= width
    return jnp.where(is_new, (index - width) // num_columns, index), (index - width) % num_columns, is_new


def _prune(endings: Float[Array, "W 2"], extra: Float[Array, " W"], search: Search) -> Float[Array, "W 2"]:
    """Without what scores too low."""
    scores = endings + extra[:, None]
    if search.counts == "endings":
        least = jnp.maximum(
            jax.lax.top_k(scores.reshape(-1), len(extra))[0].min(), scores.max() + search.beam_prune_logp
        )
    else:
        scores = _combine(search, scores[:, :1], scores[:, 1:])
        least = scores.max() + search.beam_prune_logp
    return jnp.where((scores >= least) & (scores > NEVER), endings, NEVER)


def _longer(beam: Beam, source: Int32[Array, " W"], token: Int32[Array, " W"]) -> Int[Array, "W U"]:
    """The labels of each slot's prefix."""
    is_end = jnp.arange(beam.labels.shape[1]) == beam.num_labels[source][:, None]
    return jnp.where(is_end & (token >= 0)[:, None], token[:, None].astype(beam.labels.dtype), beam.labels[source])


def _begins(beam: Beam, source: Int32[Array, " W"], token: Int32[Array, " W"]) -> Bool[Array, "W W"]:
    """Which of the new prefixes begin which, from what the old ones are: a prefix that stays begins what came of all it
    began; one that grew begins those of them that have its new label behind it, and itself."""
    num_labels = beam.num_labels[source]
    following = beam.labels[source, num_labels[:, None]]  # [x y]: in the prefix of y, the label behind that of x
    has_more = num_labels > num_labels[:, None]
    grew = token[:, None] >= 0
    old = beam.begins[source[:, None], source]
    return (old & (~grew | (has_more & (following == token[:, None])))) | jnp.eye(len(source), dtype=bool)

"""Tables of word beginnings on the device: scores of open words, and transitions by one more label."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int32

from asr_jax.core.errors import UserError
from asr_jax.search.word_scores import USUAL_WORD, WordScores
from asr_jax.text.segmentation import has_unspaced, is_unspaced
from asr_jax.text.spelling import Spelling

MOST_ENTRIES = 1 << 30
"""Largest number of entries of `WordTables.following`: 4 GB."""
NO_WORD = 0
"""Node without an open word."""


class WordTables(struct.PyTreeNode):
    """A prefix tree with one node for each beginning of a listed word.

    The first node has no open word. The last node stands for all beginnings that are not listed, and the node before it
    for a single letter, not listed, of a script without spaces. N: nodes; C: different letters, and two for all other
    letters, of scripts with and without spaces; V: labels; L: letters of the longest label.
    """

    following: Int32[Array, "N C"]
    """Node after one more letter."""
    ends: Bool[Array, "N C"] | None
    """Whether the open word ends before the letter (`WordScores.ends_before`). None: nowhere."""
    open: Float[Array, " N"]
    """Score of an open word; for the last node, of a word with few letters."""
    closing: Float[Array, " N"]
    """Score that a word adds when it ends, without a language model."""
    letters: Int32[Array, "V L"]
    """Letters of each label; -1 beyond its text."""
    opens: Bool[Array, " V"]
    """Whether each label begins a word."""


class Words(struct.PyTreeNode):
    """Word scores of prefixes."""

    node: Int32[Array, "*S"]
    """Node of the open word."""
    num_letters: Int32[Array, "*S"]
    """Number of letters of the open word."""
    added: Float[Array, "*S"]
    """Score of the finished words, less that of the beam's best prefix."""
    open: Float[Array, "*S"]
    """Score of the open word."""

    @property
    def extra(self) -> Float[Array, "*S"]:
        """Score of all words."""
        return self.added + self.open


def word_tables(spelling: Spelling, scores: WordScores) -> WordTables:
    """Builds the tables of all words that `scores` lists.

    Raises:
        UserError: If the tables would be larger than MOST_ENTRIES.
    """
    beginnings = scores.beginnings
    nodes = {"": NO_WORD} | {part: node for node, part in enumerate(beginnings, start=1)}
    letters = {letter: i for i, letter in enumerate(sorted({part[-1] for part in beginnings}))}
    unlisted, num_columns = len(nodes) + 1, len(letters) + 2
    if (unlisted + 1) * num_columns > MOST_ENTRIES:
        raise UserError(
            f"the words of the language model, lexicon and hot words have {len(nodes):,} beginnings and "
            f"{len(letters):,} letters: expected a product of at most {MOST_ENTRIES:,}; use a list of fewer words"
        )
    following = np.full((unlisted + 1, num_columns), unlisted, np.int32)
    for part in beginnings:
        following[nodes[part[:-1]], letters[part[-1]]] = nodes[part]
    ends = None
    if any(has_unspaced(text) for text in (*spelling.texts, *beginnings)):
        following, ends = _with_ends(following, list(beginnings), list(letters))
    most = max(map(len, spelling.texts))
    spelt = [[letters.get(letter, num_columns - 2 + is_unspaced(letter)) for letter in text] for text in spelling.texts]
    listed = [sum(map(scores.by_lists, scores.finished(part))) for part in beginnings]
    none, outside = -math.inf if scores.lexicon else 0.0, scores.outside(1)
    return WordTables(
        following=jnp.asarray(following),
        ends=None if ends is None else jnp.asarray(ends),
        open=jnp.asarray([0.0, *beginnings.values(), outside, outside], jnp.float32),
        closing=jnp.asarray([0.0, *listed, none, none], jnp.float32),
        letters=jnp.asarray([each + [-1] * (most - len(each)) for each in spelt], jnp.int32),
        opens=jnp.asarray(spelling.opens),
    )


def _with_ends(
    following: Int32[np.ndarray, "N C"], beginnings: Sequence[str], letters: Sequence[str]
) -> tuple[Int32[np.ndarray, "N C"], Bool[np.ndarray, "N C"]]:
    """Returns `following` and `ends` of `WordTables` for scripts without spaces.

    Args:
        following: Node after one more letter, as in scripts with spaces.
        beginnings: Beginnings of the nodes between the first and the last two.
        letters: Letters of the columns before the last two.
    """
    unlisted = len(following) - 1
    is_listed = following != unlisted
    of_letters = np.array([*map(is_unspaced, letters), False, True])
    of_nodes = np.array([False, *(is_unspaced(part[-1]) for part in beginnings), True, False])
    ends = ~is_listed & (of_nodes[:, None] | of_letters)
    ends[NO_WORD] = False
    alone = np.where(of_letters, unlisted - 1, unlisted)
    first = np.where(is_listed[NO_WORD], following[NO_WORD], alone).astype(np.int32)
    following[NO_WORD] = first
    return np.where(ends, first, following), ends


def grown_words(
    words: Words, label: Int32[Array, "*S"], tables: WordTables | None, closing: Float[Array, "*S"] | None
) -> Words:
    """Returns the word scores of prefixes that are extended by one label each.

    Args:
        words: Word scores of the prefixes.
        label: Label that is appended to each prefix.
        tables: Tables of word scores. None: words do not change the score.
        closing: Score that each open word adds if it ends. None: the scores in `tables`.
    """
    if tables is None:
        return words
    opens, letters = tables.opens[label], tables.letters[label]
    first = tables.closing[words.node] if closing is None else closing
    added = words.added + jnp.where(opens & (words.node != NO_WORD), first, 0.0)
    node, num_letters = (jnp.where(opens, 0, value) for value in (words.node, words.num_letters))
    for place in range(letters.shape[-1]):
        letter = letters[..., place]
        if tables.ends is not None:
            is_end = (letter >= 0) & tables.ends[node, letter]
            added += jnp.where(is_end, tables.closing[node] if place else first, 0.0)
            num_letters = jnp.where(is_end, 0, num_letters)
        node = jnp.where(letter >= 0, tables.following[node, letter], node)
        num_letters = num_letters + (letter >= 0)
    growth = jnp.where(node == len(tables.open) - 1, jnp.maximum(1.0, num_letters / USUAL_WORD), 1.0)
    return Words(node=node, num_letters=num_letters, added=added, open=tables.open[node] * growth)

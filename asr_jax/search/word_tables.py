"""Beginnings of words as tables on the device: what an open word adds, and which one it becomes by one more label."""

import math

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int32

from asr_jax.search.word_scores import USUAL_WORD, WordScores
from asr_jax.text.spelling import Spelling

NO_WORD = 0
"""The node of no open word."""


class WordTables(struct.PyTreeNode):
    """A prefix tree with a node for each beginning of a listed word. The first is that of no open word, the last that
    of all other beginnings. N nodes, C different letters and one for all others, V labels of up to L letters.
    """

    following: Int32[Array, "N C"]
    """The node of a beginning with one more letter."""
    open: Float[Array, " N"]
    """What an open word adds; of the last node, one of few letters."""
    closing: Float[Array, " N"]
    """What a word adds when it ends, without a language model."""
    letters: Int32[Array, "V L"]
    """-1 beyond the text."""
    opens: Bool[Array, " V"]
    """Whether a label begins a word."""


class Words(struct.PyTreeNode):
    """The words of prefixes."""

    node: Int32[Array, "*S"]
    """Of the open word."""
    num_letters: Int32[Array, "*S"]
    """Of the open word."""
    added: Float[Array, "*S"]
    """By the words that ended, less that of the beam's best prefix."""
    open: Float[Array, "*S"]
    """What the open word adds."""

    @property
    def extra(self) -> Float[Array, "*S"]:
        """What all words add."""
        return self.added + self.open


def word_tables(spelling: Spelling, scores: WordScores) -> WordTables:
    """Tables of all that `scores` lists."""
    beginnings = scores.beginnings
    nodes = {"": NO_WORD} | {part: node for node, part in enumerate(beginnings, start=1)}
    letters = {letter: i for i, letter in enumerate(sorted({part[-1] for part in beginnings}))}
    following = np.full((len(nodes) + 1, len(letters) + 1), len(nodes), np.int32)
    for part in beginnings:
        following[nodes[part[:-1]], letters[part[-1]]] = nodes[part]
    most = max(map(len, spelling.texts))
    spelt = [[letters.get(letter, len(letters)) for letter in text] for text in spelling.texts]
    listed = [0.0, *(scores.by_lists(part) for part in beginnings), -math.inf if scores.lexicon else 0.0]
    return WordTables(
        following=jnp.asarray(following),
        open=jnp.asarray([0.0, *beginnings.values(), scores.outside(1)], jnp.float32),
        closing=jnp.asarray(listed, jnp.float32),
        letters=jnp.asarray([each + [-1] * (most - len(each)) for each in spelt], jnp.int32),
        opens=jnp.asarray(spelling.opens),
    )


def grown_words(
    words: Words, label: Int32[Array, "*S"], tables: WordTables | None, closing: Float[Array, "*S"] | None
) -> Words:
    """With one more label each. `closing`: what each one's open word adds when it ends, by default what the tables say;
    without tables, words add nothing.
    """
    if tables is None:
        return words
    opens, letters = tables.opens[label], tables.letters[label]
    closing = tables.closing[words.node] if closing is None else closing
    added = words.added + jnp.where(opens & (words.node != NO_WORD), closing, 0.0)
    node, num_letters = (jnp.where(opens, 0, value) for value in (words.node, words.num_letters))
    for place in range(letters.shape[-1]):
        letter = letters[..., place]
        node = jnp.where(letter >= 0, tables.following[node, letter], node)
        num_letters = num_letters + (letter >= 0)
    growth = jnp.where(node == len(tables.open) - 1, jnp.maximum(1.0, num_letters / USUAL_WORD), 1.0)
    return Words(node=node, num_letters=num_letters, added=added, open=tables.open[node] * growth)

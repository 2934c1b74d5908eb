"""Beginnings of words as tables on the device: what an open word adds, and which one it becomes by one more label."""

import math

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int32

from asr_jax.decoding.spelling import Spelling
from asr_jax.decoding.word_scores import USUAL_WORD, WordScores

NO_WORD = 0
"""The node of no open word."""


class WordTables(struct.PyTreeNode):
    """A prefix tree with a node for each beginning of a listed word. The first is that of no open word, the last that
    of all other beginnings. N nodes, C different letters and one for all others, V labels of up to L letters."""

    following: Int32[Array, "N C"]
    """The node of a beginning with one more letter."""
    open: Float[Array, " N"]
    """What an open word adds; of the last node, of one with few letters."""
    closing: Float[Array, " N"]
    """What a word adds when it ends, without a language model."""
    letters: Int32[Array, "V L"]
    """-1 beyond the text."""
    opens: Bool[Array, " V"]
    """Whether a label begins a word."""


def word_tables(spelling: Spelling, scores: WordScores) -> WordTables:
    """Tables of all that `scores` lists."""
    beginnings = scores.beginnings
    nodes = {"": NO_WORD} | {part: node for node, part in enumerate(beginnings, start=1)}
    letters = {letter: i for i, letter in enumerate(sorted(set("".join(part[-1] for part in beginnings))))}
    following = np.full((len(nodes) + 1, len(letters) + 1), len(nodes), np.int32)
    for part, node in nodes.items():
        if part:
            following[nodes[part[:-1]], letters[part[-1]]] = node
    most = max((len(text) for text in spelling.texts), default=0)
    spelt = [[letters.get(letter, len(letters)) for letter in text] for text in spelling.texts]
    return WordTables(
        following=jnp.asarray(following),
        open=jnp.asarray([0.0, *beginnings.values(), scores.outside(1)], jnp.float32),
        closing=jnp.asarray(
            [0.0, *(scores.by_lists(part) for part in beginnings), -math.inf if scores.lexicon else 0.0], jnp.float32
        ),
        letters=jnp.asarray([[*each, *[-1] * (most - len(each))] for each in spelt], jnp.int32),
        opens=jnp.asarray(spelling.opens),
    )


def open_scores(tables: WordTables, node: Int32[Array, "*S"], num_letters: Int32[Array, "*S"]) -> Float[Array, "*S"]:
    """What open words add."""
    grown = jnp.where(node == len(tables.open) - 1, jnp.maximum(1.0, num_letters / USUAL_WORD), 1.0)
    return tables.open[node] * grown


def spell(
    tables: WordTables, tokens: Int32[Array, " K"], node: Int32[Array, " W"], num_letters: Int32[Array, " W"]
) -> tuple[Int32[Array, "W K"], Int32[Array, "W K"]]:
    """Nodes and numbers of letters of open words, after each of some labels."""
    opens = tables.opens[tokens]
    node, num_letters = (jnp.where(opens, 0, value[:, None]) for value in (node, num_letters))
    for letter in tables.letters[tokens].T:
        is_there = letter >= 0
        node = jnp.where(is_there, tables.following[node, letter], node)
        num_letters = num_letters + is_there
    return node, num_letters

"""What the batched prefix beam search keeps of one utterance, and what it is given of a frame. Shapes are static.

How equal prefixes are found: every slot of the beam has 64 bits made of the labels of its prefix, and those of the
prefix without its last label. The prefix that label c behind prefix a would make is there already as b if and only if
b without its last label is a and that label is c: then b gets the probability, and no second slot is made. So no two
slots ever hold equal prefixes. Different ones are taken for equal where all bits are: once in 10^7 times that a million
utterances of 1,000 frames are searched with a beam of 100.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, Int32, UInt32

from asr_jax.search.hypotheses import Search
from asr_jax.search.word_tables import Words

NEVER = -jnp.inf
MIXERS = np.array([[0x9E3779B1, 0x85EBCA6B], [0x85EBCA6B, 0x7FEB352D], [0xC2B2AE35, 0x846CA68B]], np.uint32)
"""Odd numbers that spread bits, of two hashes of 32 each. Source: Appleby's MurmurHash3, Wellons's lowbias32."""


class Beam(struct.PyTreeNode):
    """The prefixes of one utterance, or of several, in W slots, no two of them equal. One that is not in use has no
    probability.
    """

    endings: Float[Array, "*S W 2"]
    """Log-probability of the alignments that end in a blank, and of those that end in the prefix's last label, less the
    sum of `Found.best`."""
    last: Int32[Array, "*S W"]
    """The last label; of the empty prefix the border, or -1 in a vocabulary without one."""
    prefix: UInt32[Array, "*S W 2"]
    """The bits of the prefix."""
    shorter: UInt32[Array, "*S W 2"]
    """Those of the prefix without its last label."""
    words: Words

    def parents(self) -> Int32[Array, " W"]:
        """Which slot has each prefix without its last label; -1: none."""
        is_used = (self.endings > NEVER).any(1)
        pairs = (self.prefix[:, None, i] == self.shorter[None, :, i] for i in range(2))
        is_same = functools.reduce(jnp.logical_and, pairs, is_used[:, None] & is_used[None])
        return jnp.where(is_same, jnp.arange(len(is_used))[:, None], -1).max(0)


class Frame(NamedTuple):
    """One frame of one utterance, or none."""

    staying: Float[Array, " V"]
    """Log-probabilities of symbols that leave a prefix as it is."""
    growing: Float[Array, " V"]
    """Log-probabilities of labels that make a prefix longer; minus infinity for the blank, for labels that are left
    out, and for all where there is no frame."""
    tokens: Int32[Array, " K"]
    """Labels among which are all others than these."""
    is_there: Bool[Array, ""]
    is_blank_before: Bool[Array, ""]
    """Whether there were frames before in which nothing but the blank was looked at."""


class Found(struct.PyTreeNode):
    """What a step leaves behind, to find the way back; of *S steps."""

    back: Int[Array, "*S W 2"]
    """Twice the slot that the alignments of each ending come from, and 1 more where these ended in a label."""
    last: Int[Array, "*S W"]
    """As in `Beam`."""
    best: Float[Array, "*S"]
    """The greatest log-probability, which was taken off all."""


class Moves(NamedTuple):
    """Where the prefixes in the slots come from."""

    source: Int32[Array, " W"]
    """The slot of the prefix before; -1 for a slot that is not in use."""
    token: Int32[Array, " W"]
    """The label that it has got more, or -1."""


def longer(prefix: UInt32[Array, "W 2"], label: Int32[Array, " W"]) -> UInt32[Array, "W 2"]:
    """The bits of prefixes with one more label."""
    mixed = prefix ^ ((label[:, None] + 1).astype(jnp.uint32) * MIXERS[0][None])
    for mixer, shift in zip(MIXERS[1:], (16, 13), strict=True):
        mixed = (mixed ^ (mixed >> shift)) * mixer[None]
    return mixed ^ (mixed >> 16)


def start(search: Search, *, border: int) -> Beam:
    """The empty prefix, as though a border stood before the first frame; `border` -1: there is none."""
    width = search.beam_width
    ending = 0 if border < 0 else 1
    none = jnp.zeros(width, jnp.int32)
    return Beam(
        endings=jnp.full((width, 2), NEVER, jnp.float32).at[0, ending].set(0.0),
        last=jnp.full(width, border, jnp.int32),
        prefix=jnp.ones((width, 2), jnp.uint32),
        shorter=jnp.zeros((width, 2), jnp.uint32),
        words=Words(node=none, num_letters=none, added=jnp.zeros(width), open=jnp.zeros(width)),
    )

"""State of the batched prefix beam search for one utterance, and its inputs and outputs per frame, in static shapes.

Equal prefixes are found by hashes. Every slot of the beam has a 64-bit hash of its prefix, and a hash of its prefix
without the last label. Prefix a extended by label c is already in the beam as b if and only if b without its last label
is a, and that label is c. The probability is then added to b, and no other slot is used. All slots therefore have
different prefixes. Different prefixes with equal hashes would be merged. This is expected once in 10^7 searches of a
million utterances with 1,000 frames each and a beam of 100.
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
"""Odd multipliers of the two 32-bit hashes. Source: Appleby's MurmurHash3, Wellons's lowbias32."""


class PrefixBeam(struct.PyTreeNode):
    """Different prefixes of one utterance, or of several, in W slots.

    The log-probabilities of an unused slot are minus infinity.
    """

    endings: Float[Array, "*S W 2"]
    """Log-probabilities of the alignments that end in a blank (0) and in the prefix's last label (1), less the sum of
    `BackPointers.best`."""
    last: Int32[Array, "*S W"]
    """Last label. For the empty prefix: the border, or -1 if the vocabulary has none."""
    prefix: UInt32[Array, "*S W 2"]
    """Hash of the prefix."""
    shorter: UInt32[Array, "*S W 2"]
    """Hash of the prefix without its last label."""
    words: Words

    def parents(self) -> Int32[Array, " W"]:
        """Returns the slot that has each prefix without its last label; -1 if there is none."""
        is_used = (self.endings > NEVER).any(1)
        pairs = (self.prefix[:, None, i] == self.shorter[None, :, i] for i in range(2))
        is_same = functools.reduce(jnp.logical_and, pairs, is_used[:, None] & is_used[None])
        return jnp.where(is_same, jnp.arange(len(is_used))[:, None], -1).max(0)


class Frame(NamedTuple):
    """One frame of one utterance. `is_there` is False if the utterance has no more frames."""

    staying: Float[Array, " V"]
    """Log-probabilities of labels that leave a prefix unchanged."""
    growing: Float[Array, " V"]
    """Log-probabilities of labels that extend a prefix; minus infinity for the blank, for labels that are not
    candidates, and for all labels if there is no frame."""
    tokens: Int32[Array, " K"]
    """Label ids that include all candidates."""
    is_there: Bool[Array, ""]
    """Whether there is a frame."""
    is_blank_before: Bool[Array, ""]
    """Whether the frame follows skipped frames, in which only the blank was a candidate."""


class BackPointers(struct.PyTreeNode):
    """Results of *S frames, from which paths are backtracked."""

    back: Int[Array, "*S W 2"]
    """Back-pointer of each ending: 2 · slot + 0 if the previous alignments end in a blank, + 1 if in a label."""
    last: Int[Array, "*S W"]
    """Last label, as in `PrefixBeam`."""
    best: Float[Array, "*S"]
    """Greatest log-probability, which was subtracted from all."""


class Moves(NamedTuple):
    """Origin of the prefix or hypothesis in each slot."""

    source: Int[Array, "*R W"]
    """Slot of the previous one; -1 if the slot of a prefix is unused."""
    token: Int[Array, "*R W"]
    """Label that was appended; -1 if none was."""


def longer(prefix: UInt32[Array, "W 2"], label: Int32[Array, " W"]) -> UInt32[Array, "W 2"]:
    """Returns the hashes of prefixes extended by one label."""
    mixed = prefix ^ ((label[:, None] + 1).astype(jnp.uint32) * MIXERS[0][None])
    for mixer, shift in zip(MIXERS[1:], (16, 13), strict=True):
        mixed = (mixed ^ (mixed >> shift)) * mixer[None]
    return mixed ^ (mixed >> 16)


def start(search: Search, *, border: int) -> PrefixBeam:
    """Returns the beam before the first frame: the empty prefix, as if after a border. `border` is -1 if there is none.

    Args:
        border: Label that is a word border.
    """
    width = search.beam_width
    ending = 0 if border < 0 else 1
    none = jnp.zeros(width, jnp.int32)
    return PrefixBeam(
        endings=jnp.full((width, 2), NEVER, jnp.float32).at[0, ending].set(0.0),
        last=jnp.full(width, border, jnp.int32),
        prefix=jnp.ones((width, 2), jnp.uint32),
        shorter=jnp.zeros((width, 2), jnp.uint32),
        words=Words(node=none, num_letters=none, added=jnp.zeros(width), open=jnp.zeros(width)),
    )

"""What the batched prefix beam search keeps of one utterance, and what it is given of a frame. Shapes are static.

How equal prefixes are found, exactly: every slot of the beam holds the labels of its prefix, and `begins[a, b]` says
whether prefix a is the begin of prefix b. Both are kept up to date by comparing labels, never by hashes. The prefix
that label c behind prefix a would make is there already as b if and only if a is the begin of b, b is one label longer,
and that label is c: then b gets the probability, and no second slot is made. So no two slots ever hold equal prefixes.
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, Int32

from asr_jax.decoding.hypotheses import Search
from asr_jax.decoding.word_tables import Words

NEVER = -jnp.inf


class Beam(struct.PyTreeNode):
    """The prefixes of one utterance in W slots, no two of them equal. One that is not in use has no probability."""

    endings: Float[Array, "W 2"]
    """Log-probability of the alignments that end in a blank, and of those that end in the prefix's last label, less the
    sum of `Found.best`."""
    last: Int32[Array, " W"]
    """The last label; of the empty prefix the border, or -1 in a vocabulary without one."""
    labels: Int[Array, "W U"]
    num_labels: Int32[Array, " W"]
    begins: Bool[Array, "W W"]
    """Whether a prefix is the begin of another one, or that one itself."""
    words: Words

    @property
    def parents(self) -> Bool[Array, "W W"]:
        """Whether a prefix is another one without its last label."""
        return self.begins & (self.num_labels[:, None] + 1 == self.num_labels[None])


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
    """What a step leaves behind, to find the way back."""

    back: Int[Array, "W 2"]
    """Twice the slot that the alignments of each ending come from, and 1 more where these ended in a label."""
    last: Int[Array, " W"]
    """As in `Beam`."""
    best: Float[Array, ""]
    """The greatest log-probability, which was taken off all."""


class Moves(NamedTuple):
    """Where the prefixes in the slots come from."""

    source: Int32[Array, " W"]
    """The slot of the prefix before."""
    token: Int32[Array, " W"]
    """The label that it has got more, or -1."""


def start(search: Search, *, max_labels: int, vocab_size: int, border: int) -> Beam:
    """The empty prefix, as though a border stood before the first frame; `border` -1: there is none."""
    width = search.beam_width
    is_first = jnp.arange(width) == 0
    ending = 0 if border < 0 else 1
    none = jnp.zeros(width, jnp.int32)
    return Beam(
        endings=jnp.full((width, 2), NEVER).at[0, ending].set(0.0),
        last=jnp.full(width, border, jnp.int32),
        labels=jnp.zeros((width, max_labels), jnp.int16 if vocab_size < 2**15 else jnp.int32),
        num_labels=none,
        begins=is_first[:, None] & is_first[None],
        words=Words(node=none, num_letters=none, added=jnp.zeros(width), open=jnp.zeros(width)),
    )

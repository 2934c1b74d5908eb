"""State of the batched beam search of transducers, in static shapes, and the frames and networks that it reads."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, UInt32

from asr_jax.core.pytrees import AnyArray, Node, Tree
from asr_jax.search.ctc_beam_state import NEVER
from asr_jax.search.word_tables import Words
from asr_jax.text.spelling import Spelling

ROOT = -1
"""Node of the empty label sequence."""
BORDER = 0
"""Number of the word boundary among the letters of `texts_of`."""


class Networks(Protocol):
    """Prediction network and joint network of a head, as methods for `apply` of an unbound Flax module."""

    blank_id: int
    start_labels: int
    """Number of labels before the first one that count in the length of a hypothesis."""

    def begin(self, num_rows: int) -> Any: ...
    def advance(self, before: Any, labels: Any) -> Any: ...
    def logits(self, frames: Any, projected: Any) -> Any: ...
    def apply(self, variables: Tree, *arguments: Any, method: str) -> Any: ...


class TransducerFrames(Node):
    """Projected frames of a batch with the networks that search them: the input of the beam search."""

    values: Float[AnyArray, "R T J"]
    lengths: Int[AnyArray, " R"]
    variables: Tree
    """Variables of `networks`."""
    networks: Any = struct.field(pytree_node=False)
    """The head, as `Networks`."""


class Texts(Node):
    """Hash functions of label sequences: `hash · factor + addend`, modulo 2³², for each further label.

    The first axis is 1 if the sequence ends in a word boundary, or is empty, and 0 otherwise.
    """

    factor: UInt32[AnyArray, "2 V 2"]
    addend: UInt32[AnyArray, "2 V 2"]
    is_border: Bool[AnyArray, "2 V"]
    """Whether the longer sequence ends in a word boundary."""

    def longer(self, prefix: Array, is_border: Array, label: Array) -> tuple[Array, Array]:
        """Returns the hashes of sequences that are extended by one label each, and whether they end in a boundary.

        Args:
            prefix: Hashes of the sequences, `[N 2]`.
            is_border: Whether each sequence is empty or ends in a word boundary, `[N]`.
            label: Label that is appended to each, `[N]`.
        """
        ends = is_border.astype(jnp.int32)
        return prefix * self.factor[ends, label] + self.addend[ends, label], self.is_border[ends, label]


def texts_of(spelling: Spelling, same: str) -> Texts:
    """Returns hash functions whose hashes are equal for equal labels or for equal texts.

    Two 32-bit hashes are computed. Repeated word boundaries, and those at the beginning, do not change a text.

    Args:
        spelling: Text of each label.
        same: `labels` or `texts`.
    """
    random, size = np.random.default_rng(0), len(spelling.texts)
    letters = sorted(set("".join(spelling.texts)))
    numbers = {letter: number for number, letter in enumerate(letters, start=BORDER + 1)}
    base = 2 * random.integers(1 << 31, size=2, dtype=np.uint32) + 1
    values = random.integers(1, 1 << 32, size=(max(size, len(letters) + 1), 2), dtype=np.uint32)
    factor, addend = np.ones((2, size, 2), np.uint32), np.zeros((2, size, 2), np.uint32)
    is_border = np.zeros((2, size), bool)
    for ends in range(2):
        for label, (text, opens) in enumerate(zip(spelling.texts, spelling.opens, strict=True)):
            parts = [label]
            if same == "texts":
                parts = [BORDER] * (opens and not ends) + [numbers[letter] for letter in text]
                is_border[ends, label] = (opens or ends) and not text
            for part in parts:
                factor[ends, label] *= base
                addend[ends, label] = addend[ends, label] * base + values[part]
    return Texts(jnp.asarray(factor), jnp.asarray(addend), jnp.asarray(is_border))


class Beam(Node):
    """Hypotheses of each row, in S slots. The log-probability of an unused slot is minus infinity."""

    log_prob: Float[Array, "R S"]
    """Log-probability of all alignments that were merged."""
    prefix: UInt32[Array, "R S 2"]
    """Hash of the label sequence."""
    is_border: Bool[Array, "R S"]
    words: Words
    length: Int[Array, "R S"]
    """Number of labels."""
    node: Int[Array, "R S"]
    """Node of the last label, without the pending one; ROOT if there is none."""
    predicted: Any
    """Output and state of the prediction network, without the pending label."""
    pending: Int[Array, "R S"]
    """Last label, if the prediction network has not computed it; -1 otherwise."""
    since: Int[Array, "R S"]
    """Frame of the pending label."""
    label_log_prob: Float[Array, "R S"]
    """Log-probability of the pending label."""
    is_done: Bool[Array, "R S"]
    """Whether the hypothesis has its blank in the current frame (best-first search)."""
    at_frame: Int[Array, "R S"]
    """Number of labels in the current frame (best-first search)."""
    frame: Int[Array, " R"]
    """Current frame of each row."""

    @property
    def score(self) -> Float[Array, "*R S"]:
        return self.log_prob + self.words.extra


class Nodes(Node):
    """A tree of labels in N places per row. A label of frame t in slot s has the place t · S + s."""

    before: Int[Array, "R N"]
    token: Int[Array, "R N"]
    log_prob: Float[Array, "R N"]

    def path(self, row: int, node: int, num_slots: int) -> tuple[list[int], list[int], list[float]]:
        """Returns labels, frames and log-probabilities of the path to a node; the arrays must be on the host.

        Args:
            row: Number of the row.
            node: Last node of the path, or ROOT.
            num_slots: Number S of slots.
        """
        places = []
        while node != ROOT:
            places.append(node)
            node = int(self.before[row, node])
        places.reverse()
        return (
            self.token[row, places].tolist(),
            [place // num_slots for place in places],
            self.log_prob[row, places].tolist(),
        )


class Proposal(Node):
    """Candidates for the next step: log-probabilities of the blank and of K labels after some hypotheses."""

    slots: Int[Array, "R P"]
    """Slots of the hypotheses."""
    blank: Float[Array, "R P"]
    tokens: Int[Array, "R P K"]
    values: Float[Array, "R P K"]
    """Log-probabilities of `tokens`; minus infinity if a label is not a candidate."""


class Moves(NamedTuple):
    """Origin of the hypothesis in each slot."""

    source: Int[Array, "R S"]
    token: Int[Array, "R S"]
    """Label that was appended; -1 if none was."""


def begin(frames: TransducerFrames, num_slots: int) -> tuple[Beam, Nodes]:
    """Returns the beam before the first frame, with one empty hypothesis per row."""
    rows, num_frames = frames.values.shape[:2]
    shape = rows, num_slots
    none, zeros = jnp.zeros(shape, jnp.int32), jnp.zeros(shape)
    predicted = frames.networks.apply(frames.variables, rows, method="begin")
    beam = Beam(
        log_prob=jnp.full(shape, NEVER).at[:, 0].set(0.0),
        prefix=jnp.ones((*shape, 2), jnp.uint32),
        is_border=jnp.ones(shape, bool),
        words=Words(node=none, num_letters=none, added=zeros, open=zeros),
        length=none,
        node=jnp.full(shape, ROOT),
        predicted=jax.tree.map(lambda each: jnp.repeat(each[:, None], num_slots, axis=1), predicted),
        pending=jnp.full(shape, -1),
        since=none,
        label_log_prob=zeros,
        is_done=jnp.zeros(shape, bool),
        at_frame=none,
        frame=jnp.zeros(rows, jnp.int32),
    )
    size = rows, num_frames * num_slots
    return beam, Nodes(jnp.full(size, ROOT), jnp.zeros(size, jnp.int32), jnp.zeros(size))


def propose(
    beam: Beam,
    nodes: Nodes,
    slots: Int[Array, "R P"],
    frames: TransducerFrames,
    *,
    num_tokens: int,
    least: float,
    scaled: Callable[[Array], Array],
) -> tuple[Beam, Nodes, Proposal]:
    """Computes the prediction network for pending labels, and the joint network at the current frames.

    Args:
        beam: Hypotheses.
        nodes: Tree of labels.
        slots: Slots of the hypotheses whose candidates are computed.
        frames: Projected frames.
        num_tokens: Number K of labels, of which the blank may be one.
        least: Labels whose log-probability is lower than the largest one plus this (negative) number are no candidates.
        scaled: Returns the logits with temperature and penalties.

    Returns:
        The beam without pending labels in `slots`, the tree with these labels, and the candidates.
    """
    networks, row = frames.networks, jnp.arange(len(slots))[:, None]
    num_slots, size = beam.log_prob.shape[1], nodes.before.shape[1]
    pending, before = beam.pending[row, slots], jax.tree.map(lambda each: each[row, slots], beam.predicted)
    is_new, place = pending >= 0, beam.since[row, slots] * num_slots + slots
    column = jnp.where(is_new, place, size)  # mode="drop" ignores this index
    nodes = Nodes(
        nodes.before.at[row, column].set(beam.node[row, slots], mode="drop"),
        nodes.token.at[row, column].set(pending, mode="drop"),
        nodes.log_prob.at[row, column].set(beam.label_log_prob[row, slots], mode="drop"),
    )

    def advance(before: Any) -> Any:
        flat = jax.tree.map(lambda each: each.reshape(-1, *each.shape[2:]), before)
        after = networks.apply(frames.variables, flat, jnp.maximum(pending, 0).reshape(-1), method="advance")
        return jax.tree.map(
            lambda new, old: jnp.where(
                is_new.reshape(*is_new.shape, *(1,) * (old.ndim - 2)), new.reshape(old.shape).astype(old.dtype), old
            ),
            after,
            before,
        )

    predicted = jax.lax.cond(is_new.any(), advance, lambda before: before, before)
    beam = beam.replace(
        predicted=jax.tree.map(lambda all, some: all.at[row, slots].set(some), beam.predicted, predicted),
        node=beam.node.at[row, slots].set(jnp.where(is_new, place, beam.node[row, slots])),
        pending=beam.pending.at[row, slots].set(-1),
    )
    values = frames.values[row, jnp.minimum(beam.frame, frames.values.shape[1] - 1)[:, None]]
    logits = networks.apply(frames.variables, values, predicted["projected"], method="logits")
    logits = scaled(logits)
    norm = jax.nn.logsumexp(logits, axis=-1)
    best, tokens = jax.lax.top_k(logits, num_tokens)
    best = best - norm[..., None]
    is_candidate = (tokens != networks.blank_id) & (best >= best.max(-1, keepdims=True) + least)
    blank = logits[..., networks.blank_id] - norm
    proposal = Proposal(
        slots=slots,
        blank=jnp.where(jnp.isfinite(blank), blank, NEVER),
        tokens=tokens.astype(jnp.int32),
        values=jnp.where(is_candidate & jnp.isfinite(best), best, NEVER),
    )
    return beam, nodes, proposal

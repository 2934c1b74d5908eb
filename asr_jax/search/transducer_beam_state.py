"""State of the batched beam search of transducers, in static shapes, and the frames and networks that it reads."""

from typing import Any, NamedTuple

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


class TransducerFrames(Node):
    """Projected frames of a batch with the networks that search them: the input of the beam search."""

    values: Float[AnyArray, "R T J"]
    lengths: Int[AnyArray, " R"]
    variables: Tree
    """Variables of `networks`; empty for windows of streams, because `StreamSearch.variables` has them."""
    networks: Any = struct.field(pytree_node=False)
    """The head (`heads.transducer.TransducerHead`), whose methods `begin`, `advance` and `logits` are applied."""


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


class Hypotheses(Node):
    """Hypotheses of each row, in S slots. The log-probability of an unused slot is minus infinity."""

    log_prob: Float[Array, "*R S"]
    """Log-probability of all alignments that were merged."""
    prefix: UInt32[Array, "*R S 2"]
    """Hash of the label sequence."""
    is_border: Bool[Array, "*R S"]
    words: Words
    length: Int[Array, "*R S"]
    """Number of labels."""
    node: Int[Array, "*R S"]
    """Node of the last label, without the pending one; ROOT if there is none."""
    predicted: Any
    """Output and state of the prediction network, without the pending label."""
    pending: Int[Array, "*R S"]
    """Last label, if the prediction network has not computed it; -1 otherwise."""
    since: Int[Array, "*R S"]
    """Frame of the pending label."""
    label_log_prob: Float[Array, "*R S"]
    """Log-probability of the pending label among all labels but the blank."""
    reached: Int[Array, "*R S"]
    """Frame of the next label or blank. After the current frame, the hypothesis waits: it has its blank (RNN-T), or its
    durations lead there (TDT)."""
    at_frame: Int[Array, "*R S"]
    """Number of labels in the current frame (best-first search)."""

    @property
    def score(self) -> Float[Array, "*R S"]:
        return self.log_prob + self.words.extra


class FrameBeam(Node):
    """Hypotheses of each row, and the frame that the search has reached."""

    hypotheses: Hypotheses
    frame: Int[Array, "*R"]
    """Current frame of each row."""
    num_extended: Int[Array, "*R"]
    """Number of hypotheses that were extended in the current frame before (best-first search)."""


class Nodes(Node):
    """A tree of labels in N places per row: S for each frame."""

    before: Int[AnyArray, "R N"]
    token: Int[AnyArray, "R N"]
    start: Int[AnyArray, "R N"]
    """Frame of the label."""
    end: Int[AnyArray, "R N"]
    """Frame after the last one of the label: one frame, or as many as its duration."""
    log_prob: Float[AnyArray, "R N"]


class Label(NamedTuple):
    """A label of a hypothesis on the host, with its frames and its log-probability."""

    token: int
    start: int
    end: int
    log_prob: float


class Paths(NamedTuple):
    """Labels of all hypotheses, on the host; the arrays are those of `Hypotheses` and `Nodes`."""

    nodes: Nodes
    log_prob: Float[np.ndarray, "R S"]
    node: Int[np.ndarray, "R S"]
    pending: Int[np.ndarray, "R S"]
    since: Int[np.ndarray, "R S"]
    reached: Int[np.ndarray, "R S"]
    label_log_prob: Float[np.ndarray, "R S"]

    @classmethod
    def of(cls, beam: FrameBeam, nodes: Nodes) -> "Paths":
        arrays = [getattr(beam.hypotheses, name) for name in cls._fields[1:]]
        return cls(*jax.device_get((nodes, *arrays)))

    def labels(self, row: int, slot: int) -> list[Label]:
        """Returns the labels of a hypothesis, in order."""
        return self.labels_and_root(row, slot)[0]

    def labels_and_root(self, row: int, slot: int) -> tuple[list[Label], int]:
        """Returns the labels of a hypothesis, in order, and the negative number of the node before them."""
        found, node, place = [], int(self.node[row, slot]), (row, slot)
        if (token := int(self.pending[place])) >= 0:
            since, reached = int(self.since[place]), int(self.reached[place])
            found.append(Label(token, since, max(reached, since + 1), float(self.label_log_prob[place])))
        nodes = self.nodes
        while node >= 0:
            of_node = (nodes.token, nodes.start, nodes.end, nodes.log_prob)
            found.append(Label(*(each[row, node].item() for each in of_node)))
            node = int(nodes.before[row, node])
        return found[::-1], node


class Proposal(Node):
    """Candidates for the next step: log-probabilities of blanks and of K labels after some hypotheses."""

    slots: Int[Array, "*R P"]
    """Slots of the hypotheses."""
    blanks: Float[Array, "*R P D"]
    """Log-probabilities of the blank with each of its durations, `blank_durations`."""
    tokens: Int[Array, "*R P K"]
    durations: Int[Array, "*R P K"]
    """Duration of each label; 0 for RNN-T."""
    values: Float[Array, "*R P K"]
    """Log-probabilities of `tokens` with their durations; minus infinity if a label is not a candidate."""
    of_labels: Float[Array, "*R P K"]
    """Log-probabilities of `tokens` among all labels but the blank, without durations. The blank is excluded because a
    hypothesis often emits a label in a frame where the blank is much likelier; confidences would be close to 0."""


def begin(frames: TransducerFrames, num_slots: int) -> tuple[FrameBeam, Nodes]:
    """Returns the beam before the first frame, with one empty hypothesis per row."""
    rows, num_frames = frames.values.shape[:2]
    shape = rows, num_slots
    none, zeros = jnp.zeros(shape, jnp.int32), jnp.zeros(shape)
    predicted = frames.networks.apply(frames.variables, rows, method="begin")
    hypotheses = Hypotheses(
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
        reached=none,
        at_frame=none,
    )
    of_row, size = jnp.zeros(rows, jnp.int32), (rows, num_frames * num_slots)
    whole = jnp.zeros(size, jnp.int32)
    return FrameBeam(hypotheses, of_row, of_row), Nodes(jnp.full(size, ROOT), whole, whole, whole, jnp.zeros(size))

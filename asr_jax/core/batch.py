"""Data types that all layers share: a padded batch, a sequence of frames and an encoder's output."""

from collections.abc import Iterable

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Int16, Int32, Real, Shaped

from asr_jax.core.pytrees import AnyArray, Tree
from asr_jax.core.shapes import DimSize


class Batch(struct.PyTreeNode):
    """A padded batch with the static shape of one bucket. It has either `audio` or `features`.

    B: rows, S: samples, T: frames, F: values per frame, U: labels.
    """

    audio: Int16[AnyArray, "B S"] | None
    """Samples at the front-end's rate, in -32767..32767; 0 in the padding. None with `features`."""
    features: Float[AnyArray, "B T F"] | None
    """Precomputed features, which bypass the front-end. None with `audio`."""
    lengths: Int32[AnyArray, " B"]
    """Valid samples (with audio) or valid frames (with features) of each row."""
    tokens: Int32[AnyArray, "B U"]
    """Label ids; 0 in the padding."""
    token_lengths: Int32[AnyArray, " B"]
    weights: Float[AnyArray, " B"]
    """1 for rows that count; 0 for padding rows and for rows that cannot be read."""
    utterances: Int32[AnyArray, " B"]
    """Index row of each utterance; -1 for padding rows."""

    @property
    def signal(self) -> AnyArray:
        """`audio`, or `features` if there are any."""
        return self.audio if self.features is None else self.features


class Frames(struct.PyTreeNode):
    """Padded sequences of vectors, with the number of valid frames of each row."""

    values: Real[AnyArray, "B T D"]
    lengths: Int[AnyArray, " B"]


OUTPUT = ""
"""Name of the encoder's output, for `Encoded.at`; the taps have other names."""


class Encoded(struct.PyTreeNode):
    """Output of an encoder: the frames of its last layer and the taps, outputs of inner layers that heads read."""

    frames: Frames
    taps: dict[str, Frames] = struct.field(default_factory=dict)
    mask: Bool[Array, "B T"] | None = None
    """True for frames that the encoder masked (masked pre-training). None: no frame was masked."""
    shared: dict[str, Tree] = struct.field(default_factory=dict)
    """Parameters of modules of the encoder that heads use as well, each with a name."""
    emitted: dict[str, Frames] = struct.field(default_factory=dict)
    """Log-probabilities of CTC heads that another head reads, by the name of the CTC head."""
    sub_batches: int = struct.field(pytree_node=False, default=1)
    """Number of micro-batches, of equal numbers of rows, that the batch consists of."""
    views: int = struct.field(pytree_node=False, default=1)
    """Number of consecutive rows that are differently augmented views of one utterance."""

    def at(self, name: str) -> Frames:
        """Returns the tap `name`, or the encoder's output if `name` is `OUTPUT`.

        Raises:
            ValueError: If there is no such tap.
        """
        if name != OUTPUT and name not in self.taps:
            raise ValueError(no_such_tap(name, self.taps))
        return self.frames if name == OUTPUT else self.taps[name]


def no_such_tap(name: str, taps: Iterable[str]) -> str:
    """Returns the error message for a head that reads the missing tap `name`; `taps` are the existing ones."""
    there = ", ".join(taps) or "it has none"
    return f"tap is {name!r}: expected one of the encoder's taps ({there}); name it there, encoder.taps=({name!r},)"


def length_mask(lengths: Int[Array, " B"], num_frames: DimSize) -> Bool[Array, "B T"]:
    """Returns a mask that is True on the first `lengths[b]` of `num_frames` frames."""
    return jnp.arange(num_frames)[None] < lengths[:, None]


def zero_padding(x: Shaped[Array, "B T ..."], lengths: Int[Array, " B"]) -> Shaped[Array, "B T ..."]:
    """Returns `x` with all values beyond each row's length, including NaN, replaced by 0."""
    mask = length_mask(lengths, x.shape[1])
    return jnp.where(mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)), x, 0)

"""The types that every layer speaks: a batch, frames, what an encoder gives. See DESIGN in BUILD_NOTES.md."""

from collections.abc import Iterable

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Int16, Int32, Real, Shaped

from asr_jax.core.pytrees import AnyArray


class Batch(struct.PyTreeNode):
    """A padded batch of one bucket's static shape. It has `audio` or `features`, never both.

    B rows, S samples, T frames, F feature values, U labels.
    """

    audio: Int16[AnyArray, "B S"] | None
    """Samples at the front-end's rate, full scale ±32767; 0 beyond the length."""
    features: Float[AnyArray, "B T F"] | None
    """Ready features, for who brings them: these skip the front-end."""
    lengths: Int32[AnyArray, " B"]
    """Valid samples (with audio) or frames (with features) per row."""
    tokens: Int32[AnyArray, "B U"]
    """Label ids, 0 beyond the length."""
    token_lengths: Int32[AnyArray, " B"]
    weights: Float[AnyArray, " B"]
    """1 for a row that counts, 0 for padding and for rows that could not be read."""
    utterances: Int32[AnyArray, " B"]
    """Row of the index that each row came from; -1 for padding."""

    @property
    def signal(self) -> AnyArray:
        """The audio or the features, whichever there is."""
        return self.audio if self.features is None else self.features


class Frames(struct.PyTreeNode):
    """A sequence of vectors per row and how many of them are valid."""

    values: Real[AnyArray, "B T D"]
    lengths: Int[AnyArray, " B"]


OUTPUT = ""
"""Name of an encoder's output, beside the names of its taps."""


class Encoded(struct.PyTreeNode):
    """What an encoder gives: its output, and inner layers that a head asked for by name."""

    frames: Frames
    taps: dict[str, Frames] = struct.field(default_factory=dict)
    mask: Bool[Array, "B T"] | None = None
    """Frames that the encoder masked (pre-training)."""
    sub_batches: int = struct.field(pytree_node=False, default=1)
    """Parts of the batch, of as many rows each, that count as a batch of their own."""
    views: int = struct.field(pytree_node=False, default=1)
    """How many rows after one another are of the same utterance, each changed by augmentation in another way."""

    def at(self, name: str) -> Frames:
        """The tap of that name, or the output by the name `OUTPUT`.

        Raises: ValueError where there is no such tap.
        """
        if name != OUTPUT and name not in self.taps:
            raise ValueError(no_such_tap(name, self.taps))
        return self.frames if name == OUTPUT else self.taps[name]


def no_such_tap(name: str, taps: Iterable[str]) -> str:
    """What to say where a head reads a tap that is not there."""
    there = ", ".join(taps) or "it has none"
    return f"tap is {name!r}: expected one of the encoder's taps ({there}); name it there, encoder.taps=({name!r},)"


def length_mask(lengths: Int[Array, " B"], num_frames: int) -> Bool[Array, "B T"]:
    """True on the first `lengths[b]` of `num_frames` frames: the one place where masks are made."""
    return jnp.arange(num_frames)[None] < lengths[:, None]


def zero_padding(x: Shaped[Array, "B T ..."], lengths: Int[Array, " B"]) -> Shaped[Array, "B T ..."]:
    """`x` with 0 beyond each row's length, whatever lies there."""
    mask = length_mask(lengths, x.shape[1])
    return jnp.where(mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)), x, 0)

"""Transformer decoder of label sequences: each label attends to the labels before it and to the encoder."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Frames, length_mask
from asr_jax.core.settings import PositiveInt, settings
from asr_jax.nn.decoders.layers import DecoderLayers
from asr_jax.nn.decoders.sanm import mixed, weights_of_heads
from asr_jax.nn.embedding import look_up
from asr_jax.nn.layer_stack import layer_stack
from asr_jax.nn.linear import Linear
from asr_jax.nn.positions import sinusoids
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout


@settings
class LabelDecoder(DecoderLayers):
    """Settings of the decoder, with norms before each part of a layer. The defaults are icefall's.

    The embeddings have the dropout rate of the layers.
    """

    num_heads = 8
    dim: PositiveInt = 512
    """Width of the embeddings and layers."""
    attention_dim: PositiveInt = 512
    """Width of queries, keys and values of all attention heads together."""

    def problems(self) -> Iterator[str]:
        if self.attention_dim % self.num_heads:
            yield f"attention_dim is {self.attention_dim}: expected a multiple of num_heads, {self.num_heads}"
        if self.dim % 2:
            yield f"dim is {self.dim}: expected an even number, as positions are pairs of sine and cosine"

    def build(self, *, vocab_size: int, dtype: DTypeLike) -> "LabelDecoderModule":
        """Returns the module, which computes in `dtype` with float32 parameters and logits."""
        return LabelDecoderModule(self, vocab_size, dtype)


class DecoderCache(NamedTuple):
    """Keys and values of each layer (L), for the labels of K hypotheses of each row and for the frames of the row."""

    keys: Float[Array, "L B K U A"]
    values: Float[Array, "L B K U A"]
    memory_keys: Float[Array, "L B T A"]
    memory_values: Float[Array, "L B T A"]


class NextLabel(NamedTuple):
    """Output of the decoder for the next label of each hypothesis."""

    logits: Float[Array, "B K V"]
    keys: Float[Array, "L B K A"]
    """Keys of the label that was given, for the cache."""
    values: Float[Array, "L B K A"]
    frames: Int[Array, "B K"]
    """Frame with the largest attention weight, the mean over layers and heads."""


@struct.dataclass
class LabelInputs:
    """Inputs of all layers in addition to the labels."""

    memory: Float[Array, "B T E"] | None
    """Frames of the encoder; None for `advance`, which has their keys and values."""
    allowed: Bool[Array, "B 1 T"]
    """Frames that may be attended to."""
    step: Step = None
    place: Int[Array, ""] | int = 0
    """Number of labels before the given one (`advance`)."""


class LabelDecoderModule(nn.Module):
    """Module of `LabelDecoder`.

    Source: `TransformerDecoder` in icefall's egs/librispeech/ASR/zipformer/attention_decoder.py at commit 36e0420c.
    Differs from: no penalty on attention scores beyond ±50 in training.
    """

    settings: LabelDecoder
    vocab_size: int
    dtype: DTypeLike

    def setup(self) -> None:
        settings = self.settings
        self.embedding = self.param("embedding", nn.initializers.normal(1.0), (self.vocab_size, settings.dim))
        self.dropout = Dropout(settings.dropout)
        self.layers = layer_stack(
            LabelDecoderLayer,
            settings.num_layers,
            settings.remat,
            in_axes=(0, nn.broadcast),
            methods=["__call__", "begin", "advance"],
        )(settings, self.dtype)
        # float32 for any dtype of the encoder, because rounding of logits may change the best label.
        self.output = Linear(self.vocab_size)

    def __call__(self, labels: Int[Array, "B U"], memory: Frames, *, step: Step) -> Float[Array, "B U V"]:
        """Returns the logits of the label after each of the given ones. Later labels have no influence.

        Args:
            memory: Frames of the encoder. Padding must be finite and has no influence.
        """
        positions = sinusoids(np.arange(labels.shape[1], dtype=np.float64), self.settings.dim)
        x = self.dropout(self._embedded(labels, jnp.asarray(positions)[None]), step=step)
        x, _ = self.layers(x, None, self._inputs(memory, step))
        return self.output(x.astype(jnp.float32))

    def begin(self, memory: Frames, *, width: int, size: int) -> DecoderCache:
        """Returns the cache before the first label.

        Args:
            memory: Frames of the encoder. Padding must be finite and has no influence.
            width: Number K of hypotheses of each row.
            size: Largest number U of labels, with that of the begin.
        """
        rows, settings = len(memory.lengths), self.settings
        nothing = jnp.zeros((rows, 1, settings.dim), self.dtype)
        _, (keys, values) = self.layers.begin(nothing, None, self._inputs(memory, None))
        empty = jnp.zeros((settings.num_layers, rows, width, size, settings.attention_dim), self.dtype)
        return DecoderCache(empty, empty, keys, values)

    def advance(
        self, cache: DecoderCache, labels: Int[Array, "B K"], place: Int[Array, ""], lengths: Int[Array, " B"]
    ) -> NextLabel:
        """Returns the logits of the label after one more label of each hypothesis.

        Args:
            cache: Keys and values of the labels before.
            place: Number of labels before the new ones, with that of the begin.
        """
        positions = jnp.asarray(sinusoids(np.arange(cache.keys.shape[3], dtype=np.float64), self.settings.dim))
        x = self._embedded(labels, positions[place][None, None])
        allowed = length_mask(lengths, cache.memory_keys.shape[2])[:, None]
        inputs = LabelInputs(memory=None, allowed=allowed, place=place)
        x, (keys, values, weights) = self.layers.advance(x, cache, inputs)
        frames = jnp.argmax(jnp.sum(weights, axis=0), axis=-1).astype(jnp.int32)
        return NextLabel(self.output(x.astype(jnp.float32)), keys, values, frames)

    def _embedded(self, labels: Int[Array, "B U"], positions: Float[Array, "1 _ D"]) -> Float[Array, "B U D"]:
        return (look_up(self.embedding, labels) * self.settings.dim**0.5 + positions).astype(self.dtype)

    def _inputs(self, memory: Frames, step: Step) -> LabelInputs:
        allowed = length_mask(memory.lengths, memory.values.shape[1])[:, None]
        return LabelInputs(memory.values.astype(self.dtype), allowed, step)


class LabelDecoderLayer(nn.Module):
    """Decoder layer: self-attention to labels before, attention to the encoder, feed-forward module.

    All methods have the signature of a body of `nn.scan`.
    """

    settings: LabelDecoder
    dtype: DTypeLike

    def setup(self) -> None:
        settings = self.settings
        self.attention_norm, self.to_encoder_norm, self.norm = (
            nn.LayerNorm(epsilon=1e-5, use_fast_variance=False) for _ in range(3)
        )
        self.attention, self.to_encoder = (_Projections(settings, self.dtype) for _ in range(2))
        self.hidden = Linear(settings.feedforward_dim, dtype=self.dtype)
        self.out = Linear(settings.dim, dtype=self.dtype)
        self.dropout = Dropout(settings.dropout)

    def __call__(
        self, x: Float[Array, "B U D"], cache: None, inputs: LabelInputs
    ) -> tuple[Float[Array, "B U D"], None]:
        """Computes all labels at once."""
        heads, step, own = self.settings.num_heads, inputs.step, self.attention
        is_before = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))[None]
        y = self._normed(self.attention_norm, x)
        weights = weights_of_heads(own.query(y), own.key(y), is_before, heads)
        x += self.dropout(own.out(mixed(weights, own.value(y))), step=step)
        assert inputs.memory is not None
        memory = self.to_encoder.key(inputs.memory), self.to_encoder.value(inputs.memory)
        y, _ = self._from_encoder(x, *memory, inputs)
        x += self.dropout(y, step=step)
        return self._fed_forward(x, step), None

    def begin(
        self, x: Float[Array, "B 1 D"], cache: None, inputs: LabelInputs
    ) -> tuple[Float[Array, "B 1 D"], tuple[Float[Array, "B T A"], Float[Array, "B T A"]]]:
        """Returns keys and values of the encoder's frames."""
        assert inputs.memory is not None
        return x, (self.to_encoder.key(inputs.memory), self.to_encoder.value(inputs.memory))

    def advance(
        self, x: Float[Array, "B K D"], cache: DecoderCache, inputs: LabelInputs
    ) -> tuple[Float[Array, "B K D"], tuple[Array, Array, Array]]:
        """Computes one label of each hypothesis.

        Returns:
            The vectors, and the labels' keys and values with the attention weights of frames, the mean over heads.
        """
        own, y = self.attention, self._normed(self.attention_norm, x)
        key, value = own.key(y), own.value(y)
        keys, values = (old.at[:, :, inputs.place].set(new) for old, new in ((cache.keys, key), (cache.values, value)))
        is_before = jnp.arange(keys.shape[2])[None, None] <= inputs.place
        by_hypothesis: Callable[[Array], Array] = lambda array: array.reshape(-1, *array.shape[2:])  # noqa: E731
        query = by_hypothesis(own.query(y))[:, None]
        weights = weights_of_heads(query, by_hypothesis(keys), is_before, self.settings.num_heads)
        x += own.out(mixed(weights, by_hypothesis(values))[:, 0].reshape(*x.shape[:2], -1))
        y, of_frames = self._from_encoder(x, cache.memory_keys, cache.memory_values, inputs)
        return self._fed_forward(x + y, None), (key, value, jnp.mean(of_frames.astype(jnp.float32), axis=1))

    def _from_encoder(
        self, x: Float[Array, "B U D"], keys: Float[Array, "B T A"], values: Float[Array, "B T A"], inputs: LabelInputs
    ) -> tuple[Float[Array, "B U D"], Float[Array, "B H U T"]]:
        query = self.to_encoder.query(self._normed(self.to_encoder_norm, x))
        weights = weights_of_heads(query, keys, inputs.allowed, self.settings.num_heads)
        return self.to_encoder.out(mixed(weights, values)), weights

    def _fed_forward(self, x: Float[Array, "B U D"], step: Step) -> Float[Array, "B U D"]:
        hidden = self.dropout(jax.nn.silu(self.hidden(self._normed(self.norm, x))), step=step)
        return x + self.dropout(self.out(hidden), step=step)

    def _normed(self, norm: nn.Module, x: Float[Array, "B U D"]) -> Float[Array, "B U D"]:
        return norm(x).astype(self.dtype)


class _Projections(nn.Module):
    """Linear layers of an attention module."""

    settings: LabelDecoder
    dtype: DTypeLike

    def setup(self) -> None:
        self.query, self.key, self.value = (Linear(self.settings.attention_dim, dtype=self.dtype) for _ in range(3))
        self.out = Linear(self.settings.dim, dtype=self.dtype)

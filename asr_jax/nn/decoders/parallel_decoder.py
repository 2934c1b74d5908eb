"""Decoders that compute the vectors of all labels of an utterance at once, from one query for each label."""

from collections.abc import Iterator
from dataclasses import replace

from flax import linen as nn
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Frames, length_mask
from asr_jax.core.settings import NonNegativeInt, PositiveInt, ShareBelow1, settings
from asr_jax.nn.decoders.layers import DecoderLayers
from asr_jax.nn.decoders.sanm import NORM_EPS, Attention, Memory
from asr_jax.nn.layer_stack import layer_stack
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import normed
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout


class ParallelDecoder(nn.Module):
    """Base class of decoder modules. Their parameter names are part of the checkpoint format."""

    def __call__(self, queries: Frames, memory: Frames, *, step: Step) -> Float[Array, "B U D"]:
        """Returns the vector of each label. Padding of queries and memory has no influence."""
        raise NotImplementedError


@settings
class DecoderSettings(DecoderLayers):
    """Base class of settings of decoders. `build` returns the module."""

    attention_dropout: ShareBelow1 = 0.1
    """Dropout rate of the attention weights."""

    def with_layers(self, num_layers: int) -> "DecoderSettings":
        """Returns the same settings with another number of layers, all of which attend to the encoder."""
        return replace(self, num_layers=num_layers)

    def build(self, *, dtype: DTypeLike) -> ParallelDecoder:
        """Returns the module, which computes in `dtype` with float32 parameters."""
        raise NotImplementedError


@settings
class TransformerDecoder(DecoderSettings):
    """Settings of a Transformer decoder whose queries attend to all queries and to the encoder, with norms first.

    Source: An et al. 2024, "Paraformer-v2" (arXiv:2409.17746); `torch.nn.TransformerDecoder` with `norm_first`.
    """

    def build(self, *, dtype: DTypeLike) -> "TransformerDecoderModule":
        return TransformerDecoderModule(self, dtype)


@settings
class SANMDecoder(DecoderSettings):
    """Settings of FunASR's decoder, whose queries are mixed by memory blocks instead of self-attention.

    A further layer of a feed-forward module follows the layers.

    Source: Gao et al. 2022, "Paraformer" (arXiv:2206.08317); `ParaformerSANMDecoder` in FunASR's
    funasr/models/paraformer/decoder.py at commit 3c58cb56.
    """

    num_layers = 16
    num_attention_layers: PositiveInt = 16
    """Number of the first layers that attend to the encoder (FunASR's att_layer_num)."""
    kernel_size: PositiveInt = 11
    """Taps of the memory blocks."""
    memory_shift: NonNegativeInt = 0
    """Number of taps by which the memory blocks of the layers with attention are shifted to the past."""
    memory_dropout: ShareBelow1 = 0.1
    """Dropout rate of the memory."""

    def problems(self) -> Iterator[str]:
        if self.num_attention_layers > self.num_layers:
            yield f"num_attention_layers is {self.num_attention_layers}: expected at most num_layers, {self.num_layers}"

    def with_layers(self, num_layers: int) -> "DecoderSettings":
        return replace(self, num_layers=num_layers, num_attention_layers=num_layers)

    def build(self, *, dtype: DTypeLike) -> "SANMDecoderModule":
        return SANMDecoderModule(self, dtype)


@struct.dataclass
class QueryInputs:
    """Inputs of all layers in addition to the queries."""

    lengths: Int[Array, " B"]
    """Number of queries."""
    queries: Bool[Array, "B 1 U"]
    """Valid queries."""
    memory: Float[Array, "B T E"]
    allowed: Bool[Array, "B 1 T"]
    """Frames of the encoder that may be attended to."""
    step: Step


def _inputs(queries: Frames, memory: Frames, step: Step, dtype: DTypeLike) -> QueryInputs:
    valid, allowed = (length_mask(each.lengths, each.values.shape[1])[:, None] for each in (queries, memory))
    return QueryInputs(queries.lengths, valid, memory.values.astype(dtype), allowed, step)


class TransformerDecoderModule(ParallelDecoder):
    """Module of `TransformerDecoder`."""

    settings: TransformerDecoder
    dtype: DTypeLike

    @nn.compact
    def __call__(self, queries: Frames, memory: Frames, *, step: Step) -> Float[Array, "B U D"]:
        layers = layer_stack(TransformerDecoderLayer, self.settings.num_layers, self.settings.remat)
        inputs = _inputs(queries, memory, step, self.dtype)
        return layers(self.settings, self.dtype, name="layers")(queries.values.astype(self.dtype), inputs)[0]


class TransformerDecoderLayer(nn.Module):
    """Decoder layer with norms first: self-attention, attention to the encoder, feed-forward module."""

    settings: TransformerDecoder
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "B U D"], inputs: QueryInputs) -> tuple[Float[Array, "B U D"], None]:
        settings, step = self.settings, inputs.step
        drop = Dropout(settings.dropout)
        attention = Attention(settings.num_heads, settings.attention_dropout, self.dtype, name="attention")
        to_encoder = Attention(settings.num_heads, settings.attention_dropout, self.dtype, name="to_encoder")
        y = normed("attention_norm", x)
        x += drop(attention(y, y, inputs.queries, step=step), step=step)
        x += drop(to_encoder(normed("to_encoder_norm", x), inputs.memory, inputs.allowed, step=step), step=step)
        y = nn.relu(Linear(settings.feedforward_dim, dtype=self.dtype, name="in")(normed("norm", x)))
        return x + drop(Linear(x.shape[-1], dtype=self.dtype, name="out")(drop(y, step=step)), step=step), None


class SANMDecoderModule(ParallelDecoder):
    """Module of `SANMDecoder`."""

    settings: SANMDecoder
    dtype: DTypeLike

    @nn.compact
    def __call__(self, queries: Frames, memory: Frames, *, step: Step) -> Float[Array, "B U D"]:
        settings, x = self.settings, queries.values.astype(self.dtype)
        inputs = _inputs(queries, memory, step, self.dtype)
        num_with, num_without = settings.num_attention_layers, settings.num_layers - settings.num_attention_layers
        x = layer_stack(SANMDecoderLayer, num_with, settings.remat)(settings, True, self.dtype, name="layers")(
            x, inputs
        )[0]
        if num_without:
            without = layer_stack(SANMDecoderLayer, num_without, settings.remat)
            x = without(settings, False, self.dtype, name="memory_layers")(x, inputs)[0]
        x = _SANMFeedForward(settings, self.dtype, name="last")(normed("last_norm", x, NORM_EPS), step=step)
        return normed("norm", x, NORM_EPS)


class SANMDecoderLayer(nn.Module):
    """Decoder layer: feed-forward module and memory with one residual connection, then attention to the encoder."""

    settings: SANMDecoder
    attends: bool
    """Whether the layer attends to the encoder."""
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "B U D"], inputs: QueryInputs) -> tuple[Float[Array, "B U D"], None]:
        settings, step = self.settings, inputs.step
        drop = Dropout(settings.dropout)
        shift = settings.memory_shift if self.attends else 0
        memory = Memory(settings.kernel_size, shift, settings.memory_dropout, name="memory")
        y = _SANMFeedForward(settings, self.dtype, name="feed_forward")(normed("norm", x, NORM_EPS), step=step)
        x += drop(memory(normed("memory_norm", y, NORM_EPS), inputs.lengths, step=step), step=step)
        if self.attends:
            attention = Attention(settings.num_heads, settings.attention_dropout, self.dtype, name="attention")
            y = attention(normed("attention_norm", x, NORM_EPS), inputs.memory, inputs.allowed, step=step)
            x += drop(y, step=step)
        return x, None


class _SANMFeedForward(nn.Module):
    """Feed-forward module with a norm of the hidden values."""

    settings: SANMDecoder
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "B U D"], *, step: Step) -> Float[Array, "B U D"]:
        hidden = nn.relu(Linear(self.settings.feedforward_dim, dtype=self.dtype, name="in")(x))
        hidden = Dropout(self.settings.dropout)(hidden, step=step)
        hidden = normed("norm", hidden, NORM_EPS)
        return Linear(x.shape[-1], use_bias=False, dtype=self.dtype, name="out")(hidden)

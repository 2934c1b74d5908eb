"""Head of Paraformer: integrate-and-fire finds a vector for each label, and a decoder computes all labels at once."""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Batch, Encoded, Frames, length_mask, zero_padding
from asr_jax.core.pytrees import Tree
from asr_jax.core.random_streams import uniform_of_rows
from asr_jax.core.settings import NonNegativeFloat, NonNegativeInt, Share, between, settings
from asr_jax.core.sums import Sum, Sums
from asr_jax.heads.base import DecoderHead, LabelAxis, RecognisingHead, share_of_counted, sum_counted
from asr_jax.losses.cross_entropy import smoothed_cross_entropy
from asr_jax.nn.decoders.cif import CIF, Predictor, quantity_losses, without_padding
from asr_jax.nn.decoders.parallel_decoder import DecoderSettings, SANMDecoder, TransformerDecoder
from asr_jax.nn.embedding import look_up
from asr_jax.nn.linear import Linear
from asr_jax.nn.schedules import Step
from asr_jax.search.base import Decoding
from asr_jax.search.parallel import ParallelDecoding, parallel_tokens


@settings
class ParallelHead(DecoderHead):
    """Settings of a head whose decoder computes all labels at once."""

    decoder: DecoderSettings = TransformerDecoder()
    """Settings of the decoder: SANMDecoder or TransformerDecoder."""
    dropped_ids: tuple[NonNegativeInt, ...] = ()
    """Label ids, besides those of blank and end, that are left out of texts, such as the begin of a sentence in
    FunASR's models."""
    decoding: ParallelDecoding = ParallelDecoding()
    """Settings of the search in validation, and defaults of evaluation."""


@settings
class Paraformer(ParallelHead):
    """Settings of a Paraformer head. The defaults are FunASR's large model.

    FunASR's `ctc_weight` w is a CTC head with scale w and `label_scale` 1 - w.
    """

    decoder = SANMDecoder()
    predictor: CIF = CIF()
    """Settings of the integration (CIF)."""
    sampling: Share = 0.75
    """Share of the wrong labels of a first pass whose number of vectors are replaced by embeddings of their labels in
    training (glancing). 0: no first pass."""
    shares_embedding: bool = False
    """Whether the embeddings of labels are the weights of the output layer."""
    label_scale: NonNegativeFloat = 1.0
    """Factor of the cross-entropy."""
    quantity_scale: NonNegativeFloat = 1.0
    """Factor of the quantity loss, the difference of the sum of weights and the number of labels."""
    ends: bool = True
    """Whether a label for the end follows the labels of an utterance, and counts as one (FunASR's predictor_bias)."""
    end_id: Annotated[int, between(-1)] = -1
    """Label id of the end. -1: that of the blank, which the decoder does not need."""
    mask_padding: bool = True
    """Whether labels are independent of padding. Otherwise the encoder's output for padding enters the integration, as
    in FunASR."""

    def frames_needed(self, num_labels: Any, num_repeats: Any) -> Any:
        """Returns the minimum number of frames: one for each label and for the end."""
        return num_labels + int(self.ends)

    def counts(self, num_frames: Int[Array, " B"], num_labels: Int[Array, " B"]) -> Int[Array, " B"]:
        return super().counts(num_frames, num_labels + int(self.ends))

    def label_axis(self, parameter: str) -> LabelAxis | None:
        part = parameter.partition("/")[0]
        return {"embedding": LabelAxis(0), "output": LabelAxis(-1)}.get(part)

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> "ParaformerHead":
        if max(self.end_id, *self.dropped_ids, 0) >= vocab_size:
            raise ValueError(
                f"end_id is {self.end_id} and dropped_ids is {self.dropped_ids}: expected ids below the number of "
                f"labels, {vocab_size}"
            )
        return ParaformerHead(self, vocab_size, blank_id, dtype)


class ParaformerHead(RecognisingHead):
    """Module of a Paraformer head.

    Loss terms: `loss` (cross-entropy, nats) and `quantity` (labels), both with their factors. Metrics: `accuracy`, the
    share of correct labels of the first pass, and `infeasible`, the share of rows with fewer frames than labels.

    Source: Gao et al. 2022, "Paraformer: Fast and Accurate Parallel Transformer for Non-autoregressive End-to-End
    Speech Recognition" (arXiv:2206.08317); FunASR's funasr/models/paraformer/model.py at commit 3c58cb56. Differs from:
    FunASR, in which rounding decides whether the last label of an utterance has a vector in training, and padding
    changes the integration (`Paraformer.mask_padding`).
    """

    settings: Paraformer

    @property
    def end_id(self) -> int:
        return self.blank_id if self.settings.end_id < 0 else self.settings.end_id

    @property
    def dropped_ids(self) -> tuple[int, ...]:
        """Labels that are left out of texts."""
        return (self.blank_id, *((self.end_id,) if self.settings.ends else ()), *self.settings.dropped_ids)

    def setup(self) -> None:
        self.predictor = Predictor(self.settings.predictor)
        self.decoder = self.settings.decoder.build(dtype=self.dtype)
        # float32 for any dtype of the encoder, because rounding of logits may change the best label.
        self.output = Linear(self.vocab_size)
        if self.settings.sampling and not self.settings.shares_embedding:
            self.embedding = Table(self.vocab_size)

    def __call__(self, encoded: Encoded, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        settings, frames = self.settings, self._frames(encoded)
        labels, lengths = self._targets(batch)
        weights = self.predictor(frames, step=step)
        vectors, _ = self.predictor.of_labels(frames, weights, lengths, size=labels.shape[1])
        feasible = self.feasible(frames.lengths, batch)
        counted = length_mask(lengths, labels.shape[1]) & feasible[:, None]
        queries, first = self._sampled(vectors, labels, lengths, frames, step)
        logits = self._logits(queries, lengths, frames, step)
        losses = smoothed_cross_entropy(logits, labels, smoothing=settings.smoothing)
        is_correct = (jnp.argmax(logits, axis=-1) if first is None else first) == labels
        rows, weight = batch.weights, self.weight(frames.lengths, batch)
        quantities = sum_counted(feasible, quantity_losses(weights, lengths), rows)
        return {
            "loss": Sum(settings.label_scale * sum_counted(counted, losses, rows), weight),
            "quantity": Sum(settings.quantity_scale * quantities, weight),
            "accuracy": share_of_counted(is_correct, counted, rows),
            "infeasible": Sum(jnp.sum(jnp.where(feasible, 0.0, rows)), jnp.sum(rows)),
        }

    @property
    def terms(self) -> tuple[str, ...]:
        return ("loss", "quantity")

    def _frames(self, encoded: Encoded) -> Frames:
        frames = encoded.at(self.tap)
        return without_padding(frames) if self.settings.mask_padding else frames

    def _targets(self, batch: Batch) -> tuple[Int[Array, "B U"], Int[Array, " B"]]:
        """Returns the labels of each row with that of the end, and their number."""
        labels, lengths = batch.tokens, batch.token_lengths
        if not self.settings.ends:
            return labels, lengths
        labels = jnp.pad(labels, ((0, 0), (0, 1)))
        is_end = jnp.arange(labels.shape[1])[None] == lengths[:, None]
        return jnp.where(is_end, self.end_id, labels), lengths + 1

    def _sampled(
        self,
        vectors: Float[Array, "B U D"],
        labels: Int[Array, "B U"],
        lengths: Int[Array, " B"],
        frames: Frames,
        step: Step,
    ) -> tuple[Float[Array, "B U D"], Int[Array, "B U"] | None]:
        """Replaces vectors of random labels by embeddings, in training; the more, the more labels are wrong.

        Returns:
            The vectors, and the labels of the first pass; None without one.
        """
        settings = self.settings
        if not settings.sampling:
            return vectors, None
        embedded = self._embedded(labels, vectors.shape[-1])
        if step is None:
            return vectors, None
        logits = self._logits(jax.lax.stop_gradient(vectors), lengths, jax.lax.stop_gradient(frames), step)
        first = jnp.argmax(jax.lax.stop_gradient(logits), axis=-1)
        is_label = length_mask(lengths, labels.shape[1])
        num_wrong = jnp.sum((first != labels) & is_label, axis=1)
        num_replaced = jnp.floor(num_wrong * jnp.float32(settings.sampling))
        draws = jnp.where(is_label, uniform_of_rows(self.make_rng("sampler"), labels.shape), 2.0)
        rank = jnp.argsort(jnp.argsort(draws, axis=1), axis=1)
        is_replaced = (rank < num_replaced[:, None])[..., None]
        return jnp.where(is_replaced, embedded, vectors), first

    def _embedded(self, labels: Int[Array, "B U"], width: int) -> Float[Array, "B U D"]:
        if not self.settings.shares_embedding:
            return self.embedding(labels, width)
        if self.is_initializing():
            self.output(jnp.zeros((1, width)))
        parameters: Any = nn.meta.unbox(self.variables["params"]["output"])
        return parameters["kernel"].T[labels]

    def _logits(
        self, vectors: Float[Array, "B U D"], lengths: Int[Array, " B"], frames: Frames, step: Step
    ) -> Float[Array, "B U V"]:
        hidden = self.decoder(Frames(zero_padding(vectors, lengths), lengths), frames, step=step)
        return self.output(hidden.astype(jnp.float32))

    def search(self, encoded: Encoded, decoding: Decoding, state: Tree = None) -> tuple[Any, Tree]:
        """Returns the most likely label of each query. The times are those of the integration."""
        log_probs, lengths, starts, ends = self._found(encoded)
        return parallel_tokens(log_probs, lengths, starts, ends, dropped=self.dropped_ids), None

    def emit(self, encoded: Encoded) -> Frames:
        """Returns the log-probabilities `[B U V]` of the labels of each query, with the number of queries."""
        log_probs, lengths, *_ = self._found(encoded)
        return Frames(log_probs, lengths)

    def _found(
        self, encoded: Encoded
    ) -> tuple[Float[Array, "B U V"], Int[Array, " B"], Int[Array, "B U"], Int[Array, "B U"]]:
        """Returns the log-probabilities of each query, the number of queries, and their first and last frames."""
        frames = self._frames(encoded)
        vectors, lengths, fired = self.predictor.found(frames, self.predictor(frames, step=None))
        logits = self._logits(vectors, lengths, frames, None)
        return jax.nn.log_softmax(logits), lengths, fired.starts, fired.ends


class Table(nn.Module):
    """Embeddings of labels, whose width is that of the first call."""

    vocab_size: int

    @nn.compact
    def __call__(self, labels: Int[Array, "B U"], width: int) -> Float[Array, "B U D"]:
        table = self.param("embedding", nn.initializers.normal(1.0), (self.vocab_size, width))
        return look_up(table, labels)

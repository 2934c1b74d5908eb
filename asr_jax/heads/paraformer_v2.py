"""Head of Paraformer-v2: averaged posteriors of a CTC head are the queries of a decoder of all labels at once."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import OUTPUT, Batch, Encoded, Frames, length_mask, no_such_tap, zero_padding
from asr_jax.core.pytrees import Tree
from asr_jax.core.settings import Share, settings
from asr_jax.core.shapes import DimSize, numbers
from asr_jax.core.sums import Sum, Sums
from asr_jax.heads.base import LabelAxis, RecognisingHead, share_of_counted, sum_counted
from asr_jax.heads.label_queries import (
    AlignmentMode,
    Runs,
    boundary_targets,
    gated_queries,
    greedy_runs,
    mean_over,
    members,
    runs_of_text,
    spans,
)
from asr_jax.heads.paraformer import ParallelHead, Table
from asr_jax.losses.cross_entropy import smoothed_cross_entropy
from asr_jax.nn.decoders.cif import without_padding
from asr_jax.nn.linear import Linear
from asr_jax.nn.normalization import layer_norm
from asr_jax.nn.positions import sinusoids
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout
from asr_jax.search.base import Decoding
from asr_jax.search.parallel import ParallelDecoding, parallel_tokens

BOUNDARY_SCALE, REFINEMENT_SCALE = 0.1, 0.3
"""Factors of two losses of the enhanced model: boundaries between labels, and the cross-entropy after refinement."""


@settings
class Enhancement:
    """Settings of the enhanced Paraformer-v2. The defaults are the Rust trainer's.

    Source: PositiveLoss/paraformer-v2-enhanced at commit 18b1ae9, src/paraformer_v2/better_model.py; RustedBytes/
    w2v-bert-uk at commit adec09e, src/paraformer.rs. The loss of the shallow CTC head has the factor 0.3 there, which
    is that head's `scale`.
    """

    shallow: str = "shallow"
    """Name of the CTC head on an inner layer, whose posteriors are queries as well."""
    tap: str = "layer_5"
    """Name of the encoder's tap of that layer, which the boundaries are found from as well."""
    refine_below: Share = 0.7
    """Probability of a label below which the second decoder computes it again. The output layer of refinement reads the
    first decoder for all others, which may change them as well."""


@settings
class ParaformerV2(ParallelHead):
    """Settings of a Paraformer-v2 head. The defaults are those of the Rust trainer.

    The model needs a CTC head on the same tap. Its loss is that head's; with FunASR's `ctc_weight` w, that head has the
    scale w and this one 1 - w.
    """

    smoothing = 0.0
    ctc: str = "ctc"
    """Name of the CTC head whose posteriors are the queries."""
    alignment: AlignmentMode = "viterbi"
    """Method that assigns frames to labels in training: viterbi, uniform or greedy (see `heads.label_queries`). Search
    always uses greedy."""
    queries: Literal["projection", "normed"] = "projection"
    """Layers between averaged posteriors and decoder. projection: a linear layer without bias. normed: a linear layer,
    a norm, ReLU and positions, as in FunASR."""
    query_gradient: bool = True
    """Whether the loss of the decoder has gradients with respect to the posteriors, as in FunASR. False: each CTC head
    learns from its own loss alone, and the decoder's loss reaches the encoder through the attention, and with
    `enhanced` also through the boundaries."""
    enhanced: Enhancement | None = None
    """Settings of the enhanced model. None: the plain one."""

    def problems(self) -> Iterator[str]:
        if self.enhanced and self.queries != "projection":
            yield "queries is 'normed' and enhanced is set: expected 'projection', as it has its own layers"

    @property
    def reads(self) -> Mapping[str, str]:
        shallow = {self.enhanced.shallow: self.enhanced.tap} if self.enhanced else {}
        return {**shallow, self.ctc: self.tap}

    @property
    def refines_below(self) -> float:
        return self.enhanced.refine_below if self.enhanced else 0.0

    def unrefined(self, decoding: Decoding) -> Decoding | None:
        if isinstance(decoding, ParallelDecoding) and decoding.refine and self.enhanced:
            return replace(decoding, refine=False)
        return None

    def check(self, *, taps: Collection[str], views: int) -> None:
        super().check(taps=taps, views=views)
        if self.enhanced and self.enhanced.tap not in (OUTPUT, *taps):
            raise ValueError(no_such_tap(self.enhanced.tap, taps))

    def frames_needed(self, num_labels: Any, num_repeats: Any) -> Any:
        return num_labels + num_repeats

    def label_axis(self, parameter: str) -> LabelAxis | None:
        part = parameter.partition("/")[0]
        if part in ("output", "refined_output"):
            return LabelAxis(-1)
        if parameter == "query/linear/kernel" and not self.enhanced:
            return LabelAxis(0)
        return LabelAxis(0) if part == "draft" else None

    def build(self, *, vocab_size: DimSize, blank_id: int, dtype: DTypeLike) -> "ParaformerV2Head":
        if max(self.dropped_ids, default=0) >= vocab_size:
            raise ValueError(
                f"dropped_ids is {self.dropped_ids}: expected ids below the number of labels, {vocab_size}"
            )
        return ParaformerV2Head(self, vocab_size, blank_id, dtype)


class Decoded(NamedTuple):
    """Output of the decoder."""

    logits: Float[Array, "B U V"]
    refined: Float[Array, "B U V"] | None
    """Logits after refinement; None in the plain model. They differ from `logits` for all labels: refinement has
    its own output layer, which reads the second decoder for labels of low confidence and the first for all others."""
    is_refined: Bool[Array, "B U"] | None
    """Labels of low confidence, which the second decoder computes again."""
    boundary_logits: Float[Array, "B T"] | None
    """Logits of a boundary after each frame."""


class ParaformerV2Head(RecognisingHead):
    """Module of a Paraformer-v2 head.

    Loss terms: `loss` (cross-entropy, nats) and, for the enhanced model, `refinement` and `boundary`, with their
    factors. Metrics: `accuracy`, `infeasible` and, for the enhanced model, `refined`, the share of labels that are
    refined, and `accuracy_refined`, the share of correct labels among all after refinement.

    Labels without frames, which the alignments greedy and uniform may have, have no loss, and count in its denominator.

    Source: An et al. 2024, "Paraformer-v2: An improved non-autoregressive transformer for noise-robust speech
    recognition" (arXiv:2409.17746); FunASR's funasr/models/paraformer_v2_community at commit 3c58cb56. Differs from:
    the Rust trainer, whose inference does not average the posteriors, and which drops queries without frames.
    """

    settings: ParaformerV2

    @property
    def dropped_ids(self) -> tuple[int, ...]:
        """Labels that are left out of texts."""
        return (self.blank_id, *self.settings.dropped_ids)

    def setup(self) -> None:
        self.query = Query(self.settings, self.dtype)
        self.decoder = self.settings.decoder.build(dtype=self.dtype)
        # float32 for any dtype of the encoder, because rounding of logits may change the best label.
        self.output = Linear(self.vocab_size)
        if self.settings.enhanced:
            self.refine = self.settings.decoder.with_layers(1).build(dtype=self.dtype)
            self.draft, self.refined_output = Table(self.vocab_size), Linear(self.vocab_size)
            self.boundary = Boundary()

    def __call__(self, encoded: Encoded, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        settings, frames = self.settings, without_padding(encoded.at(self.tap))
        runs = runs_of_text(
            encoded.emitted[settings.ctc],
            batch.tokens,
            batch.token_lengths,
            mode=settings.alignment,
            blank_id=self.blank_id,
        )
        num_labels = batch.tokens.shape[1]
        size = max(num_labels, frames.values.shape[1]) if settings.alignment == "greedy" else num_labels
        found = self._decoded(encoded, frames, runs, size, step)
        feasible = self.feasible(frames.lengths, batch)
        has_frames = jnp.any(members(runs, num_labels) > 0, axis=2)
        counted = length_mask(batch.token_lengths, num_labels) & has_frames & feasible[:, None]
        rows, weight = batch.weights, self.weight(frames.lengths, batch)

        def cross_entropy(logits: Float[Array, "B U V"]) -> Float[Array, ""]:
            losses = smoothed_cross_entropy(logits[:, :num_labels], batch.tokens, smoothing=settings.smoothing)
            return sum_counted(counted, losses, rows)

        def correct(logits: Float[Array, "B U V"]) -> Sum:
            return share_of_counted(jnp.argmax(logits[:, :num_labels], axis=-1) == batch.tokens, counted, rows)

        terms = {
            "loss": Sum(cross_entropy(found.logits), weight),
            "accuracy": correct(found.logits),
            "infeasible": Sum(jnp.sum(jnp.where(feasible, 0.0, rows)), jnp.sum(rows)),
        }
        if settings.enhanced:
            assert found.refined is not None
            assert found.is_refined is not None
            assert found.boundary_logits is not None
            terms["refinement"] = Sum(REFINEMENT_SCALE * cross_entropy(found.refined), weight)
            terms["accuracy_refined"] = correct(found.refined)
            terms["refined"] = share_of_counted(found.is_refined[:, :num_labels], counted, rows)
            targets = boundary_targets(runs.labels, frames.lengths)
            losses = nn.softplus(found.boundary_logits) - targets * found.boundary_logits  # binary cross-entropy
            inside = length_mask(frames.lengths, losses.shape[1]) & feasible[:, None]
            total = sum_counted(inside, losses, rows)
            terms["boundary"] = Sum(BOUNDARY_SCALE * total, self._frames_weight(frames.lengths, batch))
        return terms

    def denominators(
        self, lengths: Mapping[str, Int[Array, " B"]], batch: Batch, *, mask: Bool[Array, "B T"] | None
    ) -> dict[str, Float[Array, ""]]:
        own = super().denominators(lengths, batch, mask=mask)
        if not self.settings.enhanced:
            return own
        return own | {"refinement": own["loss"], "boundary": self._frames_weight(lengths[self.tap], batch)}

    def _frames_weight(self, frame_lengths: Int[Array, " B"], batch: Batch) -> Float[Array, ""]:
        return sum_counted(self.feasible(frame_lengths, batch), frame_lengths, batch.weights)

    def _decoded(self, encoded: Encoded, frames: Frames, runs: Runs, size: DimSize, step: Step) -> Decoded:
        """Returns the decoder's output for `size` queries."""
        enhanced = self.settings.enhanced
        posteriors = self._posteriors(encoded, self.settings.ctc)
        if not enhanced:
            means = mean_over(members(runs, size), posteriors)
            queries = self.query(means, frames.values.shape[-1], step=step)
            hidden = self.decoder(Frames(queries, runs.lengths), frames, step=step)
            return Decoded(self._logits(hidden), None, None, None)
        shallow, inner = self._posteriors(encoded, enhanced.shallow), without_padding(encoded.at(enhanced.tap))
        boundary_logits = self.boundary(jnp.concatenate([inner.values, frames.values], axis=-1))
        features, confidences = gated_queries(shallow, posteriors, runs, nn.sigmoid(boundary_logits), size=size)
        queries = self.query(features, frames.values.shape[-1], step=step)
        queries *= jnp.maximum(confidences, 0.1)[..., None].astype(queries.dtype)
        hidden = self.decoder(Frames(queries, runs.lengths), frames, step=step)
        logits = self._logits(hidden)
        probs = jax.nn.softmax(logits)
        is_refined = jnp.max(probs, axis=-1) < enhanced.refine_below
        draft = hidden + self.draft(jnp.argmax(logits, axis=-1), hidden.shape[-1]).astype(hidden.dtype)
        again = self.refine(Frames(draft, runs.lengths), frames, step=step)
        refined = self.refined_output(jnp.where(is_refined[..., None], again, hidden).astype(jnp.float32))
        return Decoded(logits, refined, is_refined, boundary_logits)

    def _posteriors(self, encoded: Encoded, ctc: str) -> Float[Array, "B T V"]:
        emitted = encoded.emitted[ctc]
        values = zero_padding(jnp.exp(emitted.values), emitted.lengths)
        return values if self.settings.query_gradient else jax.lax.stop_gradient(values)

    def _logits(self, hidden: Float[Array, "B U D"]) -> Float[Array, "B U V"]:
        return self.output(hidden.astype(jnp.float32))

    def search(self, encoded: Encoded, decoding: Decoding, state: Tree = None) -> tuple[Any, Tree]:
        """Returns the most likely label of each query. The times are those of the runs of CTC."""
        assert isinstance(decoding, ParallelDecoding), decoding
        logits, runs = self._found(encoded, refine=decoding.refine)
        starts, ends = spans(runs, logits.shape[1])
        return parallel_tokens(jax.nn.log_softmax(logits), runs.lengths, starts, ends, dropped=self.dropped_ids), None

    def emit(self, encoded: Encoded) -> Frames:
        """Returns the log-probabilities `[B U V]` of the labels of each query, with the number of queries."""
        logits, runs = self._found(encoded, refine=True)
        return Frames(jax.nn.log_softmax(logits), runs.lengths)

    def _found(self, encoded: Encoded, *, refine: bool) -> tuple[Float[Array, "B U V"], Runs]:
        frames = without_padding(encoded.at(self.tap))
        runs = greedy_runs(encoded.emitted[self.settings.ctc], blank_id=self.blank_id)
        found = self._decoded(encoded, frames, runs, frames.values.shape[1], None)
        return found.refined if refine and found.refined is not None else found.logits, runs


class Query(nn.Module):
    """Layers between averaged posteriors and the decoder."""

    settings: ParaformerV2
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "B U V"], width: int, *, step: Step) -> Float[Array, "B U D"]:
        """Returns the queries."""
        is_plain = not self.settings.enhanced and self.settings.queries == "projection"
        x = Linear(width, use_bias=not is_plain, name="linear")(x)  # float32: posteriors have large ratios
        if is_plain:
            return x.astype(self.dtype)
        x = layer_norm(1e-5, name="norm")(x)
        if self.settings.enhanced:
            return nn.silu(x).astype(self.dtype)
        drop = Dropout(self.settings.decoder.dropout)
        positions = sinusoids(numbers(0, x.shape[1]), width)[None]
        x = nn.relu(drop(x, step=step)) * width**0.5 + positions
        return drop(x, step=step).astype(self.dtype)


class Boundary(nn.Module):
    """Logit of a boundary between labels after each frame, in float32."""

    @nn.compact
    def __call__(self, x: Float[Array, "B T E"]) -> Float[Array, "B T"]:
        hidden = nn.silu(Linear(x.shape[-1] // 2, name="in")(x.astype(jnp.float32)))
        return Linear(1, name="out")(hidden)[..., 0]

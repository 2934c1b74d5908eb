"""Head of connectionist temporal classification (CTC): a projection of every frame to labels and blank."""

from collections.abc import Collection
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.pytrees import Tree
from asr_jax.core.settings import Finite, NonNegativeFloat, ShareBelow1, settings
from asr_jax.core.sums import Sum, Sums
from asr_jax.heads.base import LabelHead, RecognisingHead, sum_counted
from asr_jax.losses.consistency import view_divergence
from asr_jax.losses.ctc import ctc_loss
from asr_jax.nn.stochastic import Dropout
from asr_jax.search.base import Decoding
from asr_jax.search.ctc import CTCDecoding
from asr_jax.search.ctc_greedy import BestLabels, greedy_search

CONSISTENCY_WARMUP = 2000
"""Number of updates over which the factor `CTC.consistency` rises linearly from 0, as in icefall."""


@settings
class CTC(LabelHead):
    """Settings of a CTC head."""

    aligns: ClassVar[bool] = True

    dropout: ShareBelow1 = 0.1
    """Dropout rate before the projection."""
    consistency: NonNegativeFloat = 0.0
    """Factor of the divergence between the views of an utterance (CR-CTC), for models with two views or more. The paper
    uses 0.2."""
    delay_penalty: NonNegativeFloat = 0.0
    """λ of the delay penalty in training and validation, in nats per frame, for models that recognise while audio
    arrives: paths that emit labels early count more (`losses.ctc.ctc_loss`), which lowers the latency and may raise the
    error rate. The reported loss includes it, as in icefall, and can be negative. Typical: 0.01 to 0.1 with 25 frames
    per second; icefall's conformer_ctc3 uses 0.1. Source: Yao et al. 2023 (arXiv:2305.11539). Differs from: icefall,
    which has no penalty during its warm-up: train without it at first, and continue with --init-from."""
    blank_weight: Finite = 0.0
    """Value that is added to the logit of the blank, or that replaces it (`blank_mode`), in training and in search. 0:
    the logit is unchanged in both modes, as in fairseq."""
    blank_mode: Literal["add", "set"] = "add"
    """Use of blank_weight."""
    decoding: CTCDecoding = CTCDecoding()
    """Settings of the search in validation, and defaults of evaluation."""

    def check(self, *, taps: Collection[str], views: int) -> None:
        super().check(taps=taps, views=views)
        if self.consistency and views < 2:
            raise ValueError(f"consistency is {self.consistency}, but model.views is {views}: expected 2 or more views")

    def frames_needed(self, num_labels: Any, num_repeats: Any) -> Any:
        return num_labels + num_repeats

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> "CTCHead":
        return CTCHead(self, vocab_size, blank_id, dtype)


class CTCHead(RecognisingHead):
    """Module of a CTC head.

    Loss terms: `loss` (nats) and, if `CTC.consistency` is above 0, `consistency`, which is the divergence times its
    factor over the denominator of the loss. Metric: `infeasible`, the share of rows with fewer frames than their labels
    need.

    Source of the consistency: Yao et al. 2024, "CR-CTC: Consistency regularization on CTC for improved speech
    recognition" (arXiv:2410.05101), section 3.1; icefall's zipformer/model.py and train.py at commit 36e0420c.
    """

    aligns: ClassVar[bool] = True

    settings: CTC

    def setup(self) -> None:
        self.dropout = Dropout(self.settings.dropout)
        # float32 for any dtype of the encoder, because rounding of logits may change the best label.
        self.output = nn.Dense(self.vocab_size, dtype=jnp.float32)

    def __call__(self, encoded: Encoded, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        frames = encoded.at(self.tap)
        logits = self._logits(self.dropout(frames.values, step=step))
        losses, feasible = ctc_loss(
            logits,
            frames.lengths,
            batch.tokens,
            batch.token_lengths,
            blank_id=self.blank_id,
            delay_penalty=self.settings.delay_penalty,
        )
        rows, weight = batch.weights, self.weight(frames.lengths, batch)
        terms = {
            "loss": Sum(sum_counted(feasible, losses, rows), weight),
            "infeasible": Sum(jnp.sum(jnp.where(feasible, 0.0, rows)), jnp.sum(rows)),
        }
        if self.settings.consistency:
            total = jnp.zeros(())
            if encoded.views > 1:
                assert step is not None, "several views exist only in training"
                factor = self.settings.consistency * jnp.minimum((step + 1) / CONSISTENCY_WARMUP, 1.0)
                divergences = view_divergence(logits, frames.lengths, views=encoded.views)
                total = factor * sum_counted(feasible, divergences, rows)
            terms["consistency"] = Sum(total, weight)
        return terms

    @property
    def terms(self) -> tuple[str, ...]:
        return ("loss", "consistency") if self.settings.consistency else ("loss",)

    def initial_state(self, num_rows: int, decoding: Decoding) -> Tree:
        """Returns an empty state: the part of the search on the device looks at each frame alone."""
        return ()

    def search(self, encoded: Encoded, decoding: Decoding, state: Tree = None) -> tuple[Any, Tree]:
        """Returns token sequences for greedy search, or log-probabilities `[B T V]` for the stage of beam search.

        For greedy search of streams, the result is the most likely label of each frame.
        """
        assert isinstance(decoding, CTCDecoding), decoding
        frames = self.emit(encoded)
        if decoding.kind == "greedy" and state is None:
            return greedy_search(frames.values, frames.lengths, blank_id=self.blank_id), None
        return frames if decoding.kind == "beam" else BestLabels.of(frames.values), state

    def emit(self, encoded: Encoded) -> Frames:
        """Returns log-probabilities `[B T V]`, float32, with their lengths."""
        frames = encoded.at(self.tap)
        return Frames(jax.nn.log_softmax(self._logits(frames.values)), frames.lengths)

    def _logits(self, values: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        logits, weight = self.output(values), self.settings.blank_weight
        if not weight:
            return logits
        of_blank = logits.at[..., self.blank_id]
        return of_blank.add(weight) if self.settings.blank_mode == "add" else of_blank.set(weight)

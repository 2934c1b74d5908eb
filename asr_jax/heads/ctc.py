"""Connectionist temporal classification: a projection to labels and blank for every frame."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import OUTPUT, Batch, Encoded, Frames, no_such_tap
from asr_jax.core.sums import Sum, Sums
from asr_jax.heads.base import Head, HeadSettings
from asr_jax.losses.ctc import ctc_loss, is_feasible

WeightBy = Literal["utterances", "labels", "frames"]


@dataclass(frozen=True)
class CTC(HeadSettings):
    """A CTC head."""

    dropout: float = 0.1
    """Dropout before the projection."""
    weight_by: WeightBy = "labels"
    """What the loss is the mean over: utterances, labels (each label counts the same) or frames."""
    tap: str = OUTPUT
    """The inner output of the encoder that the head reads, one of the encoder's taps; empty: its output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: expected at least 0 and less than 1")

    def check(self, *, taps: Collection[str]) -> None:
        if self.tap != OUTPUT and self.tap not in taps:
            raise ValueError(no_such_tap(self.tap, taps))

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> "CTCHead":
        return CTCHead(self, vocab_size, blank_id)


class CTCHead(Head):
    """Terms: `loss` (nats). Metrics: `infeasible`, the share of rows whose frames cannot hold their labels."""

    settings: CTC
    vocab_size: int
    blank_id: int

    def setup(self) -> None:
        self.dropout = nn.Dropout(self.settings.dropout)
        # In float32 whatever the encoder computes in: rounded logits change which label is best.
        self.output = nn.Dense(self.vocab_size, dtype=jnp.float32)

    def __call__(self, encoded: Encoded, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        frames = encoded.at(self.settings.tap)
        logits = self.output(self.dropout(frames.values, deterministic=step is None))
        losses, feasible = ctc_loss(logits, frames.lengths, batch.tokens, batch.token_lengths, blank_id=self.blank_id)
        rows = batch.weights
        return {
            "loss": Sum(
                jnp.sum(jnp.where(feasible, losses * rows, 0.0)), self._weight(frames.lengths, feasible, batch)
            ),
            "infeasible": Sum(jnp.sum(jnp.where(feasible, 0.0, rows)), jnp.sum(rows)),
        }

    def weight(self, lengths: Mapping[str, Int[Array, " B"]], batch: Batch) -> dict[str, Float[Array, ""]]:
        frame_lengths = lengths[self.settings.tap]
        feasible = is_feasible(frame_lengths, batch.tokens, batch.token_lengths)
        return {"loss": self._weight(frame_lengths, feasible, batch)}

    def _weight(self, frame_lengths: Int[Array, " B"], feasible: Bool[Array, " B"], batch: Batch) -> Float[Array, ""]:
        counts = {
            "utterances": jnp.ones_like(frame_lengths),
            "labels": jnp.maximum(batch.token_lengths, 1),
            "frames": frame_lengths,
        }[self.settings.weight_by]
        return jnp.sum(jnp.where(feasible, batch.weights * counts, 0.0))

    def emit(self, encoded: Encoded) -> Frames:
        """Log-probabilities `[B T V]`, float32, with their lengths."""
        frames = encoded.at(self.settings.tap)
        return Frames(jax.nn.log_softmax(self.output(frames.values)), frames.lengths)

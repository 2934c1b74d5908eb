"""Base classes of heads, which compute loss terms and search results from an encoder's output."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import OUTPUT, Batch, Encoded, no_such_tap
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree
from asr_jax.core.settings import NonNegativeFloat, ShareBelow1, settings
from asr_jax.core.sums import Sum, Sums
from asr_jax.losses.ctc import num_repeats
from asr_jax.search.base import Decoding

PROGRESS, LEAST_WER = "progress", "least_wer"
"""Collection of Flax variables with the progress of training, which each head can read, and the variable in it: the
least word error rate of the validations so far."""


class Head(nn.Module):
    """Base class of head modules. Their parameter names are part of the checkpoint format."""

    recognises: ClassVar[bool] = False
    """Whether `search` returns token sequences."""
    aligns: ClassVar[bool] = False
    """Whether `emit` returns log-probabilities of CTC, which forced alignment uses."""
    needs_mask: ClassVar[bool] = False
    """Whether the loss is computed on masked frames; masking is then also applied in evaluation."""

    @property
    def tap(self) -> str:
        """Name of the encoder's tap that the head reads, or `core.batch.OUTPUT` for the encoder's output."""
        return OUTPUT

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the CTC heads whose log-probabilities (`Encoded.emitted`) the head reads."""
        return ()

    def __call__(self, encoded: Encoded, batch: Batch, *, step: Int[Array, ""] | None) -> Sums:
        """Returns the loss terms and metrics as sums over the batch, keyed by their names.

        The weights of loss terms equal the results of `denominators`.

        Args:
            step: Number of updates applied before; None in evaluation.
        """
        raise NotImplementedError

    def denominators(
        self, lengths: Mapping[str, Int[Array, " B"]], batch: Batch, *, mask: Bool[Array, "B T"] | None
    ) -> dict[str, Float[Array, ""]]:
        """Returns the denominator of each loss term, from lengths, labels and masks alone, before any gradient.

        Names that `__call__` returns and this method does not are metrics, which are logged and have no gradient.

        Args:
            lengths: Number of frames of each row, keyed by tap, and by `core.batch.OUTPUT` for the encoder's output.
            batch: Batch without its encoding.
            mask: Frames that the encoder masks; None if it masks none.
        """
        raise NotImplementedError

    @nn.nowrap
    def scheduled(self, step: Int[Array, ""], least_wer: Float[Array, ""]) -> dict[str, Float[Array, ""]]:
        """Returns values that change during training, such as a temperature.

        Args:
            step: Number of updates applied before.
            least_wer: Least word error rate of the validations before; infinite before the first one.
        """
        return {}

    def initial_state(self, num_rows: int, decoding: Decoding) -> Tree:
        """Returns the state of the search of streams before their first frames.

        The first axis of each array has the streams.

        Raises:
            UserError: If the head cannot search streams.
        """
        raise UserError(
            f"{type(self).__name__.removesuffix('Head')} cannot recognise a stream, because it reads whole recordings: "
            "expected a CTC or a transducer head (documentation: streaming)"
        )

    def search(self, encoded: Encoded, decoding: Decoding, state: Tree = None) -> tuple[Any, Tree]:
        """Searches the token sequences of each row. The head's parameters are bound, and all shapes are static.

        Args:
            encoded: Output and taps of the encoder.
            state: For windows of streams: `initial_state`, or the state that the call for the window before returned.
                None: rows are whole recordings.

        Returns:
            The result, and the state for the next window. The result is `TimedTokens`, or the input of the decoding's
            host stage; for streams, the input of the decoding's `StreamSearch`.
        """
        raise NotImplementedError

    def emit(self, encoded: Encoded) -> Any:
        """Returns the head's outputs for each frame, such as log-probabilities, for alignment and analysis."""
        raise NotImplementedError


class RecognisingHead(Head):
    """Base class of head modules that learn from labels and find token sequences."""

    recognises: ClassVar[bool] = True

    settings: Any
    vocab_size: int
    """Number of labels, including the blank."""
    blank_id: int
    dtype: DTypeLike
    """Data type that the encoder computes in."""

    @property
    def tap(self) -> str:
        return self.settings.tap

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(self.settings.reads)

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the loss terms whose denominator is `weight`."""
        return ("loss",)

    def denominators(
        self, lengths: Mapping[str, Int[Array, " B"]], batch: Batch, *, mask: Bool[Array, "B T"] | None
    ) -> dict[str, Float[Array, ""]]:
        return dict.fromkeys(self.terms, self.weight(lengths[self.tap], batch))

    @nn.nowrap
    def feasible(self, frame_lengths: Int[Array, " B"], batch: Batch) -> Bool[Array, " B"]:
        """Returns whether each row has the frames that its labels need; other rows have no loss."""
        num_labels = batch.token_lengths
        return frame_lengths >= self.settings.frames_needed(num_labels, num_repeats(batch.tokens, num_labels))

    @nn.nowrap
    def weight(self, frame_lengths: Int[Array, " B"], batch: Batch) -> Float[Array, ""]:
        """Returns the denominator of the losses."""
        counts = self.settings.counts(frame_lengths, batch.token_lengths)
        return sum_counted(self.feasible(frame_lengths, batch), counts, batch.weights)


def sum_counted(counted: Bool[Array, "B *#rest"], values: Any, rows: Float[Array, " B"]) -> Float[Array, ""]:
    """Returns the sum of the counted values [B ...], each times the weight of its row."""
    return jnp.sum(jnp.where(counted, values * rows.reshape(-1, *(1,) * (values.ndim - 1)), 0.0))


def share_of_counted(is_member: Bool[Array, "B U"], counted: Bool[Array, "B U"], rows: Float[Array, " B"]) -> Sum:
    """Returns the share of counted labels that are members, such as the correct ones."""
    values = is_member.astype(jnp.float32)
    return Sum(sum_counted(counted, values, rows), sum_counted(counted, jnp.ones_like(values), rows))


class LabelAxis(NamedTuple):
    """Axis of a parameter with one entry for each label."""

    axis: int
    more: int = 0
    """Number of entries after the labels, such as durations. -1: the blank has no entry."""


@settings
class HeadSettings:
    """Settings of a head. `build` returns its module."""

    recognises: ClassVar[bool] = False
    """Whether the head learns from labels and finds token sequences."""
    aligns: ClassVar[bool] = False
    """Whether the head computes log-probabilities of CTC, which forced alignment uses."""

    scale: NonNegativeFloat = 1.0
    """Factor of the head's terms in the sum of all heads' losses."""

    @property
    def reads(self) -> Mapping[str, str]:
        """Tap of each CTC head whose log-probabilities (`Encoded.emitted`) the head reads, by the name of that head."""
        return {}

    def check(self, *, taps: Collection[str], views: int) -> None:
        """Checks that the model has everything that the head needs.

        Args:
            views: Number of views of each utterance in training.

        Raises:
            ValueError: If the model lacks a tap or has another number of views than expected.
        """

    @property
    def search_settings(self) -> Decoding | None:
        """Settings of the search: the subclass's field `decoding`, or None if it has none."""
        return getattr(self, "decoding", None)

    @property
    def refines_below(self) -> float:
        """Probability of a label below which the head computes it again in refinement; 0 without refinement."""
        return 0.0

    def unrefined(self, decoding: Decoding) -> Decoding | None:
        """Returns the same decoding before the head corrects its labels; None if it corrects none."""
        return None

    @property
    def row_parts(self) -> int:
        """Number that must divide the rows of a batch in training, because the head splits them."""
        return 1

    def frames_needed(self, num_labels: Any, num_repeats: Any) -> Any:
        """Returns the least number of frames that the head needs, for ints and arrays. Shorter ones are rejected."""
        return 0 * num_labels

    def label_axis(self, parameter: str) -> LabelAxis | None:
        """Returns the axis of a parameter that has one entry per label; None if no axis has.

        Initial weights of another vocabulary keep the entries of the labels that both vocabularies have.

        Args:
            parameter: Path of the parameter within the head, such as `output/kernel`.
        """
        return LabelAxis(-1)

    def chance(self) -> dict[str, float]:
        """Returns the values that some of the metrics have for a model that has learned nothing, keyed by metric."""
        return {}

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> Head:
        """Returns the head's module."""
        raise NotImplementedError


@settings
class LabelHead(HeadSettings):
    """Settings of a head that learns from labels and finds token sequences."""

    recognises: ClassVar[bool] = True

    tap: str = OUTPUT
    """Name of the encoder's tap that the head reads. Empty: the encoder's output."""
    weight_by: Literal["utterances", "labels", "frames"] = "labels"
    """Denominator of the losses: the number of utterances, of labels (all labels have the same weight) or of frames."""

    def check(self, *, taps: Collection[str], views: int) -> None:
        if self.tap != OUTPUT and self.tap not in taps:
            raise ValueError(no_such_tap(self.tap, taps))

    def counts(self, num_frames: Int[Array, " B"], num_labels: Int[Array, " B"]) -> Int[Array, " B"]:
        """Returns the share of each row in the denominator of the losses."""
        units = {"utterances": jnp.ones_like(num_labels), "labels": jnp.maximum(num_labels, 1), "frames": num_frames}
        return units[self.weight_by]


@settings
class DecoderHead(LabelHead):
    """Settings of a head with a decoder of labels, which learns by cross-entropy."""

    smoothing: ShareBelow1 = 0.1
    """Share of the targets of the cross-entropy that is spread over other labels, or over all by `AttentionDecoder`."""

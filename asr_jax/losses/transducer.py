"""Log-probabilities of a transducer's arcs: penalties, and durations of TDT."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.core.settings import Finite, NonNegativeFloat, NonNegativeInt, above, between, settings
from asr_jax.kernels.transducer_joint.reference import arc_log_probs
from asr_jax.losses.lattice import Arcs


@settings
class Since:
    """Time from which a penalty has its value; `before` holds until then. Without `wer` and `updates`, it is the start.

    Source: CAIMAN-ASR 1.14, StepSchedule (`--delay_penalty wer_schedule`).
    """

    before: Finite = 0.0
    """Value until then."""
    wer: NonNegativeFloat = 0.0
    """Word error rate, as a fraction, below which a validation begins the value, such as 0.3. The validation is that of
    the parameters that evaluation uses, on all sets. 0: error rates have no effect."""
    updates: NonNegativeInt = 0
    """Number of updates after which the value holds in any case. 0: no such number."""

    def value(self, value: float, step: Int[Array, ""] | None, least_wer: Float[Array, ""]) -> Any:
        """Returns the penalty in an update; `value` itself outside of training (`step` is None).

        Args:
            step: Number of updates applied before.
            least_wer: Least word error rate of the validations so far.
        """
        if step is None or not (self.wer or self.updates):
            return value
        begun = (least_wer < self.wer) | (step >= self.updates if self.updates else False)
        return jnp.where(begun, value, self.before)


@settings
class Penalties:
    """Changes of the log-probabilities of a transducer's arcs.

    Source: Kang et al. 2022 (arXiv:2211.00490) for the delay penalty; the loss of CAIMAN-ASR 1.14 for the others.
    """

    delay: Finite = 0.0
    """λ of the delay penalty in training and validation, in nats per frame, for models that recognise while audio
    arrives: λ · ((T - 1) / 2 - t) is added to the log-probability of each label at frame t of T, so that paths that
    emit labels early count more. It lowers the latency and may raise the error rate. The reported losses include it, as
    in icefall, and can be negative. The paper uses 0.001 to 0.01, CAIMAN-ASR 0.01."""
    delay_since: Since = Since()
    """Time from which `delay` holds, and the value before. CAIMAN-ASR: wer 0.3; icefall: the updates of its
    warm-up."""
    eos: Finite = 0.0
    """λ of the same penalty for the label `eos_id` alone, in addition."""
    eos_id: Annotated[int, between(-1)] = -1
    """Id of the label that ends an utterance. -1: none."""
    star: Annotated[float, above(0, most=1)] = 1.0
    """Probability with which a frame is skipped after the label `star_id`, which stands for any missing text."""
    star_since: Since = Since(before=1.0)
    """Time from which `star` holds, and the value before. CAIMAN-ASR: before 0.75, wer 0.2."""
    star_id: Annotated[int, between(-1)] = -1
    """Id of the label that stands for missing text in partial transcripts. -1: none."""

    def problems(self) -> Iterator[str]:
        if not 0 < self.star_since.before <= 1:
            yield f"star_since.before is {self.star_since.before}: expected a probability above 0, at most 1"

    def values(self, step: Int[Array, ""] | None, least_wer: Float[Array, ""]) -> dict[str, Any]:
        """Returns `delay` and `star` in an update; the arguments are those of `Since.value`."""
        return {
            "delay": self.delay_since.value(self.delay, step, least_wer),
            "star": self.star_since.value(self.star, step, least_wer),
        }


NO_PENALTIES = Penalties()


def penalised(
    blank: Float[Array, "B T S"],
    label: Float[Array, "B T U"],
    num_frames: Int[Array, " B"],
    labels: Int[Array, "B U"],
    penalties: Penalties,
    values: Mapping[str, Any] | None = None,
) -> tuple[Float[Array, "B T S"], Float[Array, "B T U"]]:
    """Applies penalties to log-probabilities of arcs.

    Args:
        blank: Log-probabilities of blanks.
        label: Log-probabilities of labels.
        num_frames: Number of valid frames of each row.
        values: `Penalties.values`. None: those of `penalties`.
    """
    if penalties == NO_PENALTIES:
        return blank, label
    delay, star = (values or vars(penalties))["delay"], (values or vars(penalties))["star"]
    ids = labels[:, None, : label.shape[2]]
    earliness = (num_frames[:, None, None] - 1) / 2 - jnp.arange(label.shape[1])[None, :, None]
    label += (delay * earliness).astype(label.dtype)
    if penalties.eos_id >= 0:
        label += jnp.where(ids == penalties.eos_id, penalties.eos * earliness, 0).astype(label.dtype)
    if penalties.star_id >= 0:
        # The star itself is free apart from the delay penalty; after it, any frame is skipped at the same cost.
        is_star = ids == penalties.star_id
        label = jnp.where(is_star, (delay * earliness).astype(label.dtype), label)
        after = jnp.pad(jnp.broadcast_to(is_star, label.shape), ((0, 0), (0, 0), (1, 0)))
        blank = jnp.where(after, jnp.log(jnp.asarray(star, blank.dtype)), blank)
    return blank, label


def tdt_log_probs(
    logits: Float[Array, "B T S W"], labels: Int[Array, "B U"], *, blank_id: int, arcs: Arcs, sigma: float
) -> tuple[Float[Array, "K B T S"], Float[Array, "L B T U"]]:
    """Returns the log-probabilities of the arcs of a token-and-duration transducer (TDT).

    Source: Xu et al. 2023 (arXiv:2304.06795), sections 3 and 4; NeMo's `TDTLossNumba` at commit 8cfedd72.

    Args:
        logits: Logits of V labels, followed by those of the durations `arcs.label`.
        arcs: Durations of the arcs. Those of blanks are those of labels without 0.
        sigma: Number that is subtracted from all log-probabilities of labels and blanks (logit under-normalisation).
    """
    num_durations = len(arcs.label)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    blank, label = arc_log_probs(logits[..., :-num_durations], labels, blank_id=blank_id)
    durations = jnp.moveaxis(jax.nn.log_softmax(logits[..., -num_durations:]), -1, 0)
    of_blank = jnp.stack([durations[arcs.label.index(d)] for d in arcs.blank])
    return of_blank + blank[None] - sigma, durations[:, :, :, : label.shape[2]] + label[None] - sigma


def tdt_arcs(durations: tuple[int, ...]) -> Arcs:
    """Returns the arcs of a token-and-duration transducer. A blank always consumes a frame."""
    return Arcs(blank=tuple(d for d in durations if d), label=durations)

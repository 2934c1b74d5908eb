"""Learning rate schedules: settings that build a function from the number of applied updates to the learning rate."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from asr_jax.core.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Share, above, settings

Rate = Callable[[Any], Float[Array, ""]]
"""Learning rate of an update as a function of the number of updates applied before it (0 for the first)."""


@dataclass(frozen=True)
class RunLength:
    """Length of a run, for schedules that end with it or that count epochs."""

    num_updates: int
    """Number of updates of the run."""
    updates_per_epoch: float
    """Number of updates per epoch, which may be a fraction. Infinite: it is not known, and no setting is in epochs."""

    def updates(self, epochs: float) -> float:
        """Returns the number of updates of some epochs."""
        return epochs * self.updates_per_epoch if epochs else 0


@settings
class Schedule:
    """Base class of learning rate schedules.

    In the formulas of the subclasses, `u` is the number of updates applied before (0 for the first update) and `e` is
    the epoch, counted from 1.
    """

    peak_lr: PositiveFloat = 1e-3
    """Highest learning rate."""
    min_lr: NonNegativeFloat = 0.0
    """Minimum learning rate, which also applies in warm-up."""
    rate_set: Literal["before_update", "after_update", "before_run_and_after_update"] = "before_update"
    """Time at which the learning rate of an update is set. after_update (NVIDIA's QuartzNet): the first update of a run
    has the peak rate, and the epoch of all others is that of the update before. before_run_and_after_update (NVIDIA's
    wav2vec 2.0): the first two updates have the first rate, and all others have the rate of the update before."""

    def problems(self) -> Iterator[str]:
        if self.min_lr > self.peak_lr:
            yield f"min_lr is {self.min_lr}: expected at most peak_lr, {self.peak_lr}"

    @property
    def counts_epochs(self) -> bool:
        """Whether the learning rate depends on the length of an epoch."""
        return any(value for name, value in vars(self).items() if name.endswith("_epochs"))

    def warmup_length(self, length: RunLength) -> float:
        """Returns the length of the warm-up in updates, for a run of some length."""
        return getattr(self, "warmup_updates", 0) + length.updates(getattr(self, "warmup_epochs", 0))

    def build(self, length: RunLength) -> Rate:
        """Returns the learning rate as a function of the number of updates applied before, for a run of some length."""
        late = 1 if self.rate_set == "after_update" else 0
        # A float32 quotient may be rounded to below its integer value. A quarter of the smallest step is added to it.
        slack = 0.0
        if math.isfinite(length.updates_per_epoch):
            slack = 0.25 / Fraction(length.updates_per_epoch).limit_denominator(10**6).denominator

        def rate(updates: Any) -> Float[Array, ""]:
            update = jnp.asarray(updates, jnp.float32)
            if self.rate_set == "before_run_and_after_update":
                update = jnp.maximum(update - 1, 0)
            epoch = jnp.floor((jnp.maximum(update - late, 0) + slack) / length.updates_per_epoch) + 1
            found = jnp.maximum(self.peak_lr * self.factor(update, epoch, length), self.min_lr)
            return jnp.where(update < late, self.peak_lr, found)

        return rate

    def factor(self, update: Float[Array, ""], epoch: Float[Array, ""], length: RunLength) -> Float[Array, ""]:
        """Returns the learning rate as a fraction of the peak, before the minimum is applied.

        Args:
            update: Number of updates applied before.
            epoch: Epoch of the update, from 1.
        """
        raise NotImplementedError


@settings
class WarmupHoldDecay(Schedule):
    """Linear warm-up to the peak, hold, then decay. Lengths in updates and in epochs are added.

    This covers QuartzNet's exponential and legacy (polynomial of power 2) policies, the half-life of CAIMAN-ASR, and
    linear decay to a minimum. In the formulas, W and H are the total lengths of warm-up and hold in updates.
    """

    warmup_updates: NonNegativeInt = 1000
    """Length of the warm-up in updates. Its factor is (u + 1) / (W + 1), unless `counts_from` is 1."""
    warmup_epochs: NonNegativeFloat = 0.0
    """Length of the warm-up in epochs."""
    hold_updates: NonNegativeInt = 0
    """Length of the hold at the peak in updates."""
    hold_epochs: NonNegativeFloat = 0.0
    """Length of the hold at the peak in epochs."""
    decay: Literal["cosine", "linear", "polynomial", "exponential", "half_life", "inverse_sqrt", "noam", "none"] = (
        "cosine"
    )
    """Shape of the decay. cosine, linear and polynomial, (1 - progress)^power, end at `final_share`. exponential is
    gamma^(e - warm-up - hold) with lengths in epochs, in steps of whole epochs. half_life is 0.5^((u - W - H) /
    half_life_updates). inverse_sqrt is sqrt((W + H) / u), with the minimum `final_share`. noam is (W / (u - H))^power,
    as NeMo's NoamHoldAnnealing, whose decay_rate is the power."""
    decay_updates: NonNegativeInt = 0
    """Length of cosine, linear and polynomial decay in updates. 0: until the last update of the run."""
    final_share: Share = 0.0
    """Final learning rate as a fraction of the peak."""
    power: PositiveFloat = 2.0
    """Exponent of the decays polynomial and noam."""
    gamma: Annotated[float, above(0, most=1)] = 0.981
    """Factor per epoch of the exponential decay."""
    half_life_updates: PositiveInt = 10880
    """Half-life of the decay half_life in updates."""
    counts_from: Literal[0, 1] = 0
    """Number u of the first update. 0: the peak follows after W updates of warm-up. 1 (the Rust trainer, as in
    Polynomial and TriStage): the factor of the warm-up is u / W, so the last update of the warm-up has the peak, and
    the decay begins one update earlier."""

    def factor(self, update: Float[Array, ""], epoch: Float[Array, ""], length: RunLength) -> Float[Array, ""]:
        update = update + self.counts_from
        warmup = self.warmup_length(length)
        start = warmup + self.hold_updates + length.updates(self.hold_epochs)
        since = jnp.maximum(update - start, 0)
        progress = jnp.minimum(since / (self.decay_updates or max(length.num_updates - start, 1)), 1.0)
        first = max(start, 1)
        decayed = {
            "cosine": lambda: self._ending(0.5 * (1 + jnp.cos(jnp.pi * progress))),
            "linear": lambda: self._ending(1 - progress),
            "polynomial": lambda: self._ending((1 - progress) ** self.power),
            "exponential": lambda: _power(self.gamma, epoch - start / length.updates_per_epoch),
            "half_life": lambda: _power(0.5, since / self.half_life_updates),
            "inverse_sqrt": lambda: jnp.maximum(jnp.sqrt(first / jnp.maximum(update, first)), self.final_share),
            "noam": lambda: (max(warmup, 1) / jnp.maximum(update - start + warmup, max(warmup, 1))) ** self.power,
            "none": lambda: jnp.ones_like(update),
        }[self.decay]()
        before_first = 1 - self.counts_from
        warm = (update + before_first) / jnp.maximum(warmup + before_first, 1e-9)
        return jnp.where(update < start, jnp.minimum(warm, 1.0), decayed)

    @property
    def counts_epochs(self) -> bool:
        return super().counts_epochs or self.decay == "exponential"

    def _ending(self, share: Float[Array, ""]) -> Float[Array, ""]:
        return self.final_share + (1 - self.final_share) * share


@settings
class InverseEpoch(Schedule):
    """Learning rate that changes once per epoch: e / W up to epoch W, 1 up to W + H, then (W / (e - H))^exponent."""

    warmup_epochs: NonNegativeInt = 20
    """W: length of the warm-up in epochs."""
    hold_epochs: NonNegativeInt = 160
    """H: length of the hold at the peak in epochs."""
    exponent: NonNegativeFloat = 1.0
    """Exponent of the decay. 0: no decay."""

    @property
    def counts_epochs(self) -> bool:
        return True

    def factor(self, update: Float[Array, ""], epoch: Float[Array, ""], length: RunLength) -> Float[Array, ""]:
        warmup = max(self.warmup_epochs, 1)
        decayed = (warmup / jnp.maximum(epoch - self.hold_epochs, 1)) ** self.exponent
        warm = jnp.minimum(epoch / warmup, 1.0)
        return jnp.where(epoch <= self.warmup_epochs + self.hold_epochs, warm, decayed)


@settings
class Polynomial(Schedule):
    """Schedule of wav2vec 2.0's pre-training: linear warm-up, hold, then (1 - progress)^power down to `final_share`.

    With s = u + 1, warm-up rises linearly with s / W, and progress = (s - W) / (updates - W). The hold is not
    subtracted from progress: after a hold the rate jumps to the value that it would have without one.

    Source: NVIDIA's wav2vec 2.0, lr_poly_policy; fairseq's polynomial_decay.
    """

    warmup_updates: NonNegativeInt = 32000
    """W: length of the warm-up in updates."""
    hold_updates: NonNegativeInt = 0
    """Length of the hold at the peak in updates."""
    power: PositiveFloat = 1.0
    """Exponent of the decay."""
    start_share: Share = 0.0
    """Learning rate at the start of the warm-up as a fraction of the peak."""
    final_share: Share = 0.0
    """Learning rate at and after the last update as a fraction of the peak."""

    def factor(self, update: Float[Array, ""], epoch: Float[Array, ""], length: RunLength) -> Float[Array, ""]:
        step, warmup = update + 1, self.warmup_updates
        progress = jnp.clip((step - warmup) / max(length.num_updates - warmup, 1), 0.0, 1.0)
        decayed = self.final_share + (1 - self.final_share) * (1 - progress) ** self.power
        held = jnp.where(step <= warmup + self.hold_updates, 1.0, decayed)
        return jnp.where(step <= warmup, _rising(step, warmup, self.start_share), held)


@settings
class TriStage(Schedule):
    """Schedule of wav2vec 2.0's fine-tuning: linear warm-up, hold, then exponential decay to `final_share`.

    Source: NVIDIA's wav2vec 2.0, lr_exp_policy; fairseq's tri_stage.
    """

    warmup_share: Share = 0.1
    """Length of the warm-up as a fraction of the run."""
    hold_share: Share = 0.4
    """Length of the hold at the peak as a fraction of the run."""
    start_share: Share = 0.01
    """Learning rate at the start of the warm-up as a fraction of the peak."""
    final_share: Share = 0.05
    """Final learning rate as a fraction of the peak; must be above 0 if `gamma` is 0."""
    gamma: Share = 0.0
    """Factor per update of the decay. 0: the factor that reaches `final_share` at the last update."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.warmup_share + self.hold_share >= 1:
            yield f"warmup_share is {self.warmup_share} and hold_share is {self.hold_share}: expected a sum below 1"
        if not (self.final_share or self.gamma):
            yield "final_share and gamma are 0: expected one of them above 0, since the decay is exponential"

    def factor(self, update: Float[Array, ""], epoch: Float[Array, ""], length: RunLength) -> Float[Array, ""]:
        step = update + 1
        warmup, hold = round(self.warmup_share * length.num_updates), round(self.hold_share * length.num_updates)
        since = jnp.maximum(jnp.minimum(step, length.num_updates) - warmup - hold, 0)
        gamma = self.gamma or self.final_share ** (1 / max(length.num_updates - warmup - hold, 1))
        decayed = jnp.maximum(_power(gamma, since), self.final_share)
        return jnp.where(step <= warmup, _rising(step, warmup, self.start_share), decayed)


@settings
class Eden(Schedule):
    """((u² + U²) / U²)^-¼ · ((e² + E²) / E²)^-¼ with e from 0, times a linear warm-up from `warmup_start` to 1.

    The schedule is made for ScaledAdam, with a peak of 0.045.

    Source: icefall's zipformer recipe, Eden and Eden2.
    """

    peak_lr = 0.045
    decay_updates: PositiveFloat = 7500.0
    """U: number of updates after which the rate begins to fall."""
    decay_epochs: NonNegativeFloat = 3.5
    """E: number of epochs after which the rate begins to fall. 0: epochs have no effect, and the exponent of updates is
    -½ (Eden2)."""
    warmup_updates: NonNegativeFloat = 500.0
    """Length of the warm-up in updates."""
    warmup_start: Share = 0.5
    """Factor of the warm-up at the first update."""

    def factor(self, update: Float[Array, ""], epoch: Float[Array, ""], length: RunLength) -> Float[Array, ""]:
        falling = (1 + (update / self.decay_updates) ** 2) ** (-0.25 if self.decay_epochs else -0.5)
        if self.decay_epochs:
            falling *= (1 + ((epoch - 1) / self.decay_epochs) ** 2) ** -0.25
        return falling * _rising(jnp.minimum(update, self.warmup_updates), self.warmup_updates, self.warmup_start)


def _rising(step: Float[Array, ""], warmup: float, start_share: float) -> Float[Array, ""]:
    return start_share + (1 - start_share) * step / max(warmup, 1e-9) if warmup else jnp.ones_like(step)


def _power(base: float, exponent: Float[Array, ""]) -> Float[Array, ""]:
    """Returns base^exponent by the logarithm. A base near 1 in float32 would be visibly off after 100,000 updates."""
    return jnp.exp(math.log(base) * exponent)

"""Settings of optimizers, which build an optax transformation for all parameters of a model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree, flatten, pick
from asr_jax.core.settings import NonNegativeFloat, PositiveFloat, ShareBelow1, above, settings
from asr_jax.optim.rules import Rules, by_rules, check_rules, map_with_path, tree_by_rules
from asr_jax.optim.scaled_adam import Options, scaled_adam
from asr_jax.optim.schedules import Eden, Rate, RunLength, Schedule, WarmupHoldDecay
from asr_jax.optim.transformations import (
    Clip,
    Transformation,
    add_decay,
    clipped,
    fairseq_adam,
    muon,
    novograd,
    times_rate,
    trust_ratio,
)

Factors = tuple[tuple[str, NonNegativeFloat], ...]
"""Rules whose values are at least 0."""
KERNELS: Rules = ((".*(kernel|embedding)", 1.0), ("rest", 0.0))
EVERYTHING: Rules = (("rest", 1.0),)
NOTHING: Rules = (("rest", 0.0),)
NEVER = -1.0
"""Value of `Optimizer.freeze_updates` for parameters that are never trained."""


@settings
class Optimizer:
    """Base class of optimizer settings.

    Rules are pairs of a regular expression, which must match the whole path of a parameter, and a value. Exactly one
    rule must match each parameter. `rest` in place of an expression matches all parameters that no other rule matches.
    """

    schedule: Schedule = field(default_factory=WarmupHoldDecay)
    """Schedule of the learning rate."""
    clip: Clip = "global_norm"
    """Quantity that `clip_at` limits: the norm of all gradients, the norm of each tensor, or each value."""
    clip_at: NonNegativeFloat = 1.0
    """Limit of the gradients. 0: no clipping."""
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay per update, multiplied by the learning rate and by `decay_factors`."""
    decay_factors: Factors = KERNELS
    """Rules for factors of the weight decay. Default: 1 for parameters whose name ends in kernel or embedding, 0 for
    biases, gains and scales."""
    lr_factors: Factors = EVERYTHING
    """Rules for factors of the learning rate."""
    layer_decay: Annotated[float, above(0, most=1)] = 1.0
    """Factor of the learning rate from each layer to the layer before it. Heads have the full rate."""
    freeze_updates: Rules = NOTHING
    """Rules for the number of updates before which parameters do not change. -1: they never change, and their gradient
    is not computed."""
    b1: ShareBelow1 = 0.9
    """Decay rate of the first moment of the gradients (momentum)."""
    b2: ShareBelow1 = 0.98
    """Decay rate of the second moment of the gradients."""
    eps: PositiveFloat = 1e-8
    """Epsilon added to the root of the second moment."""
    frozen_statistics: Literal["kept", "updated"] = "kept"
    """Running statistics of batch norms whose parameters are frozen. kept: they do not change, and they normalise, so
    that a frozen module computes the same as in evaluation, except for dropout. updated (PyTorch's train mode): each
    batch normalises by its own statistics and changes the running ones."""

    def problems(self) -> Iterator[str]:
        for rule, value in self.freeze_updates:
            if value < 0 and value != NEVER:
                yield (
                    f"freeze_updates: the value of {rule!r} is {value}; expected 0 or more, or -1 to freeze for the "
                    "whole run"
                )

    @property
    def decays_in_momentum(self) -> bool:
        """Whether weight decay is part of a momentum; the decay of frozen parameters is then excluded from it."""
        return False

    def directions(self) -> Transformation:
        """Returns a transformation from clipped gradients to directions; changes are -learning_rate · direction."""
        raise NotImplementedError

    def changes(self) -> Transformation:
        """Returns a transformation from clipped gradients and `learning_rate` to changes of the parameters."""
        return optax.chain(self.directions(), times_rate())

    def decay(self, params: Tree) -> Tree:
        """Returns the weight decay of each parameter.

        Raises:
            UserError: If a parameter does not match exactly one rule.
        """
        factors = tree_by_rules(params, self.decay_factors, what="optim.decay_factors")
        return map_with_path(lambda _, factor: self.weight_decay * factor, factors)

    def build(self, length: RunLength, factor: Callable[[str, Any], Any] | None = None) -> "Updater":
        """Returns the optimizer for a run of some length.

        `factor(path, array)` returns a further factor of a parameter's learning rate, as a number or an array. Default:
        1.
        """
        return Updater(self, self.changes(), self.schedule.build(length), factor or (lambda path, array: 1.0))


@dataclass(frozen=True)
class Updater:
    """Optimizer that converts gradients to changes of the parameters."""

    settings: Optimizer
    changes: Transformation
    rate: Rate
    """Learning rate as a function of the number of updates applied before."""
    factor: Callable[[str, Any], Any]
    """`factor(path, array)` returns a factor of the parameter's learning rate."""

    def init(self, params: Tree) -> Any:
        """Returns the initial state of the optimizer for the parameters that are trained."""
        return self.changes.init(params)

    def check(self, params: Tree) -> None:
        """Checks the rules against all parameters of the model.

        Raises:
            UserError: If a parameter does not match exactly one rule, if a rule matches no parameter, or if every
                parameter is frozen.
        """
        for name in ("decay_factors", "lr_factors", "freeze_updates"):
            check_rules(params, getattr(self.settings, name), what=f"optim.{name}")
        if not flatten(self.split(params)[0]):
            raise UserError(
                "optim.freeze_updates is -1 for every parameter: nothing would be trained; expected one parameter or "
                "more with 0 or a number of updates"
            )

    def split(self, params: Tree) -> tuple[Tree, Tree]:
        """Returns the parameters that are trained, and those that never change."""
        until = by_rules(flatten(params), self.settings.freeze_updates, what="optim.freeze_updates")
        return pick(params, lambda path: until[path] != NEVER), pick(params, lambda path: until[path] == NEVER)

    def update(self, grads: Tree, state: Any, params: Tree, *, updates: Int[Array, ""] | int) -> tuple[Tree, Any]:
        """Returns the changes to add to the parameters, and the next state.

        Args:
            params: Parameters that are trained.
            updates: Number of updates applied before.
        """
        lr_factors = tree_by_rules(params, self.settings.lr_factors, what="optim.lr_factors")
        frozen_until = tree_by_rules(params, self.settings.freeze_updates, what="optim.freeze_updates")

        def thawed(path: str, array: Any, until: float) -> Any:
            return jnp.where(updates < until, 0.0, array) if until else array

        def scaled(path: str, change: Any, factor: float) -> Any:
            return change * (factor * self.factor(path, change))

        grads = map_with_path(thawed, grads, frozen_until)
        if self.settings.clip_at:
            grads = clipped(grads, self.settings.clip, self.settings.clip_at)
        decayed = map_with_path(thawed, params, frozen_until) if self.settings.decays_in_momentum else params
        changes, state = self.changes.update(grads, state, decayed, learning_rate=self.rate(updates))
        return map_with_path(thawed, map_with_path(scaled, changes, lr_factors), frozen_until), state


@settings
class AdamW(Optimizer):
    """Adam with decoupled weight decay. Source: Loshchilov and Hutter 2019 (arXiv:1711.05101)."""

    def directions(self) -> Transformation:
        return optax.chain(optax.scale_by_adam(self.b1, self.b2, self.eps), add_decay(self.decay))


@settings
class FairseqAdam(AdamW):
    """Adam of fairseq: AdamW with eps added before bias correction, and weight decay of all parameters.

    Early updates are therefore smaller than those of AdamW.
    """

    clip_at = 25.0
    decay_factors = EVERYTHING
    eps = 1e-6

    def directions(self) -> Transformation:
        return optax.chain(fairseq_adam(self.b1, self.b2, self.eps), add_decay(self.decay))


@settings
class NovoGrad(Optimizer):
    """NovoGrad of NVIDIA's QuartzNet: gradients are divided by their tensor's norm, and decay is part of the momentum.

    The second moment is the squared norm of a tensor; with `b2` 0, that of the current gradient. `eps` is added to the
    norm.

    Source: Ginsburg et al. 2019 (arXiv:1905.11286); NVIDIA's QuartzNet, common/optimizers.py.
    """

    clip_at = 0.0
    weight_decay = 1e-3
    decay_factors = EVERYTHING
    b1 = 0.95
    b2 = 0.0
    grad_averaging: bool = False
    """Whether terms that are added to the momentum are multiplied by 1 - b1."""
    amsgrad: bool = False
    """Whether gradients are divided by the largest mean so far."""

    @property
    def decays_in_momentum(self) -> bool:
        return True

    def directions(self) -> Transformation:
        return novograd(
            self.b1, self.b2, self.eps, decay=self.decay, grad_averaging=self.grad_averaging, amsgrad=self.amsgrad
        )


@settings
class LAMB(AdamW):
    """AdamW with each tensor's update scaled to the tensor's norm; tensors without weight decay are not scaled.

    Source: You et al. 2019 (arXiv:1904.00962); the defaults are CAIMAN-ASR's.
    """

    b2 = 0.999
    eps = 1e-9

    def directions(self) -> Transformation:
        return optax.chain(super().directions(), trust_ratio(self.decay))


@settings
class Muon(Optimizer):
    """Orthogonalised momentum for matrices, Adam for all other parameters.

    Updates of matrices are scaled to the size of Adam's updates; learning rates of AdamW can therefore be reused.

    Source: optax.contrib.muon; Liu et al. 2025 (arXiv:2502.16982).
    """

    momentum: ShareBelow1 = 0.95
    """Decay rate of the momentum of matrices. `b1` and `b2` are those of Adam."""

    def directions(self) -> Transformation:
        inner = muon(self.momentum, self.b1, self.b2, decay=self.decay, eps=self.eps)
        return optax.chain(inner, add_decay(self.decay))


@settings
class ScaledAdam(Optimizer):
    """Adam with updates proportional to the tensor's root mean square, which is learned as well.

    Source: Yao et al. 2023 (arXiv:2310.11230), section 3.5; icefall's zipformer/optim.py.
    """

    schedule = field(default_factory=Eden)
    clip_at = 0.0
    weight_decay = 0.0
    clipping_scale: NonNegativeFloat = 2.0
    """Limit of the gradient norm, as a multiple of its recent median. Each tensor's gradient is multiplied by the
    tensor's root mean square before the norm is computed. 0: no clipping."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.weight_decay:
            yield f"weight_decay is {self.weight_decay}: ScaledAdam has no weight decay, expected 0"

    def changes(self) -> Transformation:
        return scaled_adam(Options(self.b1, self.b2, self.eps, self.clipping_scale))

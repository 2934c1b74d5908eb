"""Optimizers: settings that build an optax transformation for all parameters of a model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from asr_jax.core.errors import UserError, check_numbers
from asr_jax.core.pytrees import Tree, flatten, pick
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

KERNELS: Rules = ((".*(kernel|embedding)", 1.0), ("rest", 0.0))
EVERYTHING: Rules = (("rest", 1.0),)
NOTHING: Rules = (("rest", 0.0),)
NEVER = -1.0
"""Of `Optimizer.freeze_updates`."""


@dataclass(frozen=True)
class Optimizer:
    """What all optimizers have. Rules are pairs of a regular expression that must match a parameter's whole path, and a
    value; exactly one must name each parameter, and `rest` names all that no other does.
    """

    schedule: Schedule = field(default_factory=WarmupHoldDecay)
    """The learning rate."""
    clip: Clip = "global_norm"
    """What is limited by `clip_at`: the norm of all gradients together, that of each tensor, or each value."""
    clip_at: float = 1.0
    """The limit; 0 for no clipping."""
    weight_decay: float = 0.01
    """Decay, times the learning rate, of the parameters that `decay_factors` say."""
    decay_factors: Rules = KERNELS
    """Factors of the decay by rules: by default 1 for parameters whose name ends in kernel or embedding, and 0 for
    biases, gains and scales."""
    lr_factors: Rules = EVERYTHING
    """Factors of the learning rate by rules."""
    layer_decay: float = 1.0
    """Factor of the learning rate from each layer to the one before it, the heads having the whole rate."""
    freeze_updates: Rules = NOTHING
    """By rules: updates before which parameters do not change; -1: they never do, and no gradient is computed."""

    def __post_init__(self) -> None:
        check_numbers(self, "clip_at", "weight_decay", least=0)
        check_numbers(self, "layer_decay", above=0, most=1)
        for name, least in (("decay_factors", 0.0), ("lr_factors", 0.0), ("freeze_updates", 0.0)):
            for rule, value in getattr(self, name):
                if not (least <= value < float("inf") or (name == "freeze_updates" and value == NEVER)):
                    more = " or -1 for ever" if name == "freeze_updates" else ""
                    raise ValueError(f"{name}: {rule!r} has {value}; expected 0 or more{more}")
        for name in ("b1", "b2"):
            if hasattr(self, name) and not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: expected at least 0 and less than 1")
        if hasattr(self, "eps"):
            check_numbers(self, "eps", above=0)

    @property
    def decays_in_momentum(self) -> bool:
        """Whether decay goes into a momentum, where what is frozen must not leave any."""
        return False

    def directions(self) -> Transformation:
        """From clipped gradients to what, times minus the learning rate, is added to the parameters."""
        raise NotImplementedError

    def changes(self) -> Transformation:
        """From clipped gradients and `learning_rate` to what is added to the parameters."""
        return optax.chain(self.directions(), times_rate())

    def decay(self, params: Tree) -> Tree:
        """The decay of each parameter.

        Raises: UserError where the rules do not name each parameter once.
        """
        factors = tree_by_rules(params, self.decay_factors, what="optim.decay_factors")
        return map_with_path(lambda _, factor: self.weight_decay * factor, factors)

    def build(self, length: RunLength, factor: Callable[[str, Any], Any] | None = None) -> "Updater":
        """For a run of some length. `factor(path, array)`: another factor of the learning rate of a parameter, a number
        or an array that is multiplied.
        """
        return Updater(self, self.changes(), self.schedule.build(length), factor or (lambda path, array: 1.0))


@dataclass(frozen=True)
class Updater:
    """An optimizer, built: from gradients to what is added to the parameters."""

    settings: Optimizer
    changes: Transformation
    rate: Rate
    """The learning rate by the number of updates applied before."""
    factor: Callable[[str, Any], Any]

    def init(self, params: Tree) -> Any:
        """The optimizer's state for the parameters that are trained."""
        return self.changes.init(params)

    def check(self, params: Tree) -> None:
        """Raises: UserError where rules do not name each of all parameters once, or a rule names none."""
        for name in ("decay_factors", "lr_factors", "freeze_updates"):
            check_rules(params, getattr(self.settings, name), what=f"optim.{name}")
        if not flatten(self.split(params)[0]):
            raise UserError("optim.freeze_updates holds every parameter for ever: nothing would be trained")

    def split(self, params: Tree) -> tuple[Tree, Tree]:
        """The parameters that are trained, and those that never change."""
        until = by_rules(flatten(params), self.settings.freeze_updates, what="optim.freeze_updates")
        return pick(params, lambda path: until[path] != NEVER), pick(params, lambda path: until[path] == NEVER)

    def update(self, grads: Tree, state: Any, params: Tree, *, updates: Int[Array, ""] | int) -> tuple[Tree, Any]:
        """What is to be added to the parameters, and the next state. `updates`: how many were applied before."""
        lr_factors, frozen_until = self._rules(params)

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

    def _rules(self, params: Tree) -> tuple[Tree, Tree]:
        return (
            tree_by_rules(params, self.settings.lr_factors, what="optim.lr_factors"),
            tree_by_rules(params, self.settings.freeze_updates, what="optim.freeze_updates"),
        )


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay. Source: Loshchilov and Hutter 2019 (arXiv:1711.05101)."""

    b1: float = 0.9
    """Decay of the first moment."""
    b2: float = 0.98
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""

    def directions(self) -> Transformation:
        return optax.chain(optax.scale_by_adam(self.b1, self.b2, self.eps), add_decay(self.decay))


@dataclass(frozen=True)
class FairseqAdam(AdamW):
    """Adam as fairseq has it: AdamW with eps added before the second moment is corrected, so that early updates are
    smaller, and decay of everything.
    """

    clip_at: float = 25.0
    decay_factors: Rules = EVERYTHING
    eps: float = 1e-6
    """Added to the root of the second moment, before its correction."""

    def directions(self) -> Transformation:
        return optax.chain(fairseq_adam(self.b1, self.b2, self.eps), add_decay(self.decay))


@dataclass(frozen=True)
class NovoGrad(Optimizer):
    """NovoGrad as QuartzNet is trained with: gradients divided by their tensor's norm, decay inside of the momentum.

    Source: Ginsburg et al. 2019 (arXiv:1905.11286); NVIDIA's QuartzNet, common/optimizers.py.
    """

    clip_at: float = 0.0
    weight_decay: float = 1e-3
    decay_factors: Rules = EVERYTHING
    b1: float = 0.95
    """Decay of the momentum."""
    b2: float = 0.0
    """Decay of the mean of each tensor's squared norm; 0: the norm of the gradient itself."""
    eps: float = 1e-8
    """Added to the norm."""
    grad_averaging: bool = False
    """Multiply what is added to the momentum by 1 - b1."""
    amsgrad: bool = False
    """Divide by the largest mean so far."""

    @property
    def decays_in_momentum(self) -> bool:
        return True

    def directions(self) -> Transformation:
        return novograd(
            self.b1, self.b2, self.eps, decay=self.decay, grad_averaging=self.grad_averaging, amsgrad=self.amsgrad
        )


@dataclass(frozen=True)
class LAMB(AdamW):
    """AdamW with each tensor's update scaled to the size of the tensor; tensors without decay are not scaled.

    Source: You et al. 2019 (arXiv:1904.00962); the defaults are CAIMAN-ASR's.
    """

    b2: float = 0.999
    """Decay of the second moment."""
    eps: float = 1e-9
    """Added to the root of the second moment."""

    def directions(self) -> Transformation:
        return optax.chain(super().directions(), trust_ratio(self.decay))


@dataclass(frozen=True)
class Muon(Optimizer):
    """Orthogonalised momentum for matrices, Adam for all other parameters.

    The size of the update of a matrix is that of Adam's, so that AdamW's learning rates carry over.
    Source: optax.contrib.muon; Liu et al. 2025 (arXiv:2502.16982).
    """

    momentum: float = 0.95
    """Decay of the momentum of matrices."""
    b1: float = 0.9
    """Decay of Adam's first moment."""
    b2: float = 0.98
    """Decay of Adam's second moment."""
    adam_factor: float = 1.0
    """Learning rate of what is not a matrix, as a factor."""

    def directions(self) -> Transformation:
        inner = muon(self.momentum, self.b1, self.b2, decay=self.decay, adam_factor=self.adam_factor)
        return optax.chain(inner, add_decay(self.decay))


@dataclass(frozen=True)
class ScaledAdam(Optimizer):
    """Adam whose steps are proportional to the size of the tensor, and which learns that size as well.

    Source: Yao et al. 2023 (arXiv:2310.11230), section 3.5; icefall's zipformer/optim.py.
    """

    schedule: Schedule = field(default_factory=Eden)
    """The learning rate: about 0.045."""
    clip_at: float = 0.0
    weight_decay: float = 0.0
    b1: float = 0.9
    """Decay of the momentum."""
    b2: float = 0.98
    """Decay of the second moments."""
    eps: float = 1e-8
    """Added to the roots of the second moments."""
    clipping_scale: float = 2.0
    """Gradients whose norm, each tensor's multiplied by its size, is more than this times the median of late are scaled
    down to it; 0 for none."""
    clipping_period: int = 100
    """Updates that the median is of, and after which it is taken anew."""
    scalar_factor: float = 0.1
    """Factor of the learning rate for single values, and for the sizes of tensors."""
    min_rms: float = 1e-5
    """Least root mean square of a tensor."""
    max_rms: float = 3.0
    """Greatest root mean square of a tensor."""
    scalar_max: float = 10.0
    """Greatest magnitude of a single value."""
    size_period: int = 4
    """Updates from one change of the sizes to the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay:
            raise ValueError(f"weight_decay is {self.weight_decay}: ScaledAdam has none, expected 0")
        check_numbers(self, "clipping_scale", least=0)
        check_numbers(self, "clipping_period", "size_period", least=1)
        check_numbers(self, "scalar_factor", "min_rms", "max_rms", "scalar_max", above=0)

    def changes(self) -> Transformation:
        return scaled_adam(Options(**{name: getattr(self, name) for name in Options._fields}))

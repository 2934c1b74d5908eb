"""What happens at random, and only while training: dropout, and the regularisers with their chances."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from flax import linen as nn
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from asr_jax.nn.gradients import limit_values, penalize_large, scale_gradient
from asr_jax.nn.regularizers import Mask, balance, whiten
from asr_jax.nn.schedules import Schedule, Step, Value, at, over_training, piecewise_linear

BALANCE_CHANCE = piecewise_linear((0, 0.5), (8000, 0.125))
WHITEN_CHANCE = 0.25
LIMIT_CHANCE = 0.6
PENALIZE_CHANCE = 0.1
MOST_DRAWS = 64


def whitening_limit(start: float, *, ratio: float = 2.0) -> Schedule:
    """The published limits of whitening metrics."""
    return over_training(start, ratio * start)


def kept(key: PRNGKeyArray, rate: float | Float[Array, "..."], shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """False with a chance of `rate`, which broadcasts to `shape`."""
    return jax.random.uniform(key, shape) >= rate


def dropout(
    x: Float[Array, "..."], key: PRNGKeyArray, *, rate: float | Float[Array, ""], shared_axis: int | None = None
) -> Float[Array, "..."]:
    """Zeroes values with a chance of `rate` and divides the others by 1 - rate; one choice for all of `shared_axis`."""
    shape = [1 if axis == shared_axis else size for axis, size in enumerate(x.shape)]
    return x * (kept(key, rate, tuple(shape)) / (1.0 - rate)).astype(x.dtype)


def unless_left_out(
    layer: nn.Module,
    transform: Callable[[Any, Float[Array, "B T D"]], Float[Array, "B T D"]],
    x: Float[Array, "B T D"],
    *,
    rate: float,
    step: Step,
) -> Float[Array, "B T D"]:
    """`transform(layer, x)`; while training, with a chance of `rate` drawn from the stream "dropout", x itself.

    It is a branch of the program: what is left out takes no time.
    Source: LayerDrop (Fan et al. 2019, arXiv:1909.11556).
    """
    if not rate or step is None:
        return transform(layer, x)
    return nn.cond(kept(layer.make_rng("dropout"), rate, ()), transform, lambda _, x: x, layer, x)


@dataclass
class Regulariser:
    """The regularisers as one call of a module uses them: each time with a new draw, ranges and chances by the step.

    `key` None switches them off (evaluation always does): every method then gives its input back.
    """

    key: PRNGKeyArray | None
    step: Step
    mask: Mask = None
    """Frames that count in statistics; None for all."""

    @classmethod
    def of(cls, module: nn.Module, *, step: Step, use: bool, mask: Mask = None) -> "Regulariser":
        """With a key from the module's stream "regularise", where it is training and has `use` of it."""
        key = module.make_rng("regularise") if use and step is not None else None
        return cls(key, step, mask)

    def __post_init__(self) -> None:
        # One draw of many numbers: a generator call of its own for each would cost more than what it decides.
        self._uniforms = None if self.key is None else jax.random.uniform(self.key, (MOST_DRAWS,))
        self._draws = itertools.count()

    def balance(
        self,
        x: Float[Array, "... D"],
        *,
        min_positive: Value = 0.05,
        max_positive: Value = 0.95,
        min_abs: Value = 0.2,
        max_abs: Value = 100.0,
        chance: Value = BALANCE_CHANCE,
        mask: Mask = None,
    ) -> Float[Array, "... D"]:
        """`regularizers.balance`; `mask` for an input whose frames are not those of `self.mask`."""
        if self.key is None:
            return x
        return balance(
            x,
            self._drawn(chance),
            min_positive=self._now(min_positive),
            max_positive=self._now(max_positive),
            min_abs=self._now(min_abs),
            max_abs=self._now(max_abs),
            mask=self.mask if mask is None else mask,
        )

    def whiten(
        self, x: Float[Array, "... D"], *, limit: Value, grad_scale: float = 0.01, num_groups: int = 1
    ) -> Float[Array, "... D"]:
        """`regularizers.whiten`."""
        if self.key is None:
            return x
        drawn, limit = self._drawn(WHITEN_CHANCE), self._now(limit)
        return whiten(x, drawn, limit=limit, grad_scale=grad_scale, num_groups=num_groups, mask=self.mask)

    def limit(self, x: Float[Array, "..."], *, minimum: Value, maximum: Value) -> Float[Array, "..."]:
        """`gradients.limit_values`."""
        if self.key is None:
            return x
        return limit_values(x, self._drawn(LIMIT_CHANCE), minimum=self._now(minimum), maximum=self._now(maximum))

    def penalize_scores(
        self, scores: Float[Array, "H B T T"], *, limit: float, penalty: float
    ) -> Float[Array, "H B T T"]:
        """`gradients.penalize_large`, for what frames that count give each other."""
        if self.key is None:
            return scores
        mask = None if self.mask is None else (self.mask[:, :, None] & self.mask[:, None, :])[None]
        return penalize_large(scores, self._drawn(PENALIZE_CHANCE), limit=limit, penalty=penalty, mask=mask)

    def scale(self, x: Float[Array, "..."], factor: float) -> Float[Array, "..."]:
        """`gradients.scale_gradient`."""
        return x if self.key is None else scale_gradient(x, factor)

    def _drawn(self, chance: Value) -> Bool[Array, ""]:
        assert self._uniforms is not None
        draw = next(self._draws)
        assert draw < MOST_DRAWS, "more regularisers than random numbers: raise MOST_DRAWS"
        return self._uniforms[draw] < self._now(chance)

    def _now(self, value: Value) -> Float[Array, ""]:
        assert self.step is not None
        return at(value, self.step)

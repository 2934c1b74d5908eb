"""Random parts of training: dropout, LayerDrop, and the regularisers with their probabilities."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from flax import linen as nn
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from asr_jax.core.random_streams import uniform_of_rows
from asr_jax.nn.gradients import limit_values, penalize_large, scale_gradient
from asr_jax.nn.regularizers import Mask, balance, whiten
from asr_jax.nn.schedules import Schedule, Step, Value, at, over_training, piecewise_linear

BALANCE_CHANCE = piecewise_linear((0, 0.5), (8000, 0.125))
WHITEN_CHANCE = 0.25
LIMIT_CHANCE = 0.6
PENALIZE_CHANCE = 0.1
MOST_DRAWS = 64


def whitening_limit(start: float, *, ratio: float = 2.0) -> Schedule:
    """Schedule of the limit of a whitening metric, from `start` to `ratio` times `start`, as published."""
    return over_training(start, ratio * start)


def kept(key: PRNGKeyArray, rate: float | Float[Array, "..."], shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """Draws booleans that are False with a probability of `rate`.

    Args:
        rate: Probability of False; broadcasts to `shape`.
    """
    return jax.random.uniform(key, shape) >= rate


def kept_of_rows(key: PRNGKeyArray, rate: float | Float[Array, "..."], shape: tuple[int, ...]) -> Bool[Array, "B ..."]:
    """Draws booleans as `kept`, with a key for each row, see `core.random_streams.row_keys`.

    Args:
        shape: Shape of the result. The first axis has the rows.
    """
    return uniform_of_rows(key, shape) >= rate


def dropout(
    x: Float[Array, "B ..."], key: PRNGKeyArray, *, rate: float | Float[Array, ""], shared_axis: int | None = None
) -> Float[Array, "B ..."]:
    """Sets values to 0 with a probability of `rate` and divides the others by 1 - rate.

    Each row is drawn with its own key, see `core.random_streams.row_keys`.

    Args:
        x: Values. The first axis has the rows.
        shared_axis: Axis, other than the first, along which all values share one draw. None: each value has its own.
    """
    shape = [1 if axis == shared_axis else size for axis, size in enumerate(x.shape)]
    return x * (kept_of_rows(key, rate, tuple(shape)) / (1.0 - rate)).astype(x.dtype)


class Dropout(nn.Module):
    """Dropout with a random key for each row, from the stream "dropout".

    Differs from: `flax.linen.Dropout`, which draws for the whole array, so that the draws of a row depend on its place
    in the batch.
    """

    rate: float
    """Probability of a value to be set to 0. At 0, nothing is drawn."""

    @nn.compact
    def __call__(self, x: Float[Array, "B ..."], *, step: Step) -> Float[Array, "B ..."]:
        """Applies dropout to `x` in training, in which `step` is not None."""
        return dropout(x, self.make_rng("dropout"), rate=self.rate) if self.rate and step is not None else x


def scheduled_dropout(
    x: Float[Array, "B T D"], module: nn.Module, *, rates: tuple[float, float], step: Step
) -> Float[Array, "B T D"]:
    """Applies dropout with one mask for all frames of a row, and a rate that changes from the first to the second.

    The draw is from the stream "dropout". If both rates are 0, nothing is drawn, which makes programs much smaller.

    Args:
        rates: Dropout rate at the start and after 20000 of the recipe's batches.
    """
    if step is None or rates == (0.0, 0.0):
        return x
    return dropout(x, module.make_rng("dropout"), rate=over_training(*rates)(step), shared_axis=1)


def unless_left_out(
    layer: nn.Module,
    transform: Callable[[Any, Float[Array, "B T D"]], Float[Array, "B T D"]],
    x: Float[Array, "B T D"],
    *,
    rate: float,
    step: Step,
) -> Float[Array, "B T D"]:
    """Applies a layer with LayerDrop: in training, a call skips the layer with a probability of `rate`.

    The program branches, and a skipped layer takes no time. The draw is from the stream "dropout".

    Source: Fan et al. 2019 (arXiv:1909.11556).
    """
    if not rate or step is None:
        return transform(layer, x)
    return nn.cond(kept(layer.make_rng("dropout"), rate, ()), transform, lambda _, x: x, layer, x)


@dataclass
class Regulariser:
    """Regularisers for one call of a module.

    Each use has a draw of its own, and the ranges and probabilities at `step`.
    """

    key: PRNGKeyArray | None
    """Random key. None: regularisers are off, as in evaluation, and every method returns its input."""
    step: Step
    mask: Mask = None
    """Frames of the statistics, [B T]. None: all."""

    @classmethod
    def of(cls, module: nn.Module, *, step: Step, use: bool, mask: Mask = None) -> "Regulariser":
        """Creates the regularisers of a module, with a key from the module's stream "regularise".

        Args:
            mask: Frames of the statistics, [B T]. None: all.
        """
        key = module.make_rng("regularise") if use and step is not None else None
        return cls(key, step, mask)

    def __post_init__(self) -> None:
        # All numbers are drawn at once: a generator call per regulariser would cost more time than the regulariser.
        self._uniforms = None if self.key is None else jax.random.uniform(self.key, (MOST_DRAWS,))
        self._draws = itertools.count()

    def balance(
        self,
        x: Float[Array, "... D"],
        *,
        chance: Value = BALANCE_CHANCE,
        mask: Mask = None,
        **ranges: Value,
    ) -> Float[Array, "... D"]:
        """Applies `regularizers.balance` with a random draw.

        Args:
            chance: Probability that the gradient is modified.
            mask: Frames of the statistics, if those of `x` are not those of `self.mask`. None: `self.mask`.
            ranges: Arguments min_positive, max_positive, min_abs and max_abs of `regularizers.balance`.
        """
        if self.key is None:
            return x
        now = {name: self._now(value) for name, value in ranges.items()}
        return balance(x, self._drawn(chance), **now, mask=self.mask if mask is None else mask)

    def whiten(
        self, x: Float[Array, "... D"], *, limit: Value, grad_scale: float = 0.01, num_groups: int = 1
    ) -> Float[Array, "... D"]:
        """Applies `regularizers.whiten` with a probability of `WHITEN_CHANCE`."""
        if self.key is None:
            return x
        drawn, limit = self._drawn(WHITEN_CHANCE), self._now(limit)
        return whiten(x, drawn, limit=limit, grad_scale=grad_scale, num_groups=num_groups, mask=self.mask)

    def limit(self, x: Float[Array, "..."], *, minimum: Value, maximum: Value) -> Float[Array, "..."]:
        """Applies `gradients.limit_values` with a probability of `LIMIT_CHANCE`."""
        if self.key is None:
            return x
        return limit_values(x, self._drawn(LIMIT_CHANCE), minimum=self._now(minimum), maximum=self._now(maximum))

    def penalize_scores(
        self, scores: Float[Array, "H B T S"], *, limit: float, penalty: float
    ) -> Float[Array, "H B T S"]:
        """Applies `gradients.penalize_large` to scores between frames of `self.mask`, at random (`PENALIZE_CHANCE`)."""
        if self.key is None:
            return scores
        mask = None if self.mask is None else (self.mask[:, :, None] & self.mask[:, None, :])[None]
        return penalize_large(scores, self._drawn(PENALIZE_CHANCE), limit=limit, penalty=penalty, mask=mask)

    def scale(self, x: Float[Array, "..."], factor: float) -> Float[Array, "..."]:
        """Applies `gradients.scale_gradient` if regularisers are on."""
        return x if self.key is None else scale_gradient(x, factor)

    def _drawn(self, chance: Value) -> Bool[Array, ""]:
        assert self._uniforms is not None
        draw = next(self._draws)
        assert draw < MOST_DRAWS, "more regularisers than random numbers: raise MOST_DRAWS"
        return self._uniforms[draw] < self._now(chance)

    def _now(self, value: Value) -> Float[Array, ""]:
        assert self.step is not None
        return at(value, self.step)

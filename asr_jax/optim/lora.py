"""Low-rank adaptation: a kernel W is replaced by W + alpha / rank · A B, and only A and B are trained."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree, flatten, join, pick, unflatten
from asr_jax.core.settings import NonNegativeInt, PositiveFloat, settings
from asr_jax.optim.rules import compiled, is_stacked

LORA = "lora"


@settings
class LoRA:
    """Settings of low-rank adaptation. Evaluation, averages and exports use the merged kernels.

    Source: Hu et al. 2021 (arXiv:2106.09685).
    """

    rank: NonNegativeInt = 0
    """Inner dimension of A B. 0: no adaptation."""
    alpha: PositiveFloat = 16.0
    """Numerator of the factor alpha / rank of A B."""
    kernels: tuple[str, ...] = (".*attention.*/kernel",)
    """Regular expressions for the kernels that are adapted; one of them must match the whole parameter path."""
    also_trained: tuple[str, ...] = ("heads_.*",)
    """Regular expressions for parameters that are trained without adapters. All other parameters keep their values."""

    def with_adapters(self, params: Tree, key: PRNGKeyArray) -> Tree:
        """Returns the parameters with A (random) and B (zeros) of each adapted kernel, stored under `lora/PATH`.

        Since B is zero, the output of the model does not change.

        Raises:
            UserError: If an expression matches no parameter.
        """
        if not self.rank:
            return params
        flat, adapters = flatten(params), {}
        for what, expressions in (("lora.kernels", self.kernels), ("lora.also_trained", self.also_trained)):
            for expression in expressions:
                if not any(compiled(expression, what).fullmatch(path) for path in flat):
                    raise UserError(f"{what}: {expression!r} matches no parameter; expected one of {', '.join(flat)}")
        chosen = [path for path in flat if any(re.fullmatch(expression, path) for expression in self.kernels)]
        for path, path_key in zip(chosen, jax.random.split(key, len(chosen)), strict=True):
            layers, ins, outs = _matrix_shape(path, flat[path])
            normal = jax.random.normal(path_key, (*layers, ins, self.rank)) / math.sqrt(ins)
            adapters[f"{LORA}/{path}/a"] = normal
            adapters[f"{LORA}/{path}/b"] = jnp.zeros((*layers, self.rank, outs))
        return join(params, unflatten(adapters))

    def merged(self, params: Tree) -> Tree:
        """Returns the parameters without adapters, with A B added to their kernels."""
        if not self.rank:
            return params
        flat = flatten(params)
        own = {path: value for path, value in flat.items() if not path.startswith(f"{LORA}/")}
        for path in own:
            if f"{LORA}/{path}/a" in flat:
                product = flat[f"{LORA}/{path}/a"] @ flat[f"{LORA}/{path}/b"]
                own[path] = own[path] + self.alpha / self.rank * product.reshape(own[path].shape)
        return unflatten(own)

    def is_trained(self, path: str) -> bool:
        """Returns whether the parameter at a path is trained."""
        if not self.rank or path.startswith(f"{LORA}/"):
            return True
        return any(re.fullmatch(expression, path) for expression in self.also_trained)

    def without_adapters(self, params: Tree) -> Tree:
        """Returns the parameters without adapters, unchanged."""
        return pick(params, lambda path: not path.startswith(f"{LORA}/"))


def _matrix_shape(path: str, kernel: Any) -> tuple[tuple[int, ...], int, int]:
    """Returns the axis of stacked layers, the number of inputs and the number of outputs (the last axis)."""
    layers = kernel.shape[:1] if is_stacked(path) else ()
    of_layer = kernel.shape[len(layers) :]
    if len(of_layer) < 2:
        raise UserError(f"lora.kernels: {path} has shape {kernel.shape}, expected a matrix or a convolution kernel")
    return layers, math.prod(of_layer[:-1]), of_layer[-1]

"""Low-rank adaptation: a kernel W is trained as W + alpha / rank · A B, and only A and B change."""

import math
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from asr_jax.core.errors import UserError, check_numbers
from asr_jax.core.pytrees import Tree, flatten, join, pick, unflatten
from asr_jax.optim.rules import compiled, is_stacked

LORA = "lora"


@dataclass(frozen=True)
class LoRA:
    """What evaluation, averages and exports see is one kernel. Source: Hu et al. 2021 (arXiv:2106.09685)."""

    rank: int = 0
    """Inner width of A B; 0 for none."""
    alpha: float = 16.0
    """A B is multiplied by alpha / rank."""
    kernels: tuple[str, ...] = (".*attention.*/kernel",)
    """Kernels that are adapted: regular expressions, one of which must match a whole path."""
    also_trained: tuple[str, ...] = ("heads_.*",)
    """Parameters that are trained as they are. All others keep their values."""

    def __post_init__(self) -> None:
        check_numbers(self, "rank", least=0)
        check_numbers(self, "alpha", above=0)

    def with_adapters(self, params: Tree, key: PRNGKeyArray) -> Tree:
        """Parameters with A (random) and B (zeros) of the kernels, under `lora/PATH`: the model is what it was.

        Raises: UserError where an expression matches no kernel.
        """
        if not self.rank:
            return params
        flat, adapters = flatten(params), {}
        for what, expressions in (("lora.kernels", self.kernels), ("lora.also_trained", self.also_trained)):
            for expression in expressions:
                if not any(compiled(expression, what).fullmatch(path) for path in flat):
                    raise UserError(f"{what}: {expression!r} matches no parameter; there are {', '.join(flat)}")
        chosen = [path for path in flat if any(re.fullmatch(expression, path) for expression in self.kernels)]
        for path, path_key in zip(chosen, jax.random.split(key, len(chosen)), strict=True):
            layers, ins, outs = _matrix_shape(path, flat[path])
            normal = jax.random.normal(path_key, (*layers, ins, self.rank)) / math.sqrt(ins)
            adapters[f"{LORA}/{path}/a"] = normal
            adapters[f"{LORA}/{path}/b"] = jnp.zeros((*layers, self.rank, outs))
        return join(params, unflatten(adapters))

    def merged(self, params: Tree) -> Tree:
        """The model's own parameters, adapters added to their kernels."""
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
        """Whether a parameter changes at all."""
        if not self.rank or path.startswith(f"{LORA}/"):
            return True
        return any(re.fullmatch(expression, path) for expression in self.also_trained)

    def without_adapters(self, params: Tree) -> Tree:
        """The parameters that were there before, as they are."""
        return pick(params, lambda path: not path.startswith(f"{LORA}/"))


def _matrix_shape(path: str, kernel: Any) -> tuple[tuple[int, ...], int, int]:
    """Leading axis of stacked layers, inputs and outputs: the last axis are the outputs."""
    layers = kernel.shape[:1] if is_stacked(path) else ()
    of_layer = kernel.shape[len(layers) :]
    if len(of_layer) < 2:
        raise UserError(
            f"lora.kernels: {path} has the shape {kernel.shape}, expected a matrix or a convolution's kernel"
        )
    return layers, math.prod(of_layer[:-1]), of_layer[-1]

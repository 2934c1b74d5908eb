"""Optimizers: settings that build an optax transformation."""

from dataclasses import dataclass, field

import jax
import optax

from asr_jax.core.pytrees import Tree
from asr_jax.optim.schedules import WarmupHoldDecay


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay, after clipping by the global norm.

    Source: Loshchilov and Hutter 2019 (arXiv:1711.05101).
    """

    schedule: WarmupHoldDecay = field(default_factory=WarmupHoldDecay)
    """The learning rate."""
    b1: float = 0.9
    """Decay of the first moment."""
    b2: float = 0.98
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decay, times the learning rate, of the parameters whose name ends in kernel or embedding: not of biases, gains
    and scales."""
    clip_norm: float = 1.0
    """Gradients of a larger global norm are scaled down to it; 0 for no clipping."""

    def __post_init__(self) -> None:
        if not 0 <= self.b1 < 1 or not 0 <= self.b2 < 1:
            raise ValueError(f"b1 {self.b1} and b2 {self.b2}: expected at least 0 and less than 1")
        if self.eps <= 0 or self.weight_decay < 0 or self.clip_norm < 0:
            raise ValueError(
                f"eps {self.eps}, weight_decay {self.weight_decay}, clip_norm {self.clip_norm}: "
                "expected eps above 0, the others not below"
            )

    def build(self, num_updates: int) -> optax.GradientTransformation:
        """For a run of `num_updates`; the update that is applied is to be added to the parameters."""
        clip = optax.clip_by_global_norm(self.clip_norm) if self.clip_norm else optax.identity()
        adamw = optax.adamw(
            self.schedule.build(num_updates), self.b1, self.b2, self.eps,
            weight_decay=self.weight_decay, mask=is_kernel,
        )  # fmt: skip
        return optax.chain(clip, adamw)


def is_kernel(params: Tree) -> Tree:
    """True where decay applies: by name, since in a stack of scanned layers vectors have two axes as well."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.tree_util.keystr(path[-1:], simple=True).endswith(("kernel", "embedding")), params
    )

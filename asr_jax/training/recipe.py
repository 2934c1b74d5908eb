"""Settings of the training step, which are constant during training, and their origin in the settings of a run."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_jax.config import Experiment
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree, flatten, join, pick
from asr_jax.core.sharding import Sharding
from asr_jax.models.base import Recogniser
from asr_jax.models.encoder import EncoderSettings
from asr_jax.nn.recurrent.state_passing import StatePassing
from asr_jax.optim.ema import EMA
from asr_jax.optim.lora import LORA, LoRA
from asr_jax.optim.loss_scale import LossScale
from asr_jax.optim.optimizers import NEVER, Updater
from asr_jax.optim.rules import by_rules
from asr_jax.optim.schedules import RunLength
from asr_jax.training.state import TrainState


@dataclass(frozen=True)
class Recipe:
    """Settings of the training step, which are constant during training."""

    model: Recogniser
    scales: Mapping[str, float]
    """Factor of each head's terms in the loss, by the name of the head."""
    updater: Updater
    ema: EMA = EMA()
    loss_scale: LossScale | None = None
    """Loss scaling with precision f16; None with other precisions."""
    lora: LoRA = LoRA()
    sharding: Sharding = Sharding()
    """Rules that spread parameters over the devices."""
    passing: StatePassing = StatePassing()
    most_rows: int = 1
    """Rows of the largest batch, for state passing."""

    def split(self, params: Tree) -> tuple[Tree, Tree]:
        """Returns the trained parameters and the frozen ones, for which no gradient is computed."""
        trained, frozen = self.updater.split(params)
        held = pick(trained, lambda path: not self.lora.is_trained(path))
        return pick(trained, self.lora.is_trained), join(frozen, held)

    def frozen_norms(self, state: TrainState) -> dict[str, float]:
        """Returns the number of updates before which each batch norm is frozen, by path; infinity: always.

        A batch norm is frozen as long as its gain and its bias are.
        """
        settings, trained = self.updater.settings, flatten(self.split(state.params)[0])
        if settings.frozen_statistics == "updated":
            return {}
        rules = by_rules(flatten(state.params), settings.freeze_updates, what="optim.freeze_updates")
        until = {path: value if path in trained and value != NEVER else math.inf for path, value in rules.items()}
        norms = (path.removesuffix("/mean") for path in flatten(state.batch_stats) if path.endswith("/mean"))
        return {norm: min(until[f"{norm}/{name}"] for name in ("gain", "bias")) for norm in norms}

    def of_model(self, state: TrainState) -> Tree:
        """Returns the model's own variables: without adapters, and without adding these to the kernels."""
        return {"params": self.lora.without_adapters(state.params), "batch_stats": state.batch_stats}

    def evaluated(self, state: TrainState) -> Tree:
        """Returns the live variables for evaluation, with adapters merged into their kernels."""
        return {"params": self.lora.merged(state.params), "batch_stats": state.batch_stats}


def make_recipe(experiment: Experiment, model: Recogniser, length: RunLength, *, most_rows: int = 1) -> Recipe:
    """Builds the settings of the training step."""
    training = experiment.training
    return Recipe(
        model.clone(sub_batches=max(model.sub_batches // training.split, 1)),
        {name: head.scale for name, head in experiment.model.heads.items()},
        experiment.optim.build(length, layer_factors(experiment)),
        ema=training.ema,
        loss_scale=training.loss_scale if training.precision == "f16" else None,
        lora=experiment.lora,
        sharding=Sharding(experiment.model.encoder.model_axis_rules(), experiment.mesh.min_sharded),
        passing=training.pass_states,
        most_rows=most_rows if training.pass_states.is_on else 1,
    )


def layer_factors(experiment: Experiment) -> Callable[[str, Any], Any]:
    """Returns a function that computes the learning rate factor of a parameter from its path and array.

    The factor is layer_decay ** (num_depths - depth) in the encoder and 1 elsewhere. Arrays of stacked layers have
    one factor per layer.

    Raises:
        UserError: If layer_decay is set and the encoder does not define the depths of its layers.
    """
    encoder, decay = experiment.model.encoder, experiment.optim.layer_decay
    if decay != 1.0 and type(encoder).depths is EncoderSettings.depths:
        raise UserError(
            f"optim.layer_decay is {decay}, but {type(encoder).__name__} does not define the depths of its layers "
            "(depths, num_depths): expected 1"
        )

    def factor(path: str, array: Any) -> Any:
        own = path.removeprefix(f"{LORA}/")
        if decay == 1.0 or not own.startswith("encoder/"):
            return 1.0
        powers = [decay ** (encoder.num_depths() - depth) for depth in encoder.depths(own.removeprefix("encoder/"))]
        return (
            powers[0] if len(powers) == 1 else np.reshape(np.array(powers, np.float32), (-1, *[1] * (array.ndim - 1)))
        )

    return factor

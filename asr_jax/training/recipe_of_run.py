"""The recipe of an experiment: the settings of the training step, made from the settings of a run."""

from collections.abc import Callable
from typing import Any

import numpy as np

from asr_jax.config import Experiment
from asr_jax.core.errors import UserError
from asr_jax.core.sharding import Sharding
from asr_jax.models.base import Recogniser
from asr_jax.models.encoder import EncoderSettings
from asr_jax.optim.lora import LORA
from asr_jax.optim.schedules import RunLength
from asr_jax.training.recipe import Recipe


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

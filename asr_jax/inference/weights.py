"""The weights of a run's checkpoint, restored without the optimizer's state."""

from functools import partial
from pathlib import Path
from typing import Literal

import jax
from jax.sharding import Mesh

from asr_jax.checkpoints.store import has_state, restore_item
from asr_jax.config import Experiment
from asr_jax.core.meshes import abstract, replicated
from asr_jax.core.pytrees import Tree
from asr_jax.core.run_folder import CHECKPOINTS

WeightKind = Literal["averaged", "live"]
"""Kind of a checkpoint's weights."""


def restore_weights(
    run: Path, updates: int, experiment: Experiment, shapes: Tree, *, mesh: Mesh, weights: WeightKind
) -> Tree:
    """Restores the variables of the model, `{"params": …, "batch_stats": …}`, on every device of a mesh.

    LoRA's adapters are merged into their kernels.

    Args:
        updates: Number of the checkpoint.
        shapes: Shapes of the variables, as `inference.model.variable_shapes` returns them.

    Raises:
        UserError: If the checkpoint's arrays have other names or shapes.
    """
    folder = run / CHECKPOINTS
    if weights == "averaged" or not has_state(folder, updates):  # an imported model has only one kind
        return restore_item(folder, updates, "average", abstract(shapes, replicated(mesh)))
    with_adapters = partial(experiment.lora.with_adapters, key=jax.random.key(0))
    parts = {"params": jax.eval_shape(with_adapters, shapes["params"]), "batch_stats": shapes["batch_stats"]}
    state = restore_item(folder, updates, "state", abstract(parts, replicated(mesh)), is_part=True)
    return {"params": experiment.lora.merged(state["params"]), "batch_stats": state["batch_stats"]}

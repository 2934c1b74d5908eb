"""Arrays of a checkpoint."""

import numpy as np
import orbax.checkpoint as ocp

from asr_jax.core.meshes import abstract, data_mesh, replicated
from asr_jax.core.pytrees import flatten


def contents(folder, updates):
    """Returns every array of a checkpoint, independent of its devices."""
    found, here = {}, replicated(data_mesh(1))
    for item in ("state", "average"):
        path = (folder / "checkpoints" / str(updates) / item).absolute()
        with ocp.StandardCheckpointer() as reader:
            tree = reader.restore(path, abstract(reader.metadata(path).item_metadata, here))
        found |= {f"{item}/{path}": np.asarray(leaf) for path, leaf in flatten(tree).items()}
    return found

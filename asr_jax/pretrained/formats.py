"""Weights of a file, by our names or by those of a system that we know."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import unflatten
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.pretrained import icefall

OURS = ("params/", "batch_stats/")


def imported(weights: Mapping[str, np.ndarray], model: Model) -> dict[str, Any]:
    """`{"params": …, "batch_stats": …}` of all weights of a file.

    Raises: UserError where their names are nobody's that is known for this model.
    """
    if all(name.startswith(OURS) for name in weights):
        return unflatten(weights)
    if isinstance(model.encoder, Zipformer) and any(name.startswith("encoder.encoders.") for name in weights):
        params = {"encoder": icefall.import_encoder(weights, model.encoder)}
        heads = [name for name in model.heads if any(key.startswith("ctc_output.") for key in weights)]
        return {"params": params | {f"heads_{name}": icefall.import_ctc(weights) for name in heads[:1]}}
    names = ", ".join(sorted(weights)[:3])
    raise UserError(
        f"weights named {names} …: expected our own names ({OURS[0]}encoder/…), or icefall's of a Zipformer"
    )

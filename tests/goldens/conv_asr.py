"""Helpers for goldens of NVIDIA's convolutional models: our model of a case, its outputs and gradients."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support import fast_jit, part

from asr_jax.audio.presets import quartznet
from asr_jax.core.batch import Batch, Frames
from asr_jax.core.pytrees import unflatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model, Recogniser
from asr_jax.models.quartznet import MOMENTUM, QuartzNet
from asr_jax.pretrained.formats import imported
from asr_jax.pretrained.quartznet import settings_of

COUNT = "num_batches_tracked"


def model_of(encoder: Mapping[str, Any]) -> Model:
    """Returns our model with the reference's settings: norms include padding, and the loss is the mean over rows."""
    settings = settings_of(encoder, Path("config"))
    settings = replace(settings, norm=f"{settings.norm}_padded")
    front_end = quartznet(num_mels=settings.num_mels)
    return Model(settings, {"ctc": CTC(dropout=0.0, weight_by="utterances")}, front_end, augment=())


def variables_of(arrays: Mapping[str, np.ndarray], model: Model) -> dict[str, Any]:
    """Returns the reference's weights as our variables, and checks that all of them have a path."""
    found, left = imported(part(arrays, "param/"), model)
    assert left == []
    return {"params": {}, "batch_stats": {}, **unflatten(found)}


def with_first_statistics(
    variables: dict[str, Any], arrays: Mapping[str, np.ndarray], program: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    """Returns the variables with the statistics that the reference evaluated with.

    The files have the statistics after a training step, which changed them in place; their counts of batches show this.
    The statistics before the step are computed from `program`, which returns the statistics after a step: for zeros, it
    returns the contribution of the batch. The comparison of the evaluation verifies the result.
    """
    counts = [int(array) for name, array in part(arrays, "param/").items() if name.endswith(COUNT)]
    if not any(counts):
        return variables
    assert set(counts) == {1}
    stats = variables["batch_stats"]
    _, (_, _, added, _) = program({**variables, "batch_stats": jax.tree.map(np.zeros_like, stats)})
    before = jax.tree.map(lambda s, a: (s - np.asarray(a)) / np.float32(1 - MOMENTUM), stats, added)
    return {**variables, "batch_stats": before}


def weights_of(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Returns the arrays that are weights or statistics, not counts."""
    return {name: array for name, array in part(arrays, prefix).items() if not name.endswith(COUNT)}


def encoder_of(model: Model) -> QuartzNet:
    assert isinstance(model.encoder, QuartzNet)
    return model.encoder


def program_of(recogniser: Recogniser, batch: Batch, weights: Any = None) -> Callable[[dict[str, Any]], Any]:
    """Returns a compiled function of the variables.

    It returns frames and log-probabilities of evaluation; and loss, log-probabilities, new statistics and gradients of
    a training step. The loss is the mean over rows or, with `weights`, the sum of weighted log-probabilities.
    """

    def outputs(bound: Recogniser, *, step: Any, with_loss: bool) -> tuple[Frames, Frames, Any]:
        encoded, head = bound.encode(batch, step=step), bound.heads["ctc"]
        return encoded.frames, head.emit(encoded), head(encoded, batch, step=step)["loss"] if with_loss else None

    @fast_jit
    def program(variables: dict[str, Any]) -> Any:
        evaluation = partial(outputs, step=None, with_loss=False)
        training = partial(outputs, step=jnp.int32(0), with_loss=weights is None)

        def loss(params: Any) -> Any:
            given = {**variables, "params": params}
            (_, log_probs, ctc), new = recogniser.apply(given, method=training, mutable=["batch_stats"])
            value = ctc.total / ctc.weight if weights is None else jnp.sum(log_probs.values * weights)
            return value, (log_probs.values, new.get("batch_stats", {}))

        (value, kept), gradients = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        return recogniser.apply(variables, method=evaluation)[:2], (value, *kept, gradients)

    return program


def batch_of(features: Any, lengths: Any, tokens: Any, token_lengths: Any) -> Batch:
    rows = len(features)
    batch = Batch(
        audio=None,
        features=np.asarray(features).transpose(0, 2, 1),
        lengths=np.int32(lengths),
        tokens=np.int32(tokens),
        token_lengths=np.int32(token_lengths),
        weights=np.ones(rows, np.float32),
        utterances=np.arange(rows, dtype=np.int32),
    )
    return jax.device_put(batch)

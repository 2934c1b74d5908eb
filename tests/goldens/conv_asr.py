"""What the goldens of NVIDIA's convolutional models share: our model of a case, and its outputs and gradients."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support import relative

from asr_jax.audio.presets import quartznet
from asr_jax.core.batch import Batch, Frames
from asr_jax.core.pytrees import unflatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model, Recogniser
from asr_jax.models.quartznet import QuartzNet
from asr_jax.nn.conv_block import MOMENTUM
from asr_jax.pretrained.formats import imported
from asr_jax.pretrained.quartznet import settings_of

COUNT = "num_batches_tracked"
# Compile time is most of these tests' time, and what is compiled runs a few times only.
fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def model_of(encoder: Mapping[str, Any]) -> Model:
    """By the peer's own settings: padding counts in norms as it does there, NVIDIA's loss is the mean over rows."""
    settings = settings_of(encoder)
    settings = settings_of(encoder, norm=f"{settings.norm}_padded")
    front_end = quartznet(num_mels=settings.num_mels)
    return Model(settings, {"ctc": CTC(dropout=0.0, weight_by="utterances")}, front_end, augment=())


def variables_of(arrays: Mapping[str, np.ndarray], model: Model) -> dict[str, Any]:
    """The peer's weights by our paths; every one of them finds its place."""
    found, left = imported(part(arrays, "param/"), model)
    assert left == []
    found = {path: jnp.asarray(array) for path, array in found.items()}
    return {"params": {}, "batch_stats": {}, **unflatten(found)}


def with_first_statistics(
    variables: dict[str, Any], arrays: Mapping[str, np.ndarray], step: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    """The variables with the statistics that the peer evaluated with.

    Those of the files were written when a training step had moved them in place, by the counts of batches beside them.
    Where they were before follows from `step`, which gives the statistics after that step: of zeros it gives what the
    batch adds. Evaluation tells whether they are right.
    """
    counts = [int(array) for name, array in part(arrays, "param/").items() if name.endswith(COUNT)]
    if not any(counts):
        return variables
    assert set(counts) == {1}
    stats = variables["batch_stats"]
    added = step({**variables, "batch_stats": jax.tree.map(lambda s: jnp.asarray(np.zeros_like(s)), stats)})
    before = jax.tree.map(lambda s, a: (np.asarray(s) - np.asarray(a)) / np.float32(1 - MOMENTUM), stats, added)
    return {**variables, "batch_stats": jax.tree.map(jnp.asarray, before)}


def weights_of(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Arrays that are weights or statistics."""
    return {name: array for name, array in part(arrays, prefix).items() if not name.endswith(COUNT)}


def encoder_of(model: Model) -> QuartzNet:
    assert isinstance(model.encoder, QuartzNet)
    return model.encoder


def run(recogniser: Recogniser, batch: Batch, *, train: bool) -> tuple[Frames, Frames, Any]:
    """Encoder's output, log-probabilities, and the mean loss."""
    step = jnp.int32(0) if train else None
    encoded, head = recogniser.encode(batch, step=step), recogniser.heads["ctc"]
    loss = head(encoded, batch, step=step)["loss"]
    return encoded.frames, head.emit(encoded), loss.total / loss.weight


def batch_of(features: Any, lengths: Any, tokens: Any, token_lengths: Any) -> Batch:
    rows = len(features)
    return Batch(
        audio=None,
        features=jnp.asarray(np.asarray(features).transpose(0, 2, 1)),
        lengths=jnp.asarray(lengths, jnp.int32),
        tokens=jnp.asarray(tokens, jnp.int32),
        token_lengths=jnp.asarray(token_lengths, jnp.int32),
        weights=jnp.asarray(np.ones(rows, np.float32)),
        records=jnp.asarray(np.arange(rows, dtype=np.int32)),
    )


def worst(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> tuple[str, float]:
    """The array that differs most, relative to itself. What is zero but for rounding has no relative accuracy: of that
    the difference is relative to the largest of all."""
    assert actual.keys() == expected.keys()
    largest = max(float(np.abs(array).max()) for array in expected.values())
    differences = {
        name: relative(actual[name], array) if np.abs(array).max() > 1e-6 * largest else 0.0
        for name, array in expected.items()
    }
    name = max(differences, key=lambda name: differences[name])
    return name, differences[name]

"""Pass of noise through the training programs of all shapes before the first update."""

import time
from typing import Any

import jax
import numpy as np

from asr_jax.core.batch import Batch
from asr_jax.core.meshes import global_batch
from asr_jax.data.batching.buckets import Bucket, largest_first
from asr_jax.training.compile import CompiledSteps
from asr_jax.training.setup import Setup
from asr_jax.training.state import TrainState

LOUDNESS = 3000
"""Standard deviation of the noise, in units of 16-bit samples."""


def pre_allocate(setup: Setup, steps: CompiledSteps, state: TrainState) -> dict[str, Any]:
    """Computes the gradient of a batch of noise of every shape, largest first, and discards it.

    Afterwards, the device has allocated the memory that the largest gradient needs. The state is not an output of the
    computation, so that parameters, batch norm's statistics, passed states and random numbers remain the same.

    Args:
        steps: Executables of training.
        state: State before the first update.

    Returns:
        The number of shapes and the seconds that they took.
    """
    begun_s, parts = time.monotonic(), min(setup.most_parts, 2)
    for number in largest_first(setup.shapes):
        shape = setup.shapes[number]
        batch = global_batch(noise_of(shape, setup), setup.mesh)
        jax.block_until_ready(steps.accumulate(state, [(shape, batch, np.int32(0))] * parts))
    return {"shapes": len(setup.shapes), "seconds": round(time.monotonic() - begun_s, 2)}


def noise_of(shape: Bucket, setup: Setup) -> Batch:
    """Returns this process's rows of a batch of noise, with as many random labels as fit the frames."""
    rng, scale = np.random.default_rng(0), setup.train.index.scale
    rows = shape.batch_size // setup.layout.num_processes
    frames = int(setup.model.label_length(shape.length, of_features=scale.of_features))
    # Twice as many frames as labels are enough for repeated ones.
    num_labels = min(shape.num_tokens, frames // 2)
    labels = np.delete(np.arange(max(setup.tokenizer.vocab_size, 2)), setup.tokenizer.blank_id)
    tokens = np.zeros((rows, shape.num_tokens), np.int32)
    tokens[:, :num_labels] = rng.choice(labels, (rows, num_labels))
    signal = rng.standard_normal((rows, shape.length, *([scale.num_values] if scale.of_features else [])), np.float32)
    return Batch(
        audio=None if scale.of_features else (LOUDNESS * signal).astype(np.int16),
        features=signal if scale.of_features else None,
        lengths=np.full(rows, shape.length, np.int32),
        tokens=tokens,
        token_lengths=np.full(rows, num_labels, np.int32),
        weights=np.ones(rows, np.float32),
        utterances=np.arange(rows, dtype=np.int32),
    )

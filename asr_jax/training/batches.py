"""Batches of training on this process, from a position in the plan or in the shards on, and batches of noise."""

import functools
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from asr_jax.checkpoints.store import Checkpoints, restore_meta
from asr_jax.core.batch import Batch
from asr_jax.core.environment import reading_threads
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import global_batch
from asr_jax.data.batching.buckets import Bucket, Scale, largest_first
from asr_jax.data.loading.sharded import Stream, open_sharded, shares_of
from asr_jax.data.loading.source import BatchSource, LoadedBatch, open_batches
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.training.programs import CompiledSteps
from asr_jax.training.setup import Setup
from asr_jax.training.state import TrainState

LOUDNESS = 3000
"""Standard deviation of the noise, in units of 16-bit samples."""


def open_data(setup: Setup, start: int, state: dict[str, Any] | None) -> AbstractContextManager[Iterator[LoadedBatch]]:
    """Opens the batches of training from a position on.

    Args:
        state: `LoadedBatch.state` of the batch before it; None at the beginning.
    """
    data, train = setup.experiment.data, setup.data.train
    if train.shards:
        return open_sharded(stream_of(setup), state, start=start)
    source = BatchSource(train.index, train.plan, setup.layout, storage=data.storage)
    return open_batches(
        source, start=start, workers=data.workers, threads=reading_threads(data.threads, workers=data.workers)
    )


def stream_of(setup: Setup) -> Stream:
    """Settings of the batches of shards of this process."""
    data, train, scale = setup.experiment.data, setup.data.train, setup.data.train.index.scale
    return Stream(
        shards=train.shards,
        buckets=train.plan.buckets,
        shares=shares_of(train.plan),
        scale=scale,
        layout=setup.layout,
        tokenizer=setup.data.tokenizer if setup.data.tokenizer.has_labels else None,
        filters=data.filters,
        output_length=functools.partial(setup.model.label_length, of_features=scale.of_features),
        frames_needed=setup.experiment.model.frames_needed,
        takes_ids=data.tokenizer.takes_ids,
        speeds=data.speeds,
        window=data.shuffle_window,
        seed=setup.experiment.seed,
        threads=reading_threads(data.threads, workers=data.workers),
        storage=data.storage,
        options=ReadOptions(texts_may_lack=not setup.data.tokenizer.has_labels, allow_pipes=data.allow_pipes),
    )


def state_of_data(checkpoints: Checkpoints) -> dict[str, Any] | None:
    """`LoadedBatch.state` of this process in the newest checkpoint; None if there is none.

    Raises:
        UserError: If the number of processes has changed.
    """
    meta = restore_meta(checkpoints.folder, checkpoints.latest) if checkpoints.latest else {}
    states = meta.get("data_states")
    if states is None:
        return None
    if len(states) != jax.process_count():
        raise UserError(
            f"the checkpoint has the states of the shards of {len(states)} processes, and there are "
            f"{jax.process_count()}: each process reads its own shards; continue with as many processes"
        )
    state: dict[str, Any] | None = states[jax.process_index()]
    return state


def pre_allocate(setup: Setup, steps: CompiledSteps, state: TrainState) -> dict[str, Any]:
    """Computes the gradient of a batch of noise of every shape, largest first, and discards it.

    Afterwards, the device has allocated the memory that the largest gradient needs. The state is not an output of the
    computation, so that parameters, batch norm's statistics, passed states and random numbers remain the same.

    Returns:
        The number of shapes and the seconds that they took.
    """
    begun_s, parts = time.monotonic(), min(setup.most_parts, 2)
    scale, labels = setup.data.train.index.scale, labels_of(setup.data.tokenizer)
    for number in largest_first(setup.shapes):
        shape = setup.shapes[number]
        frames = int(setup.model.label_length(shape.length, of_features=scale.of_features))
        # Twice as many frames as labels are enough for repeated ones.
        num_labels = min(shape.num_tokens, frames // 2)
        own = replace(shape, batch_size=shape.batch_size // setup.layout.num_processes)
        batch = global_batch(noise_of(own, scale, labels, num_labels=num_labels), setup.mesh)
        jax.block_until_ready(steps.accumulate(state, [(shape, batch, np.int32(0))] * parts))
    return {"shapes": len(setup.shapes), "seconds": round(time.monotonic() - begun_s, 2)}


def noise_of(shape: Bucket, scale: Scale, labels: Int[np.ndarray, " V"], *, num_labels: int | None = None) -> Batch:
    """Returns a full batch of noise in host memory, with random labels.

    Args:
        num_labels: Number of labels of each row. None: as many as the shape has room for.
    """
    rng, rows = np.random.default_rng(0), shape.batch_size
    num_labels = shape.num_tokens if num_labels is None else num_labels
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


def labels_of(tokenizer: Tokenizer) -> Int[np.ndarray, " V"]:
    """Returns the ids of all labels without the blank, at least one."""
    return np.delete(np.arange(max(tokenizer.vocab_size, 2)), tokenizer.blank_id)

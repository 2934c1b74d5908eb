"""Checks of encoders that stream: outputs of recordings in windows, for any batch of streams, and in whole."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from support import fast_jit

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import Tree, flatten
from asr_jax.models.encoder import Encoder


def streamed(
    encoder: Encoder, params: Tree, rows: Sequence[np.ndarray], *, starts: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Returns the output frames of recordings that are streamed together, by one compiled program.

    Args:
        rows: Features of each recording, [T F].
        starts: Number of windows that the others have had before a recording begins. None: all begin together. Before a
            recording begins and after it has ended, its row of the batch has noise, and the state of another stream.
    """
    window, starts = encoder.stream_window, starts or [0] * len(rows)
    traces: list[None] = []

    @fast_jit
    def program(params: Tree, state: Tree, frames: Frames) -> tuple[Tree, Frames]:
        traces.append(None)
        return encoder.apply({"params": params}, state, frames, method="stream")

    state, initial = (jax.device_get(encoder.initial_state(len(rows))) for _ in range(2))
    sizes = {path: (leaf.shape, leaf.dtype) for path, leaf in flatten(state).items()}
    assert all(shape[0] == len(rows) for shape, _ in sizes.values())
    outputs: list[list[np.ndarray]] = [[] for _ in rows]
    rng, number = np.random.default_rng(0), 0
    while any((number - start) * window.shift < len(row) for start, row in zip(starts, rows, strict=True)):
        lengths = np.zeros(len(rows), np.int32)
        values = rng.normal(size=(len(rows), window.size, rows[0].shape[1])).astype(np.float32)
        for place, (row, start) in enumerate(zip(rows, starts, strict=True)):
            if number == start:
                state = jax.tree.map(partial(_with_row, place), state, initial)
            begin = (number - start) * window.shift
            valid = row[begin : begin + window.size] if begin >= 0 else row[:0]
            lengths[place], values[place, : len(valid)] = len(valid), valid
        state, frames = jax.device_get(program(params, state, Frames(values, lengths)))
        assert {path: (leaf.shape, leaf.dtype) for path, leaf in flatten(state).items()} == sizes
        assert frames.values.shape[1] == window.outputs
        for place, (found, length) in enumerate(zip(frames.values, frames.lengths, strict=True)):
            outputs[place].append(found[:length])
            assert length == window.outputs or lengths[place] < window.size
        number += 1
    assert len(traces) == 1
    return [np.concatenate(each) for each in outputs]


def whole(encoder: Encoder, params: Tree, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the output frames of whole recordings, computed in one batch that is padded with noise."""
    size = max(map(len, rows)) + 3
    values = np.random.default_rng(1).normal(size=(len(rows), size, rows[0].shape[1])).astype(np.float32)
    for place, row in enumerate(rows):
        values[place, : len(row)] = row
    lengths = np.array([len(row) for row in rows], np.int32)
    program: Any = fast_jit(lambda params, frames: encoder.apply({"params": params}, frames, step=None).frames)
    frames = jax.device_get(program(params, Frames(values, lengths)))
    return [found[:length] for found, length in zip(frames.values, frames.lengths, strict=True)]


def _with_row(place: int, state: np.ndarray, initial: np.ndarray) -> np.ndarray:
    changed = np.array(state)
    changed[place] = initial[place]
    return changed

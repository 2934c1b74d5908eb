"""Encoders that stream: tiny ones of each kind, and their outputs for recordings in windows and in whole."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from support import fast_jit

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import Tree, flatten
from asr_jax.models.conformer import Conformer
from asr_jax.models.encoder import Context, Encoder
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.models.zipformer import PER_STACK, Zipformer

ZIPFORMER = Zipformer(
    num_mels=16,
    embed_channels=(2, 3, 4),
    downsampling=(1, 4),
    dims=(8, 12),
    num_layers=(1, 2),
    unmasked_dims=(8, 12),
    num_heads=(2, 2),
    query_dims=(4, 3),
    value_dims=(4, 2),
    position_dims=(2, 2),
    feedforward_dims=(8, 8),
    kernel_sizes=(15, 3),
    positions_dim=8,
    dropout_start=0.0,
    dropout_end=0.0,
    causal=True,
    contexts=(Context(4, 8),),
    regularise=False,
    skip=False,
)
OF_FIRST_STACK = {name: getattr(ZIPFORMER, name)[:1] for name in (*PER_STACK, "unmasked_dims")}
ONE_STACK = replace(ZIPFORMER, **{**OF_FIRST_STACK, "downsampling": (2,)})
CONFORMER = Conformer.fast_streaming(
    "small", num_mels=9, dim=8, num_layers=2, num_heads=2, feedforward_dim=12, kernel_size=5, subsampling_channels=3,
    contexts=(Context(3, 6), Context(2, 4), Context()), dropout=0.0, input_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
LSTM = LSTMEncoder(num_mels=9, dim=6, layers_before=1, layers_after=2, stack=2, batch_norm=True)
ENCODERS = {
    "zipformer": ZIPFORMER,
    "zipformer, all frames": replace(ZIPFORMER, output_downsampling=1, contexts=(Context(8, 8),)),
    "zipformer, fewer frames": replace(ZIPFORMER, output_downsampling=4, contexts=(Context(4, 12),)),
    "zipformer, short chunks": replace(ZIPFORMER, downsampling=(2, 1), contexts=(Context(2, 2),)),
    "conformer": CONFORMER,
    "conformer, chunks of one frame": CONFORMER.with_context(Context(1, 4)),
    "conformer, left context of part of a chunk": replace(
        CONFORMER.with_context(Context(3, 4)), positions="none", mask_padding=False
    ),
    "conformer, no left context": replace(
        CONFORMER.with_context(Context(2, 0)),
        subsampling="striding",
        subsampling_factor=4,
        norm="batch",
        tied_biases=True,
    ),
    "lstm": LSTM,
}


def drawn(encoder: Encoder) -> Tree:
    """Returns random variables of an encoder."""
    frames = Frames(np.zeros((1, 20, encoder.settings.num_mels), np.float32), np.array([20]))
    shapes = jax.eval_shape(partial(encoder.init, step=None), jax.random.key(0), frames)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.45, leaf.shape).astype(np.float32), shapes["params"])
    statistics = {name: tree for name, tree in shapes.items() if name != "params"}
    return {
        "params": params,
        **jax.tree.map(lambda leaf: rng.uniform(0.5, 1.0, leaf.shape).astype(np.float32), statistics),
    }


def streamed(
    encoder: Encoder, variables: Tree, rows: Sequence[np.ndarray], *, starts: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Returns the output frames of recordings that are streamed together, by one compiled program.

    Args:
        rows: Features of each recording, [T F].
        starts: Number of windows that the others have had before a recording begins. None: all begin together. Before a
            recording begins and after it has ended, its row of the batch has frames that do not matter, and the state
            of another stream.
    """
    window, starts = encoder.stream_window, starts or [0] * len(rows)
    rows = [np.pad(row, ((window.before, 0), (0, 0)), constant_values=7.0) for row in rows]
    traces: list[None] = []

    @fast_jit
    def program(variables: Tree, state: Tree, frames: Frames) -> tuple[Tree, Frames]:
        traces.append(None)
        return encoder.apply(variables, state, frames, method="stream")

    state, initial = (jax.device_get(encoder.initial_state(len(rows))) for _ in range(2))
    sizes = {path: (leaf.shape, leaf.dtype) for path, leaf in flatten(state).items()}
    assert all(shape[0] == len(rows) for shape, _ in sizes.values())
    outputs: list[list[np.ndarray]] = [[] for _ in rows]
    number = 0
    while any((number - start) * window.shift < len(row) for start, row in zip(starts, rows, strict=True)):
        lengths = np.zeros(len(rows), np.int32)
        values = np.full((len(rows), window.size, rows[0].shape[1]), 7.0, np.float32)
        for place, (row, start) in enumerate(zip(rows, starts, strict=True)):
            if number == start:
                state = jax.tree.map(partial(_with_row, place), state, initial)
            begin = (number - start) * window.shift
            valid = row[begin : begin + window.size] if begin >= 0 else row[:0]
            lengths[place], values[place, : len(valid)] = len(valid), valid
        state, frames = jax.device_get(program(variables, state, Frames(values, lengths)))
        assert {path: (leaf.shape, leaf.dtype) for path, leaf in flatten(state).items()} == sizes
        assert frames.values.shape[1] == window.outputs
        for place, (found, length) in enumerate(zip(frames.values, frames.lengths, strict=True)):
            outputs[place].append(found[:length])
            assert length == window.outputs or lengths[place] < window.size
        number += 1
    assert len(traces) == 1
    return [np.concatenate(each) for each in outputs]


def whole(encoder: Encoder, variables: Tree, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the output frames of whole recordings, computed in one padded batch.

    The values of the padding are not those of `streamed`, unless they matter.
    """
    padding = -5.0 if encoder.settings.mask_padding else 7.0
    size = max(map(len, rows)) + encoder.stream_window.size
    values = np.full((len(rows), size, rows[0].shape[1]), padding, np.float32)
    for place, row in enumerate(rows):
        values[place, : len(row)] = row
    lengths = np.array([len(row) for row in rows], np.int32)
    program: Any = fast_jit(lambda variables, frames: encoder.apply(variables, frames, step=None).frames)
    frames = jax.device_get(program(variables, Frames(values, lengths)))
    return [found[:length] for found, length in zip(frames.values, frames.lengths, strict=True)]


def _with_row(place: int, state: np.ndarray, initial: np.ndarray) -> np.ndarray:
    changed = np.array(state)
    changed[place] = initial[place]
    return changed

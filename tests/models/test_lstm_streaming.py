"""The LSTM encoder over windows of streams: the outputs and the states of whole recordings."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_within, fast_jit, relative

from asr_jax.core.batch import Frames
from asr_jax.models.lstm import LSTMEncoder

SETTINGS = LSTMEncoder(num_mels=5, dim=6, layers_before=1, layers_after=2, stack=2, batch_norm=True)


@pytest.fixture(scope="module")
def encoder():
    """The encoder, its variables, and its compiled functions for whole recordings and for windows."""
    module = SETTINGS.build(dtype=np.float32)
    frames = Frames(jnp.zeros((1, 8, 5)), jnp.full(1, 8))
    variables = module.init(jax.random.key(1), frames, step=None)
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: leaf + np.float32(rng.uniform(0.1, 0.5, leaf.shape)), variables)
    whole = fast_jit(lambda frames: module.apply(variables, frames, step=None).frames)
    return module, variables, whole, fast_jit(partial(module.apply, variables, method="stream"))


def windows(module, values, lengths, starts):
    """Windows of streams that begin in different steps, as a batch each."""
    window, step = module.stream_window, 0
    while True:
        begins = (step - np.asarray(starts)) * window.shift
        if (begins >= np.maximum(lengths, 1)).all():
            return
        sizes = np.where(begins < 0, 0, np.clip(np.asarray(lengths) - begins, 0, window.size))
        batch = np.full((len(lengths), window.size, values.shape[2]), 7, np.float32)  # what is not read
        for row, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
            batch[row, :size] = values[row, max(begin, 0) : max(begin, 0) + size]
        yield Frames(batch, np.int32(sizes))
        step += 1


def test_windows_of_streams_of_different_lengths_and_starts(encoder):
    module, _, whole, stream = encoder
    lengths, starts = (37, 16, 1, 24), (0, 2, 1, 0)
    values = np.random.default_rng(2).normal(size=(4, 40, 5)).astype(np.float32)
    expected = whole(Frames(values, np.int32(lengths)))
    state, found = module.initial_state(4), [list[np.ndarray]() for _ in lengths]
    shapes = [leaf.shape for leaf in jax.tree.leaves(state)]
    assert {shape[0] for shape in shapes} == {4}
    for frames in windows(module, values, lengths, starts):
        before = state
        state, outputs = stream(state, frames)
        assert [leaf.shape for leaf in jax.tree.leaves(state)] == shapes
        assert outputs.values.shape == (4, module.stream_window.outputs, SETTINGS.dim)
        for row, size in enumerate(outputs.lengths.tolist()):
            found[row].append(np.asarray(outputs.values)[row, :size])
            if not frames.lengths[row]:
                pairs = zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True)
                assert all(np.array_equal(old[row], new[row]) for old, new in pairs)
    for row, parts in enumerate(found):
        size = int(expected.lengths[row])
        assert sum(map(len, parts)) == size == module.output_length(lengths[row])
        assert_within(relative(np.concatenate(parts), expected.values[row, :size]), 1e-5, what=f"stream {row}")

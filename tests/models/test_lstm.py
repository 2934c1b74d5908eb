"""The LSTM encoder: the published sizes, and the state of rows that wait."""

from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from streaming_suite import LSTM, drawn
from support import fast_jit

import asr_jax
from asr_jax.core.batch import Batch, Frames

CONFIGS = Path(__file__).parent.parent.parent / "configs"


@pytest.mark.parametrize(
    ("name", "vocab_size", "parameters"),
    [("testing", 1024, 49_006_080), ("base", 8704, 84_690_432), ("large", 17_408, 195_590_400)],
)
def test_published_numbers_of_parameters(name, vocab_size, parameters):
    experiment = asr_jax.load_config(CONFIGS / f"rnnt_{name}.py")
    assert experiment.data.tokenizer.vocab_size == vocab_size
    model = experiment.model.build(vocab_size=vocab_size, blank_id=vocab_size - 1, precision="f32")
    batch = Batch(
        np.zeros((1, 16000), np.int16), None, np.int32([16000]), np.zeros((1, 4), np.int32), np.int32([4]),
        np.ones(1, np.float32), np.int32([0]),
    )  # fmt: skip
    shapes = jax.eval_shape(partial(model.init, step=None), jax.random.key(0), batch)["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


def test_a_row_without_frames_keeps_its_state():
    module, rng = LSTM.build(dtype=np.float32), np.random.default_rng(0)
    frames = Frames(rng.normal(size=(2, module.stream_window.size, 9)).astype(np.float32), np.int32([3, 0]))
    state = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), module.initial_state(2))
    after, _ = fast_jit(partial(module.apply, method="stream"))(drawn(module), state, frames)
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert np.array_equal(old[1], new[1])
        assert not np.array_equal(old[0], new[0])

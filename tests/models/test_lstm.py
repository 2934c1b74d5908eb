"""The LSTM encoder: the published sizes, and what an encoder must do."""

from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

import asr_jax
from asr_jax.core.batch import Batch

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

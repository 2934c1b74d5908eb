"""Adapters of W2V-BERT whose convolutions and length formula disagree in transformers, with its weights and outputs."""

from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import assert_within, max_abs, relative

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.batch import Batch
from asr_jax.core.pytrees import unflatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.pretrained.formats import imported
from asr_jax.pretrained.w2v_bert_settings import w2v_bert_of

pytestmark = pytest.mark.golden

FOLDERS = sorted((Path(__file__).parent / "w2v_bert_adapters").iterdir())
CASES = [pytest.param(folder, id=folder.name) for folder in FOLDERS]
fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@cache
def run(folder: Path, mask_padding: bool) -> Any:
    """Returns the reference's arrays, and logits, their lengths and the loss for the batch and for other padding."""
    arrays, settings = load_file(folder / "arrays.safetensors"), w2v_bert_of(folder)
    assert isinstance(settings, W2VBert)
    assert not settings.mask_padding
    settings = w2v_bert_of(folder, mask_padding=mask_padding)
    front_end = KaldiFbank(num_mels=arrays["features"].shape[2])
    model = Model(encoder=settings, heads={"ctc": CTC(dropout=0.0)}, front_end=front_end, augment=())
    theirs = {name.removeprefix("param/"): array for name, array in arrays.items() if name.startswith("param/")}
    found, left = imported(theirs, model)
    assert left == []
    lengths, labels = np.int32(arrays["lengths"]), np.int32(arrays["labels"])
    num = len(lengths)

    @fast_jit
    def compute(variables: Any, features: Any) -> Any:
        batch = Batch(
            audio=None, features=features, lengths=jnp.asarray(lengths), tokens=jnp.asarray(labels),
            token_lengths=jnp.ones(num, jnp.int32), weights=jnp.ones(num), utterances=jnp.arange(num),
        )  # fmt: skip
        recogniser = model.build(vocab_size=arrays["logits"].shape[2], blank_id=0, precision="f32")
        emitted = recogniser.apply(variables, batch, method="emit")["ctc"]
        return emitted, recogniser.apply(variables, batch, step=None)["ctc/loss"]

    variables = unflatten(found)
    garbage = np.full((num, 11, arrays["features"].shape[2]), 3.0, np.float32)
    longer = np.concatenate([arrays["features"], garbage], axis=1)
    return arrays, *jax.device_get([compute(variables, given) for given in (arrays["features"], longer)])


@pytest.mark.parametrize("folder", CASES)
def test_log_probabilities_of_the_same_batch(folder: Path) -> None:
    arrays, (emitted, loss), _ = run(folder, False)
    expected = jax.nn.log_softmax(arrays["logits"])
    assert emitted.values.shape == expected.shape
    frames = np.minimum(arrays["logit_lengths"], expected.shape[1])
    assert (emitted.lengths <= frames).all()
    assert (emitted.lengths >= frames - 4).all()
    assert_within(max_abs(emitted.values, expected), 1e-4, what="log-probabilities of all frames")
    if "loss" in arrays:
        np.testing.assert_array_equal(emitted.lengths, arrays["logit_lengths"])
        assert_within(relative(loss.total, arrays["loss"]), 1e-5, what="loss")


@pytest.mark.parametrize("folder", CASES[:1])
def test_padding_has_no_influence_if_it_is_masked(folder: Path) -> None:
    for mask_padding in (True, False):
        _, (short, _), (long, _) = run(folder, mask_padding)
        np.testing.assert_array_equal(short.lengths, long.lengths)
        valid = np.arange(short.values.shape[1]) < short.lengths[:, None]
        difference = max_abs(short.values[valid], long.values[:, : short.values.shape[1]][valid])
        assert (difference < 1e-5) == mask_padding


def test_a_loss_is_among_the_cases() -> None:
    assert any("loss" in load_file(folder / "arrays.safetensors") for folder in FOLDERS)

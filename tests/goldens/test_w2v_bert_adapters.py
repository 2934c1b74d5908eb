"""Adapters of W2V-BERT whose convolutions and length formula disagree in transformers, with its weights and outputs."""

from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import assert_outputs, assert_within, fast_jit, log_softmax, max_abs, relative, slow_after_first

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.batch import Batch, Frames
from asr_jax.core.pytrees import unflatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model, Recogniser
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.pretrained.formats import imported
from asr_jax.pretrained.w2v_bert import w2v_bert_of

pytestmark = pytest.mark.golden

FOLDERS = sorted((Path(__file__).parent / "w2v_bert_adapters").iterdir())
CASES = slow_after_first([pytest.param(folder, id=folder.name) for folder in FOLDERS])


@dataclass(frozen=True)
class Run:
    """The reference's arrays, and our program with its weights."""

    arrays: dict[str, np.ndarray]
    variables: Any
    batch: Batch
    program: Any

    def emitted(self, features: np.ndarray) -> tuple[Frames, Any]:
        """Returns log-probabilities, their lengths and the loss."""
        return jax.device_get(self.program(self.variables, self.batch.replace(features=features)))


@cache
def run_of(folder: Path, mask_padding: bool) -> Run:
    arrays, settings = load_file(folder / "arrays.safetensors"), w2v_bert_of(folder)
    assert isinstance(settings, W2VBert)
    assert not settings.mask_padding
    settings = replace(settings, mask_padding=mask_padding)
    front_end = KaldiFbank(num_mels=arrays["features"].shape[2])
    model = Model(encoder=settings, heads={"ctc": CTC(dropout=0.0)}, front_end=front_end, augment=())
    theirs = {name.removeprefix("param/"): array for name, array in arrays.items() if name.startswith("param/")}
    found, left = imported(theirs, model)
    assert left == []
    recogniser = model.build(vocab_size=arrays["logits"].shape[2], blank_id=0, precision="f32")
    num = len(arrays["lengths"])
    batch = Batch(
        audio=None, features=arrays["features"], lengths=np.int32(arrays["lengths"]), tokens=np.int32(arrays["labels"]),
        token_lengths=np.ones(num, np.int32), weights=np.ones(num, np.float32),
        utterances=np.arange(num, dtype=np.int32),
    )  # fmt: skip

    def compute(bound: Recogniser, batch: Batch) -> tuple[Frames, Any]:
        encoded, head = bound.encode(batch, step=None), bound.heads["ctc"]
        return head.emit(encoded), head(encoded, batch, step=None)["loss"]

    return Run(arrays, unflatten(found), batch, fast_jit(partial(recogniser.apply, method=compute)))


@pytest.mark.parametrize("folder", CASES)
def test_log_probabilities_of_the_same_batch(folder: Path) -> None:
    run = run_of(folder, False)
    arrays, (emitted, loss) = run.arrays, run.emitted(run.arrays["features"])
    expected = log_softmax(arrays["logits"])
    assert emitted.values.shape == expected.shape
    frames = np.minimum(arrays["logit_lengths"], expected.shape[1])
    assert (emitted.lengths <= frames).all()
    assert (emitted.lengths >= frames - 4).all()
    assert_outputs(emitted.values, expected, what="log-probabilities of all frames")
    if "loss" in arrays:
        np.testing.assert_array_equal(emitted.lengths, arrays["logit_lengths"])
        assert_within(relative(loss.total, arrays["loss"]), 1e-5, what="loss")


@pytest.mark.slow
@pytest.mark.parametrize("folder", CASES[:1])
def test_padding_has_no_influence_if_it_is_masked(folder: Path) -> None:
    for mask_padding in (True, False):
        run = run_of(folder, mask_padding)
        features = run.arrays["features"]
        (short, _), (long, _) = map(
            run.emitted, (features, np.pad(features, ((0, 0), (0, 11), (0, 0)), constant_values=3))
        )
        np.testing.assert_array_equal(short.lengths, long.lengths)
        valid = np.arange(short.values.shape[1]) < short.lengths[:, None]
        difference = max_abs(short.values[valid], long.values[:, : short.values.shape[1]][valid])
        if mask_padding:
            assert_within(difference, 1e-5)
        else:
            assert difference > 1e-3


def test_a_loss_is_among_the_cases() -> None:
    assert any("loss" in load_file(folder / "arrays.safetensors") for folder in FOLDERS)

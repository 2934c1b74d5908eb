"""Outputs, gradients and running statistics of NeMo's QuartzNet, Jasper and Citrinet, from their own weights."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conv_asr import batch_of, encoder_of, model_of, program_of, variables_of, weights_of, with_first_statistics
from support import GoldenCase, assert_gradients, assert_outputs, golden_cases, part, slow_after_first

from asr_jax.core.pytrees import unflatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.pretrained.quartznet import NEMO

pytestmark = pytest.mark.golden

CASES = slow_after_first(golden_cases("nemo", "conv_asr_*"))


@dataclass(frozen=True)
class Run:
    """Our model with the reference's weights, and its outputs."""

    info: dict[str, Any]
    arrays: dict[str, np.ndarray]
    model: Model
    evaluated: Any
    trained: Any


@cache
def run_case(path: Path) -> Run:
    case = GoldenCase(path, json.loads(path.read_text(encoding="utf-8")))
    info, arrays = case.info, case.arrays()
    model = model_of({"activation": "relu", **info, "jasper": info["blocks"]})
    recogniser = model.build(vocab_size=info["num_classes"] + 1, blank_id=info["num_classes"], precision="f32")
    features = arrays["input/feat_BDT"]
    # Without masks, the reference computes as if every row were as long as the batch.
    lengths = arrays["input/feat_lens"] if info["conv_mask"] else np.full(len(features), features.shape[-1])
    no_labels = np.zeros((len(features), 1), np.int32)
    batch = batch_of(features, lengths, no_labels, no_labels[:, 0])
    program = program_of(recogniser, batch, arrays["train/grad_weights"])
    variables = with_first_statistics(variables_of(arrays, model), arrays, program)
    return Run(info, arrays, model, *jax.device_get(program(variables)))


@pytest.fixture
def ours(request: pytest.FixtureRequest) -> Run:
    return run_case(request.param.path)


@pytest.mark.parametrize("ours", CASES, indirect=True)
def test_evaluation(ours: Run) -> None:
    frames, log_probs = ours.evaluated
    actual = np.asarray(frames.values).transpose(0, 2, 1)
    assert_outputs(actual, ours.arrays["eval/enc_BDT"], what="encoder")
    assert_outputs(log_probs.values, ours.arrays["eval/log_probs_BTV"], what="log-probs")
    if ours.info["conv_mask"]:
        np.testing.assert_array_equal(log_probs.lengths, ours.arrays["eval/lens"])


@pytest.mark.parametrize("ours", CASES, indirect=True)
def test_a_training_step(ours: Run) -> None:
    _, log_probs, stats, grads = ours.trained
    assert_outputs(log_probs, ours.arrays["train/log_probs_BTV"], what="log-probs")
    theirs = part(ours.arrays, "train_grad/")
    assert_gradients(NEMO.export({"params": grads}, encoder_of(ours.model), {"heads_ctc": CTC()}), theirs)
    after = weights_of(ours.arrays, "train_buffers_after_1/")
    found = NEMO.export({"batch_stats": stats}, encoder_of(ours.model), {"heads_ctc": CTC()})
    assert found.keys() == after.keys()
    for name, array in after.items():
        assert_outputs(found[name], array, what=name)


@pytest.mark.parametrize("ours", CASES, indirect=True)
def test_export_inverts_import(ours: Run) -> None:
    theirs = weights_of(ours.arrays, "param/")
    found, left = NEMO.find(theirs, encoder_of(ours.model), {"heads_ctc": CTC()})
    assert left == []
    exported = NEMO.export(unflatten(found), encoder_of(ours.model), {"heads_ctc": CTC()})
    assert exported.keys() == theirs.keys()
    for name, array in exported.items():
        np.testing.assert_array_equal(array, theirs[name])

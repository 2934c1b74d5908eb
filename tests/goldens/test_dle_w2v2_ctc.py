"""NVIDIA's fine-tuning of wav2vec 2.0 with CTC: outputs, loss and gradients, and inference with a masked norm."""

import re
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest
from support import (
    GoldenCase,
    assert_gradients,
    assert_outputs,
    assert_within,
    golden_cases,
    having,
    log_softmax,
    slow_after_first,
)
from wav2vec2_programs import ctc_program, forward_program, gradients

from asr_jax.core.batch import Batch, Frames
from asr_jax.core.pytrees import unflatten
from asr_jax.heads.ctc import CTC
from asr_jax.pretrained.wav2vec2 import FAIRSEQ
from asr_jax.pretrained.wav2vec2_fairseq import settings_of_fairseq

pytestmark = pytest.mark.golden

CASES = slow_after_first(golden_cases("dle_w2v2", "ctc_*"))
WITH_GRADIENTS = having(CASES, "grad/")
"""Cases of training; those of inference have no gradients."""


@cache
def run_of(path: Any) -> Any:
    """Returns the case's arrays, our loss and log-probabilities, and the gradients by the reference's names."""
    case = next(case.values[0] for case in CASES if case.values[0].path == path)
    arrays, config = case.arrays(), case.info["config"]
    theirs = settings_of_fairseq(config, path).encoder
    # The reference's norm includes padding in training. A masked extractor excludes it, only in inference.
    padded = not config["masked_feature_extractor"] and theirs.extractor_norm == "group"
    encoder = replace(theirs, extractor_norm="group_padded" if padded else theirs.extractor_norm, mask_padding=False)
    layers = tuple(f"layer_{number}" for number in theirs.tapped_layers())  # as test_w2v2_pretraining.py
    encoder = replace(encoder, taps=(*theirs.taps, *layers), time_mask=replace(theirs.time_mask, probability=0.0))
    weights = {name.removeprefix("param/"): array for name, array in arrays.items() if name.startswith("param/")}
    found, left = FAIRSEQ.find(weights, encoder, {"heads_ctc": CTC()})
    assert left == []
    params = unflatten(found)["params"]
    target, rows = arrays["input/target"], len(arrays["input/target"])
    batch = Batch(
        audio=None, features=arrays["input/source"][..., None],
        lengths=(~arrays["input/padding_mask"]).sum(axis=1).astype(np.int32), tokens=target.astype(np.int32),
        token_lengths=arrays["input/target_lengths"].astype(np.int32), weights=np.ones(rows, np.float32),
        utterances=np.arange(rows, dtype=np.int32),
    )  # fmt: skip

    of_head = partial(ctc_program(len(case.info["symbols"]), 0, training=True), batch=batch)
    frames = Frames(batch.features, batch.lengths)
    if case.has("grad/"):
        _, (loss, emitted), grads = gradients(encoder, params, frames, "heads_ctc", of_head, training=True)
        return arrays, loss, emitted, FAIRSEQ.export({"params": grads}, encoder, {"heads_ctc": CTC()})
    (loss, emitted), *_ = of_head(params["heads_ctc"], forward_program(encoder)(params["encoder"], frames))
    return arrays, loss, jax.device_get(emitted), None


@pytest.mark.parametrize("case", CASES)
def test_log_probabilities_and_loss(case: GoldenCase) -> None:
    arrays, loss, emitted, _ = run_of(case.path)
    valid = np.arange(emitted.values.shape[1])[None, :, None] < np.asarray(emitted.lengths)[:, None, None]
    np.testing.assert_array_equal(~valid[..., 0], arrays["out/padding_mask"])
    for name in ("log_probs_TBC", "infer_TBC"):
        if f"out/{name}" in arrays:
            expected = arrays[f"out/{name}"].transpose(1, 0, 2)
            expected = log_softmax(expected)
            assert_outputs(np.where(valid, emitted.values, 0), np.where(valid, expected, 0), what=name)
    if "out/ctc_loss_sum" in arrays:
        assert_within(abs(float(loss) / float(arrays["out/ctc_loss_sum"]) - 1), 1e-5, what="loss")


def test_some_case_has_gradients() -> None:
    """Without gradients, the next test would compare nothing."""
    assert CASES
    assert any(case.values[0] for case in WITH_GRADIENTS) or not any(case.values[0] for case in CASES)


@pytest.mark.parametrize("case", WITH_GRADIENTS)
def test_gradients_by_the_peers_names(case: GoldenCase) -> None:
    arrays, _, _, actual = run_of(case.path)
    prefixes = r"grad/w2v_encoder\.(w2v_model\.)?"
    expected = {re.sub(prefixes, "", name): array for name, array in arrays.items() if name.startswith("grad/")}
    assert_gradients(actual, expected)

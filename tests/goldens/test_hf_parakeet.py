"""Logits, CTC loss and gradients of Hugging Face's ParakeetForCTC, from its folders."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support import (
    GOLDENS,
    GoldenCase,
    assert_gradients,
    assert_outputs,
    assert_within,
    fast_jit,
    log_softmax,
    slow_after_first,
)

from asr_jax.core.batch import Batch
from asr_jax.core.pytrees import unflatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model, Recogniser
from asr_jax.models.conformer import Conformer
from asr_jax.pretrained.conformer import HUGGINGFACE
from asr_jax.pretrained.encoders import encoder_of, front_end_of
from asr_jax.pretrained.formats import imported, load_weights
from asr_jax.text.tokenizers import Tokenizer, TokenizerSettings, given_tokenizer

pytestmark = pytest.mark.golden

FOLDERS = (Path(__file__).parent / "parakeet", GOLDENS / "parakeet")
CASES = slow_after_first(
    [pytest.param(path, id=path.stem) for folder in FOLDERS for path in sorted(folder.glob("*.json"))]
)


@dataclass(frozen=True)
class Run:
    """Our model with the reference's weights, and its outputs."""

    case: GoldenCase
    arrays: dict[str, np.ndarray]
    settings: Conformer
    weights: dict[str, np.ndarray]
    variables: dict[str, Any]
    tokenizer: Tokenizer
    logits: np.ndarray
    lengths: np.ndarray
    loss: float
    gradients: dict[str, np.ndarray]


@cache
def run_case(path: Path) -> Run:
    case, folder = GoldenCase(path, json.loads(path.read_text(encoding="utf-8"))), path.with_suffix("")
    arrays, settings = case.arrays(), encoder_of(folder)
    weights, symbols = load_weights(folder)
    tokenizer = given_tokenizer(TokenizerSettings(path=str(folder), normaliser="none"))
    assert symbols == tokenizer.symbols
    model = Model(encoder=settings, heads={"ctc": CTC(dropout=0.0)}, front_end=front_end_of(folder))
    found, left = imported(weights, model)
    assert left == []
    recogniser = model.build(vocab_size=tokenizer.vocab_size, blank_id=tokenizer.blank_id, precision="f32")
    variables = unflatten(found)
    labels, lengths = arrays["labels"], arrays["lengths"].astype(np.int32)
    batch = Batch(
        audio=None,
        features=arrays["features"],
        lengths=lengths,
        tokens=np.maximum(labels, 0).astype(np.int32),
        token_lengths=(labels >= 0).sum(axis=1).astype(np.int32),
        weights=np.ones(len(labels), np.float32),
        utterances=np.arange(len(labels), dtype=np.int32),
    )

    def both(recogniser: Recogniser, batch: Batch) -> Any:
        encoded, head = recogniser.encode(batch, step=None), recogniser.heads["ctc"]
        return head(encoded, batch, step=None)["loss"].total, head.emit(encoded)

    def loss(params: Any, batch: Batch) -> Any:
        return recogniser.apply({**variables, "params": params}, batch, method=both)

    program = fast_jit(jax.value_and_grad(loss, has_aux=True))
    (value, emitted), gradients = jax.device_get(program(variables["params"], batch))
    theirs = HUGGINGFACE.export({"params": gradients}, settings, {"heads_ctc": CTC()})
    return Run(
        case, arrays, settings, weights, variables, tokenizer, emitted.values, emitted.lengths, float(value), theirs
    )


@pytest.mark.parametrize("path", CASES)
def test_logits_and_loss(path: Path) -> None:
    run = run_case(path)
    np.testing.assert_array_equal(run.lengths, run.arrays["frame_lengths"])
    valid = (np.arange(run.logits.shape[1]) < run.lengths[:, None])[:, :, None]
    expected = log_softmax(run.arrays["logits"])
    assert_outputs(run.logits * valid, expected * valid, what="log-probabilities")
    assert_within(abs(run.loss - run.arrays["loss"][0]) / run.loss, 1e-5, what="loss")


@pytest.mark.parametrize("path", CASES)
def test_gradients_by_the_peers_names(path: Path) -> None:
    run = run_case(path)
    expected = {name[5:]: array for name, array in run.arrays.items() if name.startswith("grad/")}
    assert run.gradients.keys() == expected.keys()
    zero = assert_gradients(run.gradients, expected)
    assert all(name.endswith("k_proj.bias") for name in zero), "softmax cancels the bias of keys"


@pytest.mark.parametrize("path", CASES)
def test_export_inverts_import(path: Path) -> None:
    run = run_case(path)
    again = HUGGINGFACE.export(run.variables, run.settings, {"heads_ctc": CTC()})
    counts = {name for name in run.weights if name.endswith("num_batches_tracked")}
    assert again.keys() == run.weights.keys() - counts
    for name, array in again.items():
        np.testing.assert_array_equal(array, run.weights[name])


@pytest.mark.parametrize("path", CASES)
def test_the_folders_tokenizer_gives_the_same_ids(path: Path) -> None:
    run = run_case(path)
    assert run.tokenizer.blank_id == run.tokenizer.vocab_size - 1
    for text, ids in run.case.info["encoded"].items():
        assert run.tokenizer.encode(text) == ids
        assert run.tokenizer.decode(ids) == text

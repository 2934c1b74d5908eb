"""Paraformer-v2 with the weights of PositiveLoss's Python code: outputs and losses of the plain and enhanced model."""

import json
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import assert_outputs, assert_within, fast_jit, log_softmax, part, relative

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.batch import Batch, Encoded
from asr_jax.core.pytrees import unflatten
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer_v2 import REFINEMENT_SCALE, Enhancement, ParaformerV2
from asr_jax.models.base import Model, Recogniser
from asr_jax.models.conformer import Conformer
from asr_jax.nn.decoders.parallel_decoder import TransformerDecoder
from asr_jax.pretrained.formats import imported

pytestmark = pytest.mark.golden

FOLDER = Path(__file__).parent / "paraformer_rust"
MODELS = ("plain", "enhanced")
CTC_HEAD = CTC(dropout=0.0)


@dataclass(frozen=True)
class Run:
    """The reference's arrays, and the outputs of this package for all utterances in one batch with padding."""

    arrays: dict[str, np.ndarray]
    encoded: Encoded
    queries: Any
    sums: Any
    lengths: np.ndarray

    def of(self, name: str) -> list[np.ndarray]:
        """Returns an output of the reference for each utterance."""
        return [self.arrays[f"out_{number}/{name}"] for number in range(len(self.lengths))]

    def total(self, name: str) -> float:
        """Returns a loss of the reference, summed over the labels of all utterances."""
        given = self.arrays
        return sum(float(given[f"loss_{n}/{name}"][0]) * len(given[f"labels_{n}"]) for n in range(len(self.lengths)))


def model_of(sizes: dict[str, int], *, enhanced: bool) -> Model:
    num_layers, tap = sizes["encoder_layers"], f"layer_{sizes['encoder_layers'] // 2 - 1}"
    encoder = Conformer.paraformer(
        num_mels=sizes["input_dim"],
        dim=sizes["encoder_dim"],
        num_layers=num_layers,
        num_heads=sizes["attention_heads"],
        feedforward_dim=sizes["encoder_ff_dim"],
        kernel_size=sizes["conv_kernel_size"],
        taps=(tap,) if enhanced else (),
    )
    decoder = TransformerDecoder(
        num_layers=sizes["decoder_layers"],
        num_heads=sizes["attention_heads"],
        feedforward_dim=sizes["decoder_ff_dim"],
    )
    head = ParaformerV2(decoder=decoder, enhanced=Enhancement(tap=tap) if enhanced else None)
    heads: dict[str, HeadSettings] = {"paraformer": head, "ctc": CTC_HEAD}
    if enhanced:
        heads["shallow"] = replace(CTC_HEAD, tap=tap)
    front_end = KaldiFbank(num_mels=sizes["input_dim"])
    return Model(encoder=encoder, heads=heads, front_end=front_end, augment=(), primary="paraformer")


def padded(arrays: list[np.ndarray], value: float) -> np.ndarray:
    """Returns arrays as rows of one, with the value in the padding."""
    size = max(map(len, arrays))
    rows = [
        np.pad(each, [(0, size - len(each))] + [(0, 0)] * (each.ndim - 1), constant_values=value) for each in arrays
    ]
    return np.stack(rows)


@cache
def run_of(name: str) -> Run:
    arrays = load_file(FOLDER / f"{name}.safetensors")
    sizes = json.loads((FOLDER / "about.json").read_text(encoding="utf-8"))["sizes"]
    model = model_of(sizes, enhanced=name == "enhanced")
    found, left = imported(part(arrays, "param/"), model)
    assert left == []
    num_labels = sizes["vocab_size"] + 1
    recogniser = model.build(vocab_size=num_labels, blank_id=num_labels - 1, precision="f32")
    features, labels = ([arrays[f"{name}_{n}"] for n in range(3)] for name in ("features", "labels"))
    lengths = np.int32([len(each) for each in features])
    batch = Batch(
        audio=None, features=padded(features, 9.0), lengths=lengths, tokens=padded(labels, 0).astype(np.int32),
        token_lengths=np.int32([len(each) for each in labels]), weights=np.ones(3, np.float32),
        utterances=np.arange(3, dtype=np.int32),
    )  # fmt: skip

    def compute(bound: Recogniser, batch: Batch) -> Any:
        encoded = bound.with_emitted(bound.encode(batch, step=None))
        sums = {name: head(encoded, batch, step=None) for name, head in bound.heads.items()}
        return encoded, bound.heads["paraformer"].emit(encoded), sums

    variables = unflatten(found)
    shapes = jax.eval_shape(partial(recogniser.init, step=None), jax.random.key(0), batch)
    assert jax.tree.map(np.shape, variables) == jax.tree.map(np.shape, dict(shapes))
    results = jax.device_get(fast_jit(partial(recogniser.apply, method=compute))(variables, batch))
    return Run(arrays, *results, lengths)


@pytest.mark.parametrize("model", MODELS)
def test_outputs(model: str) -> None:
    run = run_of(model)
    frames, (queries, num_queries) = run.encoded.frames, (run.queries.values, run.queries.lengths)
    np.testing.assert_array_equal(frames.lengths, run.of("encoder_lengths"))
    np.testing.assert_array_equal(num_queries, run.of("query_lengths"))
    shallow = (
        {"shallow_ctc_log_probs": run.encoded.emitted["shallow"].values} if "shallow" in run.encoded.emitted else {}
    )
    ours = {"encoder": frames.values, "ctc_log_probs": run.encoded.emitted["ctc"].values, **shallow}
    for name, values in ours.items():
        for row, expected in enumerate(run.of(name)):
            assert_outputs(values[row, : len(expected)], expected, what=name)
    for row, logits in enumerate(run.of("decoder_logits")):
        assert_outputs(queries[row, : len(logits), :-1], log_softmax(logits), what="labels of queries")
        assert queries[row, : len(logits), -1].max() < -50  # the blank, which the reference does not have there


@pytest.mark.parametrize("model", MODELS)
def test_losses_with_labels(model: str) -> None:
    """Boundary losses are compared in tests/heads/test_label_queries.py, because the targets differ."""
    run = run_of(model)
    expected = {("ctc", "loss"): run.total("ctc_loss"), ("paraformer", "loss"): run.total("first_ce_loss")}
    if "shallow" in run.sums:
        expected["shallow", "loss"] = run.total("shallow_ctc_loss")
        expected["paraformer", "refinement"] = REFINEMENT_SCALE * run.total("ce_loss")
    for (head, term), value in expected.items():
        assert_within(relative(run.sums[head][term].total, value), 1e-5, what=f"{head}/{term}")

"""Paraformer-v2 with the weights of PositiveLoss's code: names, shapes, outputs and losses, plain and enhanced."""

import json
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer_v2 import REFINEMENT_SCALE, Enhancement, ParaformerV2
from asr_jax.models.base import Model, Recogniser
from asr_jax.models.conformer import Conformer
from asr_jax.nn.decoders.parallel_decoder import TransformerDecoder
from asr_jax.pretrained.formats import exported, imported
from tests.support import ROOT, assert_outputs, assert_within, fast_jit, log_softmax, part, relative

FOLDER = ROOT / "tests/goldens/paraformer_rust"
SIZES = json.loads((FOLDER / "about.json").read_text(encoding="utf-8"))["sizes"]
NUM_LABELS = SIZES["vocab_size"] + 1
MODELS = ("plain", "enhanced")
CTC_HEAD = CTC(dropout=0.0)


def model_of(name: str) -> Model:
    tap, is_enhanced = Conformer.paraformer_tap(SIZES["encoder_layers"]), name == "enhanced"
    encoder = Conformer.paraformer(
        num_mels=SIZES["input_dim"],
        dim=SIZES["encoder_dim"],
        num_layers=SIZES["encoder_layers"],
        num_heads=SIZES["attention_heads"],
        feedforward_dim=SIZES["encoder_ff_dim"],
        kernel_size=SIZES["conv_kernel_size"],
        taps=(tap,) if is_enhanced else (),
    )
    decoder = TransformerDecoder(
        num_layers=SIZES["decoder_layers"],
        num_heads=SIZES["attention_heads"],
        feedforward_dim=SIZES["decoder_ff_dim"],
    )
    head = ParaformerV2(decoder=decoder, enhanced=Enhancement(tap=tap) if is_enhanced else None)
    heads: dict[str, HeadSettings] = {"paraformer": head, "ctc": CTC_HEAD}
    if is_enhanced:
        heads["shallow"] = replace(CTC_HEAD, tap=tap)
    front_end = KaldiFbank(num_mels=SIZES["input_dim"])
    return Model(encoder=encoder, heads=heads, front_end=front_end, augment=(), primary="paraformer")


@cache
def arrays_of(name: str) -> dict[str, np.ndarray]:
    return load_file(FOLDER / f"{name}.safetensors")


def batch_of(arrays: dict[str, np.ndarray]) -> Batch:
    """The reference's utterances, with padding that is not 0."""
    features, labels = ([arrays[f"{name}_{n}"] for n in range(3)] for name in ("features", "labels"))
    lengths, label_lengths = (np.int32([len(each) for each in rows]) for rows in (features, labels))
    return Batch(
        audio=None, features=padded(features, 9.0), lengths=lengths, tokens=padded(labels, 0).astype(np.int32),
        token_lengths=label_lengths, weights=np.ones(3, np.float32), utterances=np.arange(3, dtype=np.int32),
    )  # fmt: skip


def padded(arrays: list[np.ndarray], value: float) -> np.ndarray:
    """Returns arrays as rows of one, with the value in the padding."""
    size = max(map(len, arrays))
    rows = [
        np.pad(each, [(0, size - len(each))] + [(0, 0)] * (each.ndim - 1), constant_values=value) for each in arrays
    ]
    return np.stack(rows)


def emitted(bound: Recogniser, batch: Batch) -> tuple[Encoded, Frames]:
    encoded = bound.with_emitted(bound.encode(batch, step=None))
    return encoded, bound.heads["paraformer"].emit(encoded)


@pytest.mark.parametrize("name", MODELS)
def test_their_names_cover_all_and_come_back(name: str) -> None:
    model, theirs = model_of(name), part(arrays_of(name), "param/")
    found, left = imported({f"model.{name}": array for name, array in theirs.items()}, model)
    assert left == []
    recogniser = model.build(vocab_size=NUM_LABELS, blank_id=NUM_LABELS - 1, precision="f32")
    init = partial(recogniser.init, method=emitted)
    shapes = jax.eval_shape(init, jax.random.key(0), batch_of(arrays_of(name)))
    assert {path: array.shape for path, array in found.items()} == {
        path: each.shape for path, each in flatten(shapes).items()
    }
    back = exported(unflatten(found), model, "rust")
    assert back.keys() == {name for name in theirs if not name.endswith("num_batches_tracked")}
    for each, array in back.items():
        has_blank = len(array) - len(theirs[each])
        assert has_blank == (each.startswith(("decoder_projection", "refinement_projection", "token_embedding")))
        np.testing.assert_array_equal(array[: len(array) - has_blank], theirs[each], err_msg=each)
    # With a row for the blank, as the Rust trainer has it, nothing is added.
    again, left = imported(back, model)
    assert left == []
    for path, array in again.items():
        np.testing.assert_array_equal(array, found[path], err_msg=path)


@pytest.mark.parametrize("name", MODELS)
def test_the_encoder_and_its_ctc_head_alone(name: str) -> None:
    model, theirs = model_of(name), part(arrays_of(name), "param/")
    alone = replace(model, heads={"letters": CTC_HEAD}, primary="letters")
    found, left = imported(theirs, alone)
    assert {"decoder", "decoder_projection"} <= {name.partition(".")[0] for name in left}
    assert not [name for name in left if name.startswith(("encoder.", "ctc_", "final_ctc_"))]
    assert found["params/heads_letters/output/kernel"].shape == (SIZES["encoder_dim"], NUM_LABELS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rel_pos"}, "encoder.positions is rel_pos, expected none as in the Rust trainer"),
        ({"num_layers": 6}, "enhanced.tap is layer_1, expected layer_2 as in the Rust trainer's"),
    ],
)
def test_models_that_are_not_there(changes: dict[str, Any], message: str) -> None:
    model = model_of("enhanced")
    other = replace(model, encoder=replace(model.encoder, **changes))
    with pytest.raises(UserError, match=message):
        exported({}, other, "rust")
    if "num_layers" in changes:
        with pytest.raises(UserError, match=message):
            imported(part(arrays_of("enhanced"), "param/"), other)


@dataclass(frozen=True)
class Run:
    """The reference's arrays, and the outputs of this package for all utterances in one batch."""

    arrays: dict[str, np.ndarray]
    encoded: Encoded
    queries: Frames
    sums: Any

    def of(self, name: str) -> list[np.ndarray]:
        """Returns an output of the reference for each utterance."""
        return [self.arrays[f"out_{number}/{name}"] for number in range(3)]

    def total(self, name: str) -> float:
        """Returns a loss of the reference, summed over the labels of all utterances."""
        return sum(float(self.arrays[f"loss_{n}/{name}"][0]) * len(self.arrays[f"labels_{n}"]) for n in range(3))


@cache
def run_of(name: str) -> Run:
    arrays, model = arrays_of(name), model_of(name)
    found, _ = imported(part(arrays, "param/"), model)
    recogniser = model.build(vocab_size=NUM_LABELS, blank_id=NUM_LABELS - 1, precision="f32")

    def compute(bound: Recogniser, batch: Batch) -> Any:
        encoded, queries = emitted(bound, batch)
        return encoded, queries, {name: head(encoded, batch, step=None) for name, head in bound.heads.items()}

    program = fast_jit(partial(recogniser.apply, method=compute))
    return Run(arrays, *jax.device_get(program(unflatten(found), batch_of(arrays))))


@pytest.mark.golden
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_outputs(name: str) -> None:
    run = run_of(name)
    frames, (queries, num_queries) = run.encoded.frames, (run.queries.values, run.queries.lengths)
    np.testing.assert_array_equal(frames.lengths, run.of("encoder_lengths"))
    np.testing.assert_array_equal(num_queries, run.of("query_lengths"))
    shallow = (
        {"shallow_ctc_log_probs": run.encoded.emitted["shallow"].values} if "shallow" in run.encoded.emitted else {}
    )
    ours = {"encoder": frames.values, "ctc_log_probs": run.encoded.emitted["ctc"].values, **shallow}
    for output, values in ours.items():
        for row, expected in enumerate(run.of(output)):
            assert_outputs(values[row, : len(expected)], expected, what=output)
    for row, logits in enumerate(run.of("decoder_logits")):
        assert_outputs(queries[row, : len(logits), :-1], log_softmax(logits), what="labels of queries")
        assert queries[row, : len(logits), -1].max() < -50  # the blank, which the reference does not have there


@pytest.mark.golden
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_losses_with_labels(name: str) -> None:
    """The boundary loss is not compared: targets of frames beside a boundary are 0 there, and 0.25 here."""
    run = run_of(name)
    expected = {("ctc", "loss"): run.total("ctc_loss"), ("paraformer", "loss"): run.total("first_ce_loss")}
    if "shallow" in run.sums:
        expected["shallow", "loss"] = run.total("shallow_ctc_loss")
        expected["paraformer", "refinement"] = REFINEMENT_SCALE * run.total("ce_loss")
    for (head, term), value in expected.items():
        assert_within(relative(run.sums[head][term].total, value), 1e-5, what=f"{head}/{term}")

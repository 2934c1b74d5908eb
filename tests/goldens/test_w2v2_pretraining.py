"""Pre-training of wav2vec 2.0 of fairseq and NVIDIA, from their weights: outputs, losses and gradients.

Contrastive losses and gradients depend on codes, which are an argmax. A test that depends on a choice is skipped if the
choice is a tie in the case. The cases in `pretraining` have no ties (scripts/goldens/w2v2_pretraining.py); for them,
such a test fails instead.
"""

from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from margins import TIE, argmax_margin, skip_ties
from support import (
    ROUNDING,
    GoldenCase,
    assert_gradients,
    assert_outputs,
    assert_within,
    cases_in,
    golden_cases,
    having,
    log_softmax,
    slow_after_first,
)
from wav2vec2_programs import (
    code_scores,
    contrastive_program,
    counting_padding,
    draws_of,
    encode,
    fast_jit,
    gradients,
    quantizer_program,
)

from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.pytrees import unflatten
from asr_jax.heads.contrastive import Contrastive
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.pretrained.wav2vec2 import FAIRSEQ
from asr_jax.pretrained.wav2vec2_fairseq import settings_of_fairseq

pytestmark = pytest.mark.golden

HEAD = "heads_pretrain"
MODES = ("eval", "train")
GIVEN = [
    case
    for family in ("fairseq_w2v2", "dle_w2v2")
    for case in golden_cases(family, "*")
    if case.values[0] is None or "log_fields" in case.values[0].info
]
OWN = [pytest.param(*case.values, id=f"{case.id}_no_tie") for case in cases_in(Path(__file__).parent / "pretraining")]
CASES = slow_after_first([*GIVEN, *OWN])
WITH_GRADIENTS = [
    pytest.param(*case.values, mode, id=f"{case.id}-{mode}", marks=case.marks)
    for mode in MODES
    for case in having(CASES, f"{mode}_pretrain_grad/")
]


@dataclass(frozen=True)
class Run:
    """A case, and our model with the reference's weights and its outputs."""

    arrays: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    """Weights by the reference's names."""
    fields: list[str]
    has_no_ties: bool
    """Whether the case has no ties, according to its file."""
    encoder: Wav2Vec2
    head: Contrastive
    params: Any
    padded: Encoded
    whole: Encoded
    """Output for the same batch, with padding that counts as valid."""
    alone: np.ndarray
    """Output for the last utterance alone."""


@cache
def run_of(path: Any) -> Run:
    case = next(case.values[0] for case in CASES if case.values[0].path == path)
    arrays = case.arrays()
    theirs = settings_of_fairseq(case.info["config"], path)
    encoder, head = counting_padding(theirs)
    layers = (f"layer_{number}" for number in encoder.tapped_layers())
    encoder = replace(encoder, taps=(*encoder.taps, *layers))
    weights = {name.removeprefix("param/"): array for name, array in arrays.items() if name.startswith("param/")}
    found, left = FAIRSEQ.find(weights, encoder, {HEAD: head})
    assert left == []
    params = jax.device_put(unflatten(found)["params"])
    samples, lengths = arrays["input/source"][..., None], lengths_of(arrays)
    padded = encoded_by(encoder, params, samples, lengths)
    whole = encoded_by(encoder, params, samples, np.full_like(lengths, samples.shape[1]))
    row = Frames(*jax.device_put((samples[-1:, : lengths[-1]], lengths[-1:])))
    alone = jax.device_get(encode_alone(encoder)(params["encoder"], row))
    fields, has_no_ties = case.info["log_fields"], case.info.get("margin", 0.0) >= TIE
    return Run(arrays, weights, fields, has_no_ties, encoder, head, params, padded, whole, alone)


@cache
def encode_alone(encoder: Wav2Vec2) -> Any:
    """Returns a program for the encoder's output without masked frames."""
    model = encoder.build(dtype=jnp.float32)
    return fast_jit(lambda params, row: model.apply({"params": params}, row, step=None).frames.values)


def encoded_by(encoder: Wav2Vec2, params: Any, samples: np.ndarray, lengths: np.ndarray) -> Encoded:
    return encode(encoder, params["encoder"], Frames(*jax.device_put((samples, lengths))))


def lengths_of(arrays: dict[str, np.ndarray]) -> np.ndarray:
    return np.int32((~arrays["input/padding_mask"]).sum(axis=1))


def valid(frames: Frames) -> np.ndarray:
    return np.arange(frames.values.shape[1])[None, :, None] < np.asarray(frames.lengths)[:, None, None]


@pytest.mark.parametrize("case", CASES)
def test_outputs(case: GoldenCase) -> None:
    run = run_of(case.path)
    counts = valid(run.padded.frames)
    np.testing.assert_array_equal(~counts[..., 0], run.arrays["eval_padded/padding_mask"])
    padded = np.asarray(run.padded.frames.values)
    assert_outputs(padded * counts, run.arrays["eval_padded/x"] * counts, what="padded")
    assert_outputs(run.whole.frames.values, run.arrays["eval_nopad/x"], what="without a mask")
    assert_outputs(run.alone, run.arrays["eval_last_alone/x"], what="alone")
    assert_outputs(run.padded.taps["features"].values, run.arrays["eval_padded/features"], what="features")
    for name in (name for name in run.arrays if name.startswith("eval_padded/layer_")):
        tap = run.padded.taps[name.removeprefix("eval_padded/").removesuffix("_TBC")]
        assert_outputs(np.asarray(tap.values) * counts, run.arrays[name].transpose(1, 0, 2) * counts, what=name)


def noise_of(run: Run) -> np.ndarray:
    """Returns the Gumbel noise of all masked frames, which has different names in fairseq and NVIDIA."""
    return next(array for name, array in run.arrays.items() if name.startswith("input/gumbel_noise"))


def scores_of(run: Run) -> np.ndarray:
    """Returns the scores of codes [frames G V] from the reference's features and weights.

    The frames are the masked ones, or all if any frame may be a distractor.
    """
    scores = code_scores(run.weights, run.arrays["eval_padded/features"], groups=run.head.quantizer.groups)
    mask = run.arrays["input/mask_indices"]
    return scores[np.ones_like(mask) if run.head.from_everywhere else mask]


def skip_tied_best_codes(run: Run) -> None:
    """Skips a test that depends on the best codes without noise if they are tied."""
    skip_ties(has_none=run.has_no_ties, codes=argmax_margin(scores_of(run)))


def skip_tied_codes(run: Run, mode: str) -> None:
    """Skips a test that depends on the codes of targets and distractors if they are tied."""
    if mode == "eval":
        skip_tied_best_codes(run)
    else:
        scores = scores_of(run)
        drawn_from = scores + noise_of(run).reshape(scores.shape)
        skip_ties(has_none=run.has_no_ties, drawn_codes=argmax_margin(drawn_from))


def skip_tied_similarities(run: Run, mode: str) -> None:
    """Skips a test that depends on whether a target is the most similar candidate if candidates are tied."""
    similarities = run.arrays[f"{mode}_pretrain/logits"]
    chosen_from = np.stack([similarities[:, 0], similarities[:, 1:].max(axis=1)], axis=1)
    skip_ties(has_none=run.has_no_ties, accuracy=argmax_margin(chosen_from))


@pytest.mark.parametrize("case", CASES)
def test_scores_of_codes(case: GoldenCase) -> None:
    """Uses the reference's features. This test is never skipped; other tests are, depending on the reference's
    scores."""
    run = run_of(case.path)
    features = run.arrays["eval_padded/features"]
    expected = code_scores(run.weights, features, groups=run.head.quantizer.groups)
    expected = log_softmax(expected)
    params = {"quantizer": run.params["encoder"].get("input_quantizer")} | run.params[HEAD]  # its own, or the input's
    actual, _ = quantizer_program(run.head, False)(params, features, None)
    assert_outputs(actual, expected, what="log-probabilities of codes")


def logged(run: Run, mode: str) -> dict[str, float]:
    return dict(zip(run.fields, run.arrays[f"{mode}_pretrain/log"].tolist(), strict=True))


@cache
def pretraining(path: Any, mode: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns sums and the gradient of their total by the reference's names, with its masks, distractors and noise."""
    run = run_of(path)
    arrays, lengths = run.arrays, lengths_of(run.arrays)
    mask, rows = arrays["input/mask_indices"], len(arrays["input/mask_indices"])
    zeros = np.zeros(rows, np.int32)
    batch = Batch(
        audio=None, features=np.zeros((rows, 1, 1), np.float32), lengths=zeros, tokens=zeros[:, None],
        token_lengths=zeros, weights=np.ones(rows, np.float32), utterances=zeros,
    )  # fmt: skip
    frames = Frames(arrays["input/source"][..., None], lengths)
    noise = noise_of(run) if mode == "train" else None
    draws = draws_of(run.head, arrays["input/mask_indices"], arrays[f"input/neg_idxs_{mode}"], noise)
    program = contrastive_program(run.head, ("loss", "diversity", "penalty"), mode == "train")
    of_head = partial(program, batch=batch, draws=draws)
    of_input = arrays.get("input/quantized_input_noise") if mode == "train" else None
    if of_input is not None:
        of_input = of_input.reshape(*mask.shape, run.head.quantizer.groups, run.head.quantizer.entries)
    _, sums, grads = gradients(
        run.encoder, run.params, frames, HEAD, of_head, mask=mask, noise=of_input, training=mode == "train"
    )
    return sums, FAIRSEQ.export({"params": grads}, run.encoder, {HEAD: run.head})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_terms_without_codes(case: GoldenCase, mode: str) -> None:
    run, (sums, _) = run_of(case.path), pretraining(case.path, mode)
    expected = logged(run, mode)
    assert float(sums["loss"].weight) == expected["sample_size"] == expected["count"]
    penalty, diversity = float(sums["penalty"].total), float(sums["diversity"].total)
    assert_within(abs(penalty / expected["loss_2"] - 1), 1e-5, what=f"{mode} penalty, relative")
    # Each frame has the factor times the share of unused codes: 1 less a perplexity, an exponential of a sum. Its error
    # is about 16 roundings of 1, whatever the share.
    scale = run.head.diversity * expected["sample_size"]
    assert_within(abs(diversity - expected["loss_1"]), 16 * ROUNDING, scale=scale, what=f"{mode} diversity")
    perplexity = sums["prob_perplexity"]
    assert_within(abs(float(perplexity.total / perplexity.weight) / expected["prob_perplexity"] - 1), 1e-5)
    if mode == "train":
        assert float(run.head.quantizer.temperature(jnp.int32(0))) == expected["temp"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_contrastive_loss(case: GoldenCase, mode: str) -> None:
    run = run_of(case.path)
    skip_tied_codes(run, mode)
    sums, _ = pretraining(case.path, mode)
    difference = abs(float(sums["loss"].total) / logged(run, mode)["loss_0"] - 1)
    assert_within(difference, 1e-5, what=f"{mode} loss, relative")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_accuracy(case: GoldenCase, mode: str) -> None:
    run = run_of(case.path)
    skip_tied_codes(run, mode)
    skip_tied_similarities(run, mode)
    sums, _ = pretraining(case.path, mode)
    assert float(sums["accuracy"].total) == logged(run, mode)["correct"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_code_perplexity(case: GoldenCase, mode: str) -> None:
    run = run_of(case.path)
    skip_tied_best_codes(run)
    perplexity = pretraining(case.path, mode)[0]["code_perplexity"]
    assert_within(abs(float(perplexity.total / perplexity.weight) / logged(run, mode)["code_perplexity"] - 1), 1e-5)


def test_some_case_has_gradients() -> None:
    """Without gradients, the next test would compare nothing."""
    assert CASES
    assert any(case.values[0] for case in WITH_GRADIENTS) or not any(case.values[0] for case in CASES)


@pytest.mark.parametrize(("case", "mode"), WITH_GRADIENTS)
def test_gradients_by_the_peers_names(case: GoldenCase, mode: str) -> None:
    run = run_of(case.path)
    skip_tied_codes(run, mode)
    _, actual = pretraining(case.path, mode)
    prefix = f"{mode}_pretrain_grad/"
    expected = {name.removeprefix(prefix): array for name, array in run.arrays.items() if name.startswith(prefix)}
    for name in [name for name in expected if ".qkv." in name]:  # the reference has one product
        for part, array in zip(("q_proj", "k_proj", "v_proj"), np.split(expected.pop(name), 3), strict=True):
            expected[name.replace("qkv", part)] = array
    if run.head.same_quantizer:  # PyTorch lists the gradient of shared parameters once
        of_input = {name for name in actual if name.startswith("input_quantizer.")}
        assert of_input
        for name in of_input:
            np.testing.assert_array_equal(actual[name], actual[name.removeprefix("input_")])
        actual = {name: array for name, array in actual.items() if name not in of_input}
    assert_gradients(actual, expected)

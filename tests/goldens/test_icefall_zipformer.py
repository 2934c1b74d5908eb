"""Outputs and gradients of icefall's zipformer, from its own weights."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import (
    GoldenCase,
    assert_gradients,
    assert_outputs,
    assert_within,
    fast_jit,
    golden_cases,
    log_softmax,
    max_abs,
    part,
    slow,
)

from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.pytrees import unflatten
from asr_jax.heads.ctc import CONSISTENCY_WARMUP, CTC
from asr_jax.models.base import repeated
from asr_jax.models.encoder import Context
from asr_jax.models.zipformer import Zipformer
from asr_jax.pretrained.icefall import ICEFALL

pytestmark = pytest.mark.golden

ENCODERS = slow(golden_cases("icefall_zipformer", "encoder_*"))
CAUSAL = slow(golden_cases("icefall_zipformer", "encoder_causal*"))
MODELS = golden_cases("icefall_zipformer", "asr_model*")


def settings_of(info: dict[str, Any], **changes: Any) -> Zipformer:
    """Returns the settings of a case."""
    config = info["config"]
    causal = info.get("causal", False)
    context = Context(config["chunk"], config["left"]) if causal else Context()
    num_stacks = len(config["ds"])
    return Zipformer(
        embed_channels=tuple(config["emb"]),
        downsampling=tuple(config["ds"]),
        dims=tuple(config["dim"]),
        num_layers=tuple(config["layers"]),
        unmasked_dims=tuple(config["unm"]),
        num_heads=tuple(config["heads"]),
        query_dims=tuple(config["q"]),
        value_dims=tuple(config["v"]),
        position_dims=tuple(config["ph"]),
        feedforward_dims=tuple(config["ff"]),
        kernel_sizes=tuple(config["k"]),
        positions_dim=config["pos"],
        causal=causal,
        mask_padding=False,
        taps=("embed", *(f"stack_{i}" for i in range(num_stacks))),
        contexts=(context,),
        **changes,
    )


def frames_of(arrays: dict[str, np.ndarray]) -> Frames:
    return jax.device_put(Frames(arrays["input/feats"], arrays["input/feat_lens"].astype(np.int32)))


@cache
def program(settings: Zipformer) -> Any:
    """Returns a program for gradients of sum(output · weights) and the encoder's output; compiled once per settings."""
    encoder = settings.build(dtype=jnp.float32)

    def loss(params: Any, frames: Frames, weights: Any) -> Any:
        encoded = encoder.apply({"params": params}, frames, step=None)
        return jnp.sum(encoded.frames.values * weights), encoded

    return fast_jit(jax.grad(loss, has_aux=True))


@cache
def forward(settings: Zipformer) -> Any:
    """Returns a program for the encoder's output alone, which compiles in a third of the time of `program`."""
    encoder = settings.build(dtype=jnp.float32)
    return fast_jit(lambda params, frames: encoder.apply({"params": params}, frames, step=None))


@dataclass(frozen=True)
class Run:
    """Our encoder with the reference's weights, and its outputs."""

    settings: Zipformer
    arrays: dict[str, np.ndarray]
    params: Any
    encoded: Any
    grads: Any


@cache
def run_case(path: Path) -> Run:
    case = GoldenCase(path, json.loads(path.read_text(encoding="utf-8")))
    arrays, settings = case.arrays(), settings_of(case.info)
    found, left = ICEFALL.find(part(arrays, "param/"), settings)
    assert left == []
    params = unflatten(found)["params"]["encoder"]
    weights = arrays["input/grad_weights"].transpose(1, 0, 2)
    grads, encoded = program(settings)(params, frames_of(arrays), weights)
    return Run(settings, arrays, params, encoded, grads)


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    return run_case(request.param.path)


@pytest.mark.parametrize("run", ENCODERS, indirect=True)
def test_outputs(run: Run) -> None:
    taps = {"embed": run.arrays["out/embed"].transpose(1, 0, 2)}
    taps |= {f"stack_{i}": run.arrays[f"out/stack_{i}"] for i in range(len(run.settings.dims))}
    for name, expected in taps.items():
        actual = np.asarray(run.encoded.taps[name].values).transpose(1, 0, 2)
        assert_outputs(actual, expected, what=name)
    actual = np.asarray(run.encoded.frames.values).transpose(1, 0, 2)
    assert_outputs(actual, run.arrays["out/encoder_TNC"], what="encoder")
    np.testing.assert_array_equal(run.encoded.taps["embed"].lengths, run.arrays["out/embed_lens"])
    np.testing.assert_array_equal(run.encoded.frames.lengths, run.arrays["out/encoder_lens"])


@pytest.mark.parametrize("run", ENCODERS, indirect=True)
def test_gradients_by_the_peers_names(run: Run) -> None:
    expected = part(run.arrays, "grad/")
    actual = ICEFALL.export({"params": {"encoder": run.grads}}, run.settings)
    assert actual.keys() == expected.keys()
    assert_gradients(actual, expected)


@pytest.mark.parametrize("run", ENCODERS, indirect=True)
def test_an_utterance_alone_is_the_same_in_a_batch_with_masked_padding(run: Run) -> None:
    """Compares with the reference's output for the last utterance alone; in a padded batch, the reference's differs."""
    encoder = replace(run.settings, mask_padding=True, taps=()).build(dtype=jnp.float32)
    frames = frames_of(run.arrays)
    values = fast_jit(lambda p: encoder.apply({"params": p}, frames, step=None).frames.values)(run.params)
    expected = run.arrays["out/encoder_last_alone_TNC"][:, 0]
    actual = np.asarray(values)[-1, : len(expected)]
    assert_outputs(actual, expected, what="last alone")


@pytest.mark.parametrize("run", ENCODERS, indirect=True)
def test_export_inverts_import(run: Run) -> None:
    exported = ICEFALL.export({"params": {"encoder": run.params}}, run.settings)
    theirs = part(run.arrays, "param/")
    unused = theirs.keys() - exported.keys()
    assert all(name.endswith("bypass_scale") for name in unused)
    assert len(unused) == sum(run.settings.num_layers)
    for name, array in exported.items():
        np.testing.assert_array_equal(array, theirs[name])


@pytest.mark.parametrize("case", MODELS)
def test_encoder_and_ctc_projection_of_a_whole_model(case: GoldenCase) -> None:
    arrays, settings = case.arrays(), settings_of(case.info)
    weights = part(arrays, "param/")
    params = unflatten(ICEFALL.find(weights, settings, {"ctc": CTC()})[0])["params"]
    ctc = params["ctc"]["output"]
    encoded = forward(settings)(params["encoder"], frames_of(arrays))
    assert_outputs(encoded.frames.values, arrays["out/encoder_out"], what="encoder")
    np.testing.assert_array_equal(encoded.frames.lengths, arrays["out/encoder_lens"])
    logits = np.asarray(encoded.frames.values) @ ctc["kernel"] + ctc["bias"]
    log_probs = log_softmax(logits)
    assert_outputs(log_probs, arrays["out/ctc_logprobs"], what="CTC log-probs")
    for name, array in ICEFALL.export({"params": {"ctc": params["ctc"]}}, settings, {"ctc": CTC()}).items():
        np.testing.assert_array_equal(array, weights[name])


@pytest.mark.slow
@pytest.mark.parametrize("run", CAUSAL, indirect=True)
def test_the_same_weights_with_and_without_chunks(run: Run) -> None:
    """Compares our encoder with and without chunks, which have the same weights.

    A chunk as long as the batch has no effect; a shorter one has.
    """
    whole = run.settings.with_context(Context())
    found, left = ICEFALL.find(part(run.arrays, "param/"), whole)
    assert left == []
    params, frames = unflatten(found)["params"]["encoder"], frames_of(run.arrays)

    def output(settings: Zipformer) -> np.ndarray:
        encoder = settings.build(dtype=jnp.float32)
        values = fast_jit(lambda p: encoder.apply({"params": p}, frames, step=None).frames.values)(params)
        return np.asarray(values).transpose(1, 0, 2)

    one_chunk = whole.with_context(Context(max(run.settings.downsampling) * frames.values.shape[1]))
    none = output(whole)
    assert_within(max_abs(output(one_chunk), none), 1e-5, what="one chunk")
    if (run.settings.contexts[0].chunk_frames or 0) < int(run.encoded.taps["embed"].lengths.max()):
        assert max_abs(none, run.arrays["out/encoder_TNC"]) > 1e-3


@pytest.mark.parametrize("case", MODELS)
def test_losses_of_two_views(case: GoldenCase) -> None:
    """CR-CTC: the reference's views are the two halves of a batch, each with half the loss; without dropout and
    masks."""
    arrays = case.arrays()
    if "crctc/feats" not in arrays:
        pytest.skip("the case has no losses of two views")
    settings = settings_of(case.info)
    params = unflatten(ICEFALL.find(part(arrays, "param/"), settings, {"ctc": CTC()})[0])["params"]
    head = CTC(dropout=0.0, consistency=1.0)
    head = head.build(vocab_size=case.info["config"]["vocab"], blank_id=0, dtype=jnp.float32)
    lengths, rows = arrays["input/feat_lens"].astype(np.int32), len(arrays["input/feat_lens"])
    features = arrays["crctc/feats"].reshape(2, rows, *arrays["crctc/feats"].shape[1:])
    size = settings.build(dtype=jnp.float32).output_length(features.shape[2])
    zeros = np.zeros((rows, size, arrays["out/encoder_out"].shape[2]), np.float32)
    both = [forward(settings)(params["encoder"], Frames(each, lengths)).frames for each in features]
    views = jax.tree.map(lambda *each: np.stack(each, axis=1).reshape(2 * rows, *each[0].shape[1:]), *both)
    batch = Batch(
        audio=None, features=zeros, lengths=lengths, tokens=arrays["input/y"].astype(np.int32),
        token_lengths=arrays["input/y_lens"].astype(np.int32), weights=np.full(rows, 0.5, np.float32),
        utterances=np.zeros(rows, np.int32),
    )  # fmt: skip

    @fast_jit
    def losses(params: Any, views: Frames, batch: Batch) -> Any:
        return head.apply(
            {"params": params}, Encoded(views, views=2), repeated(batch, 2), step=jnp.int32(CONSISTENCY_WARMUP)
        )

    sums = losses(params["ctc"], views, batch)
    ctc, cr = (float(arrays[f"crctc/{name}_loss"]) for name in ("ctc", "cr"))
    assert_within(abs(float(sums["loss"].total) - ctc) / ctc, 1e-4, what="CTC of two views")
    assert_within(abs(float(sums["consistency"].total) - cr), 1e-4, what="consistency")
    assert_within(abs(float(sums["consistency"].total) / cr - 1), 0.01, what="consistency, relative")

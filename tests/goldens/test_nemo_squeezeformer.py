"""Outputs of all layers, gradients and running statistics of NeMo's Squeezeformer, from its own weights."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import GoldenCase, assert_gradients, assert_outputs, fast_jit, golden_cases, part, slow_after_first

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.pretrained.squeezeformer_nemo import NEMO
from asr_jax.pretrained.squeezeformer_nemo import settings_of as settings_of_nemo

pytestmark = pytest.mark.golden

CASES = slow_after_first(golden_cases("nemo", "squeezeformer_*"))
SHARED = ("pos_bias_u", "pos_bias_v")


def settings_of(config: dict[str, Any]) -> Squeezeformer:
    """Returns the settings of evaluation, in which padding does not affect valid frames."""
    own = replace(settings_of_nemo(config, Path("config")), dropout=0.0, attention_dropout=0.0)
    return replace(own, taps=tuple(f"layer_{number}" for number in range(own.num_layers)))


def while_training(settings: Squeezeformer) -> Squeezeformer:
    """Returns the settings of NeMo's training, in which batch statistics include padding."""
    return replace(
        settings, taps=(), mask_padding=False, norm="batch_padded" if settings.norm == "batch" else settings.norm
    )


@dataclass(frozen=True)
class Run:
    """Our encoder with the reference's weights, and its outputs."""

    settings: Squeezeformer
    arrays: dict[str, np.ndarray]
    variables: Any
    evaluated: Any
    trained: Any
    gradients: Any
    stats: Any


@cache
def run_case(path: Path) -> Run:
    case = GoldenCase(path, json.loads(path.read_text(encoding="utf-8")))
    arrays, settings = case.arrays(), settings_of(case.info["config"])
    found, left = NEMO.find(part(arrays, "param/", "encoder."), settings)
    assert left == []
    variables = {group: tree["encoder"] for group, tree in unflatten(found).items()}
    params, stats = variables["params"], {name: tree for name, tree in variables.items() if name != "params"}
    lengths = jnp.asarray(arrays["input/feat_lens"], jnp.int32)
    frames = Frames(jnp.asarray(arrays["input/feat_BDT"].transpose(0, 2, 1)), lengths)
    weights = jnp.asarray(arrays["train/grad_weights"].transpose(0, 2, 1))
    encoder, trainee = (each.build(dtype=jnp.float32) for each in (settings, while_training(settings)))

    @fast_jit
    def program(params: Any, stats: Any) -> Any:
        """Returns outputs of evaluation, and gradients, outputs and statistics of training."""

        def loss(params: Any) -> Any:
            step = jnp.int32(0)
            encoded, changed = trainee.apply({"params": params, **stats}, frames, step=step, mutable=["batch_stats"])
            return jnp.sum(encoded.frames.values * weights), (encoded.frames.values, changed)

        return encoder.apply({"params": params, **stats}, frames, step=None), jax.grad(loss, has_aux=True)(params)

    evaluated, (gradients, (trained, changed)) = jax.device_get(program(params, stats))
    if all_after_the_update(arrays):
        # Undoes the update: (after - before) / (batch - before) equals the same ratio of a further update.
        share = settings.details.momentum
        changed = dict(changed)
        stats = jax.tree.map(lambda after, later: after - (later - after) / np.float32(1 - share), stats, changed)
        evaluated, (_, (_, changed)) = jax.device_get(program(params, stats))
    return Run(settings, arrays, variables, evaluated, trained, gradients, changed)


def all_after_the_update(arrays: dict[str, np.ndarray]) -> bool:
    """Returns whether the running statistics among the parameters are those after the update.

    PyTorch had changed them in place before they were written.
    """
    after = part(arrays, "train_buffers_after_1/", "encoder.")
    params = part(arrays, "param/", "encoder.")
    return bool(after) and all(np.array_equal(params[name], array) for name, array in after.items())


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    return run_case(request.param.path)


def valid(values: Any, lengths: Any) -> np.ndarray:
    """Returns the valid frames of all rows, concatenated."""
    return np.concatenate([row[:length] for row, length in zip(np.asarray(values), lengths, strict=True)])


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_outputs_of_all_layers(run: Run) -> None:
    lengths = run.arrays["eval/lens"]
    np.testing.assert_array_equal(run.evaluated.frames.lengths, lengths)
    for number in range(run.settings.num_layers):
        tap, expected = run.evaluated.taps[f"layer_{number}"], run.arrays[f"eval/layer_{number}_BTD"]
        assert tap.values.shape == expected.shape
        assert_outputs(valid(tap.values, tap.lengths), valid(expected, tap.lengths), what=f"layer {number}")
    expected = run.arrays["eval/out_BDT"].transpose(0, 2, 1)
    assert_outputs(valid(run.evaluated.frames.values, lengths), valid(expected, lengths), what="evaluation")


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_outputs_while_training(run: Run) -> None:
    lengths, expected = run.arrays["eval/lens"], run.arrays["train/out_BDT"].transpose(0, 2, 1)
    assert_outputs(valid(run.trained, lengths), valid(expected, lengths), what="training")


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_gradients_by_the_peers_names(run: Run) -> None:
    expected = part(run.arrays, "train_grad/", "encoder.")
    actual = NEMO.export({"params": {"encoder": run.gradients}}, run.settings)
    # NeMo has the gradient of shared parameters only once.
    repeated = actual.keys() - expected.keys()
    assert all(run.settings.tied_biases and name.endswith(SHARED) for name in repeated)
    assert expected.keys() <= actual.keys()
    biases = {name for name in expected if name.endswith("depthwise_conv.bias")} if run.settings.norm != "layer" else ()
    assert_gradients({name: actual[name] for name in expected}, expected, before_norm=biases)


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_running_statistics_after_an_update(run: Run) -> None:
    expected = part(run.arrays, "train_buffers_after_1/", "encoder.")
    actual = NEMO.export({name: {"encoder": tree} for name, tree in run.stats.items()}, run.settings)
    assert actual.keys() == {name for name in expected if "running" in name}
    for name, array in actual.items():
        assert_outputs(array, expected[name], what=name)


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_export_inverts_import(run: Run) -> None:
    exported = NEMO.export({name: {"encoder": tree} for name, tree in run.variables.items()}, run.settings)
    theirs = part(run.arrays, "param/", "encoder.")
    assert len(flatten(run.variables)) <= len(exported)
    for name in theirs.keys() - exported.keys():
        assert name.endswith("num_batches_tracked") or (not run.settings.adaptive_scale and "_scale." in name)
    for name, array in exported.items():
        np.testing.assert_array_equal(array, theirs[name])

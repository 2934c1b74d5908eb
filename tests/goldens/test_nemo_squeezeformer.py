"""Outputs of all layers, gradients and running statistics of NeMo's Squeezeformer, from its own weights."""

import json
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import GoldenCase, golden_cases, max_abs, relative

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.pretrained.squeezeformer import export_nemo, find_nemo, nemo_encoder

pytestmark = pytest.mark.golden

# Compile time is most of these tests' time, and what is compiled runs once.
fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
CASES = golden_cases("nemo", "squeezeformer_*")
SHARED = ("pos_bias_u", "pos_bias_v")


def part(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """By the names that they have in a whole model."""
    return {
        "encoder." + name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)
    }


def settings_of(config: dict[str, Any]) -> Squeezeformer:
    """As NeMo's trainer has it: padding enters batch statistics."""
    own = nemo_encoder(config, dropout=0.0, attention_dropout=0.0, mask_padding=False)
    taps = tuple(f"layer_{number}" for number in range(own.num_layers))
    return replace(own, taps=taps, norm="batch_padded" if own.norm == "batch" else own.norm)


@dataclass(frozen=True)
class Run:
    """What our encoder gives with the peer's weights."""

    settings: Squeezeformer
    arrays: dict[str, np.ndarray]
    variables: Any
    evaluated: Any
    trained: Any
    gradients: Any
    stats: Any


@cache
def run_case(path: Path) -> Run:
    case = GoldenCase(path, json.loads(path.read_text()))
    arrays, settings = case.arrays(), settings_of(case.info["config"])
    found, left = find_nemo(part(arrays, "param/"), settings, ctc_head=None)
    assert left == []
    variables = {group: tree["encoder"] for group, tree in unflatten(found).items()}
    params, stats = variables["params"], {name: tree for name, tree in variables.items() if name != "params"}
    lengths = jnp.asarray(arrays["input/feat_lens"], jnp.int32)
    frames = Frames(jnp.asarray(arrays["input/feat_BDT"]).transpose(0, 2, 1), lengths)
    weights = jnp.asarray(arrays["train/grad_weights"]).transpose(0, 2, 1)
    encoder, untapped = (each.build(dtype=jnp.float32) for each in (settings, replace(settings, taps=())))

    def loss(params: Any) -> Any:
        encoded, changed = untapped.apply({"params": params, **stats}, frames, step=0, mutable=["batch_stats"])
        return jnp.sum(encoded.frames.values * weights), (encoded.frames.values, changed)

    evaluated = fast_jit(lambda p: encoder.apply({"params": p, **stats}, frames, step=None))(params)
    gradients, (trained, changed) = fast_jit(jax.grad(loss, has_aux=True))(params)
    return Run(settings, arrays, variables, evaluated, trained, gradients, changed)


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    return run_case(request.param.path)


def valid(values: Any, lengths: Any) -> np.ndarray:
    """The frames of all rows one after the other, without padding."""
    return np.concatenate([row[:length] for row, length in zip(np.asarray(values), lengths, strict=True)])


def report(record_property: Any, what: str, value: float) -> float:
    """Kept in the test report (--junitxml) and shown with -s: the figures of the closing note."""
    record_property(what, value)
    print(f"  {what}: {value:.2e}")
    return value


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_outputs_of_all_layers(run: Run, record_property: Any) -> None:
    lengths = run.arrays["eval/lens"]
    np.testing.assert_array_equal(run.evaluated.frames.lengths, lengths)
    for number in range(run.settings.num_layers):
        tap, expected = run.evaluated.taps[f"layer_{number}"], run.arrays[f"eval/layer_{number}_BTD"]
        assert tap.values.shape == expected.shape
        difference = max_abs(valid(tap.values, tap.lengths), valid(expected, tap.lengths))
        assert report(record_property, f"layer {number}", difference) < 1e-4
    expected = run.arrays["eval/out_BDT"].transpose(0, 2, 1)
    difference = max_abs(valid(run.evaluated.frames.values, lengths), valid(expected, lengths))
    assert report(record_property, "evaluation", difference) < 1e-4


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_outputs_while_training(run: Run, record_property: Any) -> None:
    lengths, expected = run.arrays["eval/lens"], run.arrays["train/out_BDT"].transpose(0, 2, 1)
    difference = max_abs(valid(run.trained, lengths), valid(expected, lengths))
    assert report(record_property, "training", difference) < 1e-4


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_gradients_by_the_peers_names(run: Run, record_property: Any) -> None:
    expected = part(run.arrays, "train_grad/")
    actual = export_nemo({"params": {"encoder": run.gradients}}, run.settings)
    # What layers share is named once among its gradients.
    repeated = actual.keys() - expected.keys()
    assert all(run.settings.shared_biases and name.endswith(SHARED) for name in repeated)
    assert expected.keys() <= actual.keys()
    # A gradient that is zero but for rounding (the bias of keys, before softmax) has no relative accuracy.
    small = 1e-6 * max(float(np.abs(array).max()) for array in expected.values())
    differences = {
        name: 0.0 if max_abs(actual[name], array) < small else relative(actual[name], array)
        for name, array in expected.items()
    }
    worst = max(differences, key=lambda name: differences[name])
    assert report(record_property, f"gradients, worst ({worst})", differences[worst]) < 1e-3


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_running_statistics_after_an_update(run: Run, record_property: Any) -> None:
    expected = part(run.arrays, "train_buffers_after_1/")
    actual = export_nemo({name: {"encoder": tree} for name, tree in run.stats.items()}, run.settings)
    assert actual.keys() == {name for name in expected if "running" in name}
    worst = max((max_abs(actual[name], expected[name]) for name in actual), default=0.0)
    assert report(record_property, "running statistics", worst) < 1e-4


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_an_utterance_is_the_same_with_masked_padding(run: Run, record_property: Any) -> None:
    """In NeMo's own evaluation padding enters no valid frame: ours with masks gives the same."""
    settings = replace(run.settings, mask_padding=True, norm=run.settings.norm.removesuffix("_padded"), taps=())
    encoder, lengths = settings.build(dtype=jnp.float32), run.arrays["eval/lens"]
    frames = Frames(
        jnp.asarray(run.arrays["input/feat_BDT"]).transpose(0, 2, 1),
        jnp.asarray(run.arrays["input/feat_lens"], jnp.int32),
    )
    values = fast_jit(lambda v: encoder.apply(v, frames, step=None).frames.values)(run.variables)
    expected = run.arrays["eval/out_BDT"].transpose(0, 2, 1)
    difference = max_abs(valid(values, lengths), valid(expected, lengths))
    assert report(record_property, "with masks", difference) < 1e-4


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_export_inverts_import(run: Run) -> None:
    exported = export_nemo({name: {"encoder": tree} for name, tree in run.variables.items()}, run.settings)
    theirs = part(run.arrays, "param/")
    assert len(flatten(run.variables)) <= len(exported)
    for name in theirs.keys() - exported.keys():
        assert name.endswith("num_batches_tracked") or (not run.settings.adaptive_scale and "_scale." in name)
    for name, array in exported.items():
        np.testing.assert_array_equal(array, theirs[name])

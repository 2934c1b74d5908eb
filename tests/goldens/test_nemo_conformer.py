"""Outputs, gradients and running statistics of NeMo's ConformerEncoder, from its own weights."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import GOLDENS, GoldenCase, assert_gradients, assert_outputs, fast_jit, part, slow_after_first

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import num_elements, unflatten
from asr_jax.models.conformer import Conformer
from asr_jax.pretrained.conformer import NEMO, settings_of_nemo

pytestmark = pytest.mark.golden

FOLDERS = (Path(__file__).parent / "nemo_conformer", GOLDENS / "nemo_conformer")
CASES = slow_after_first(
    [
        pytest.param(path, id=path.stem)
        for folder in FOLDERS
        for path in sorted(folder.glob("*.json"))
        if path.with_suffix(".safetensors").is_file()
    ]
)
MODES = ("eval", "train")


@dataclass(frozen=True)
class Run:
    """Our encoder with the reference's weights, and its outputs by mode."""

    settings: Conformer
    arrays: dict[str, np.ndarray]
    variables: dict[str, Any]
    valid: np.ndarray
    lengths: np.ndarray
    outputs: dict[str, np.ndarray]
    gradients: dict[str, dict[str, np.ndarray]]
    statistics: dict[str, np.ndarray]


def settings_of(case: GoldenCase) -> Conformer:
    """Returns the settings of a case. In training, the reference's batch statistics include padding."""
    settings = settings_of_nemo(case.info["config"], case.path)
    settings = replace(
        settings, input_dropout=0.0, dropout=0.0, position_dropout=0.0, attention_dropout=0.0,
        mask_padding=case.info["masks_padding"],
    )  # fmt: skip
    return replace(settings, norm="batch_padded") if settings.norm == "batch" else settings


@cache
def run_case(path: Path) -> Run:
    case = GoldenCase(path, json.loads(path.read_text(encoding="utf-8")))
    arrays, settings = case.arrays(), settings_of(case)
    found, left = NEMO.find(part(arrays, "state/", "encoder."), settings)
    assert left == []
    variables = {name: tree["encoder"] for name, tree in unflatten(found).items()}
    stats = {name: tree for name, tree in variables.items() if name != "params"}
    encoder = settings.build(dtype=jnp.float32)
    given = arrays["input/features"].transpose(0, 2, 1), np.int32(arrays["input/lengths"]), arrays["input/grad_weights"]
    features, lengths, weights = jax.device_put(given)
    frames = Frames(features, lengths)

    def loss(params: Any, step: Any) -> Any:
        rngs = {"dropout": jax.random.key(0)}  # the dropout rate is 0
        encoded, updated = encoder.apply({"params": params, **stats}, frames, step=step, rngs=rngs, mutable=[*stats])
        return jnp.sum(encoded.frames.values * weights), (encoded.frames, updated)

    @fast_jit
    def program(params: Any) -> Any:
        """Returns gradients, frames and updated statistics by mode."""
        steps = dict(zip(MODES, (None, jnp.int32(0)), strict=True))
        return {mode: jax.grad(loss, has_aux=True)(params, step) for mode, step in steps.items()}

    found = jax.device_get(program(variables["params"]))
    outputs = {mode: frames.values for mode, (_, (frames, _)) in found.items()}
    gradients = {mode: exported({"params": grads}, settings) for mode, (grads, _) in found.items()}
    _, (frames, updated) = found["train"]
    valid = (np.arange(frames.values.shape[1]) < frames.lengths[:, None])[:, :, None]
    return Run(settings, arrays, variables, valid, frames.lengths, outputs, gradients, exported(updated, settings))


def exported(variables: Any, settings: Conformer) -> dict[str, np.ndarray]:
    trees = {name: {"encoder": tree} for name, tree in variables.items()}
    return part(NEMO.export(trees, settings), "encoder.")


@pytest.mark.parametrize("path", CASES)
@pytest.mark.parametrize("mode", MODES)
def test_outputs(path: Path, mode: str) -> None:
    run = run_case(path)
    np.testing.assert_array_equal(run.lengths, run.arrays["output/lengths"])
    assert_outputs(run.outputs[mode] * run.valid, run.arrays[f"{mode}/output"] * run.valid, what=f"{mode} output")


@pytest.mark.parametrize("path", CASES)
@pytest.mark.parametrize("mode", MODES)
def test_gradients_by_the_peers_names(path: Path, mode: str) -> None:
    run = run_case(path)
    expected, actual = part(run.arrays, f"{mode}/grad/"), run.gradients[mode]
    assert actual.keys() == expected.keys()
    has_batch_norm = mode == "train" and run.settings.norm != "layer"
    biases = {name for name in expected if name.endswith("depthwise_conv.bias")} if has_batch_norm else ()
    # Softmax cancels most of the gradient of keys, a sum over thousands of pairs of frames.
    assert_gradients(actual, expected, roundings=64, before_norm=biases)


@pytest.mark.parametrize("path", CASES)
def test_running_statistics(path: Path) -> None:
    run = run_case(path)
    expected = part(run.arrays, "train/statistics/")
    assert run.statistics.keys() == expected.keys()
    assert bool(expected) == (run.settings.norm != "layer")
    for name, array in expected.items():
        assert_outputs(run.statistics[name], array, what=name)


@pytest.mark.parametrize("path", CASES)
def test_export_inverts_import(path: Path) -> None:
    run = run_case(path)
    theirs, again = part(run.arrays, "state/"), exported(run.variables, run.settings)
    assert {name for name in theirs.keys() - again.keys() if not name.endswith("num_batches_tracked")} == set()
    for name, array in again.items():
        np.testing.assert_array_equal(array, theirs[name])


COUNTS = json.loads((FOLDERS[0] / "num_parameters.json").read_text())["encoder"]


@pytest.mark.parametrize("size", COUNTS)
def test_published_sizes(size: str) -> None:
    """The number of parameters equals that of the reference's encoder with its published settings."""
    fast = size.startswith("fast_")
    settings = Conformer.fast(size.removeprefix("fast_")) if fast else getattr(Conformer, size)()  # type: ignore[arg-type]
    encoder = settings.build(dtype=jnp.float32)
    frames = Frames(np.zeros((1, 80, 80), np.float32), np.array([80], np.int32))
    variables = jax.eval_shape(lambda frames: encoder.init(jax.random.key(0), frames, step=None), frames)
    assert num_elements(variables["params"]) == COUNTS[size]

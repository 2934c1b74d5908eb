"""Outputs, CTC loss, gradients, running statistics and updates of NVIDIA's QuartzNet, from its own weights."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from conv_asr import batch_of, encoder_of, model_of, program_of, variables_of, weights_of, with_first_statistics
from margins import TIE, choice_margins
from support import (
    GoldenCase,
    assert_gradients,
    assert_outputs,
    assert_within,
    golden_cases,
    part,
    relative,
    slow_after_first,
)

from asr_jax.core.pytrees import unflatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.optim.optimizers import NovoGrad
from asr_jax.optim.schedules import RunLength, WarmupHoldDecay
from asr_jax.pretrained.quartznet import NVIDIA

pytestmark = pytest.mark.golden

CASES = slow_after_first(
    sorted(
        [*golden_cases("dle_quartznet", "masked_*"), *golden_cases("dle_quartznet", "nomask_*")],
        key=lambda case: case.values[0] is not None and not case.values[0].has("trajectory/"),
    )
)


@dataclass(frozen=True)
class Run:
    """Our model with the reference's weights, its program and outputs."""

    info: dict[str, Any]
    arrays: dict[str, np.ndarray]
    model: Model
    variables: dict[str, Any]
    program: Any
    evaluated: Any
    trained: Any


@cache
def run_case(path: Path) -> Run:
    case = GoldenCase(path, json.loads(path.read_text(encoding="utf-8")))
    info, arrays = case.info, case.arrays()
    encoder = {"in_feats": info["in_feats"], "activation": info.get("activation", "relu"), "blocks": info["blocks"]}
    model = model_of({**encoder, "use_conv_masks": info["use_conv_masks"]})
    recogniser = model.build(vocab_size=info["n_classes"], blank_id=info["blank"], precision="f32")
    features = arrays["input/feat"]
    # Without masks, the reference ignores lengths.
    lengths = arrays["input/feat_lens"] if info["use_conv_masks"] else np.full(len(features), features.shape[-1])
    batch = batch_of(features, lengths, arrays["input/targets"], arrays["input/target_lens"])
    program = program_of(recogniser, batch)
    variables = with_first_statistics(variables_of(arrays, model), arrays, program)
    return Run(info, arrays, model, variables, program, *jax.device_get(program(variables)))


@pytest.fixture
def ours(request: pytest.FixtureRequest) -> Run:
    return run_case(request.param.path)


@pytest.mark.parametrize("ours", CASES, indirect=True)
def test_evaluation(ours: Run) -> None:
    frames, log_probs = ours.evaluated
    actual = np.asarray(frames.values).transpose(0, 2, 1)
    assert_outputs(actual, ours.arrays["eval/encoder"], what="encoder")
    assert_outputs(log_probs.values, ours.arrays["eval/log_probs"], what="log-probs")
    is_clear = choice_margins(ours.arrays["eval/log_probs"]) >= TIE
    assert is_clear.mean() > 0.9
    np.testing.assert_array_equal(np.argmax(log_probs.values, -1)[is_clear], ours.arrays["eval/greedy"][is_clear])
    if "eval/enc_lens" in ours.arrays:
        np.testing.assert_array_equal(log_probs.lengths, ours.arrays["eval/enc_lens"])


@pytest.mark.parametrize("ours", CASES, indirect=True)
def test_a_training_step(ours: Run) -> None:
    arrays, (loss, log_probs, stats, grads) = ours.arrays, ours.trained
    assert_outputs(log_probs, arrays["train/log_probs"], what="log-probs")
    assert_within(relative(loss, arrays["train/loss"]), 1e-5, what="loss, relative")
    theirs = part(arrays, "train_grad/")
    assert_gradients(NVIDIA.export({"params": grads}, encoder_of(ours.model), {"heads_ctc": CTC()}), theirs)
    after = weights_of(arrays, "train_buffers_after_1/")
    found = NVIDIA.export({"batch_stats": stats}, encoder_of(ours.model), {"heads_ctc": CTC()})
    assert found.keys() == after.keys()
    for name, array in after.items():
        assert_outputs(found[name], array, what=name)


def optimizer_of(note: str) -> tuple[NovoGrad, RunLength]:
    """Parses the note of a case and returns NovoGrad, its schedule and the length of the run."""
    number = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"

    def of(pattern: str) -> list[float]:
        found = re.search(pattern.replace("N", number), note)
        assert found, f"{pattern} in {note}"
        return [float(value) for value in found.groups()]

    (decay,), (b1, b2), (per_epoch,) = of(r"wd N"), of(r"betas \(N,N\)"), of("steps_per_epoch=N")
    (peak,), (least,), (warmup,), (hold,), (gamma,) = (
        of(f"{name}=N") for name in ("initial_lr", "min_lr", "warmup_epochs", "hold_epochs", "exp_gamma")
    )
    schedule = WarmupHoldDecay(
        peak_lr=peak, min_lr=least, warmup_updates=0, warmup_epochs=warmup, hold_epochs=hold, decay="exponential",
        gamma=gamma,
    )  # fmt: skip
    return NovoGrad(schedule=schedule, b1=b1, b2=b2, weight_decay=decay), RunLength(1, per_epoch)


@pytest.mark.parametrize("ours", CASES, indirect=True)
def test_training_follows(ours: Run) -> None:
    """Updates with NovoGrad: each loss, and finally all weights and statistics."""
    losses = ours.arrays.get("trajectory/loss")
    if losses is None:
        pytest.skip("the case has no trajectory")
    settings, length = optimizer_of(ours.info["note"])
    updater = settings.build(length)
    params, stats = ours.variables["params"], ours.variables["batch_stats"]
    state, found = jax.jit(updater.init)(params), []

    @jax.jit
    def update(grads: Any, state: Any, params: Any, updates: Any) -> Any:
        changes, state = updater.update(grads, state, params, updates=updates)
        return optax.apply_updates(params, changes), state

    for step in range(len(losses)):
        _, (loss, _, stats, grads) = ours.program({"params": params, "batch_stats": stats})
        params, state = update(grads, state, params, np.int32(step))
        found.append(float(loss))
    assert_within(relative(found, losses), 1e-4, what="losses, relative")
    theirs = weights_of(ours.arrays, f"trajectory_after{len(losses)}/")
    actual = NVIDIA.export({"params": params, "batch_stats": stats}, encoder_of(ours.model), {"heads_ctc": CTC()})
    assert actual.keys() == theirs.keys()
    for name, array in theirs.items():
        assert_within(relative(actual[name], array), 1e-3, what=f"{name} after the updates")


@pytest.mark.parametrize("ours", CASES, indirect=True)
def test_export_inverts_import(ours: Run) -> None:
    theirs = weights_of(ours.arrays, "param/")
    found, left = NVIDIA.find(theirs, encoder_of(ours.model), {"heads_ctc": CTC()})
    assert left == []
    exported = NVIDIA.export(unflatten(found), encoder_of(ours.model), {"heads_ctc": CTC()})
    assert exported.keys() == theirs.keys()
    for name, array in exported.items():
        np.testing.assert_array_equal(array, theirs[name])

"""CTC losses and gradients against PyTorch's, with and without `zero_infinity`."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.losses.ctc import ctc_loss
from tests.support import golden_cases, relative

pytestmark = pytest.mark.golden


@pytest.mark.parametrize("case", golden_cases("losses", "ctc*"))
def test_equals_torch(case, record_property):
    arrays = case.arrays()
    assert case.info["cases"]
    for name, options in case.info["cases"].items():
        of_case = {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}
        with jax.enable_x64(True) if options["dtype"] == "torch.float64" else contextlib.nullcontext():
            found = losses_and_gradients(of_case, blank_id=options["blank"])
        for what, difference, limit in differences(of_case, *found):
            record_property(f"{name}: {what}", difference)
            assert difference < limit, f"{name}: {what}: {difference}"


def losses_and_gradients(case, *, blank_id):
    """Losses, feasibility, and the gradients of PyTorch's two reductions of the losses."""
    logit_lengths, label_lengths, labels = (
        jnp.asarray(case[key].astype(np.int32)) for key in ("input_lens", "target_lens", "targets")
    )
    weights = {"sum": np.ones(len(labels)), "mean": 1 / np.maximum(case["target_lens"], 1) / len(labels)}

    @jax.jit
    def compute(logits):
        def losses_of(logits):
            return ctc_loss(logits, logit_lengths, labels, label_lengths, blank_id=blank_id)

        losses, pull_back, feasible = jax.vjp(losses_of, logits, has_aux=True)
        gradients = {key: pull_back(jnp.asarray(weight, losses.dtype))[0] for key, weight in weights.items()}
        return losses, feasible, gradients

    losses, feasible, gradients = jax.device_get(compute(jnp.asarray(case["logits_TNC"]).swapaxes(0, 1)))
    mean = (losses * weights["mean"]).sum()
    return losses, feasible, mean, {key: gradient.swapaxes(0, 1) for key, gradient in gradients.items()}


def differences(case, losses, feasible, mean, gradients):
    """Relative differences and their limits, for both of PyTorch's conventions: infinite or 0 without a path."""
    infinite = case["zi0/loss_none"]
    np.testing.assert_array_equal(feasible, np.isfinite(infinite))
    yield "zi1 losses", relative(losses, case["zi1/loss_none"]), 1e-5
    yield "zi0 losses of feasible rows", relative(losses[feasible], infinite[feasible]), 1e-5
    yield "zi1 mean loss", relative(mean, case["zi1/loss_mean"]), 1e-5
    if feasible.all():
        yield "zi0 mean loss", relative(mean, case["zi0/loss_mean"]), 1e-5
    for key, gradient in gradients.items():
        assert not gradient[:, ~feasible].any()
        expected = case[f"zi0/dlogits_of_{key}"][:, feasible]
        yield f"zi1 gradient of {key}", relative(gradient, case[f"zi1/dlogits_of_{key}"]), 1e-3
        yield f"zi0 gradient of {key} of feasible rows", relative(gradient[:, feasible], expected), 1e-3

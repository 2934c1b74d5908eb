"""CTC losses and gradients against PyTorch's, with and without `zero_infinity`."""

import contextlib

import jax
import numpy as np
import pytest

from asr_jax.losses.ctc import ctc_loss
from tests.support import assert_within, golden_cases, relative

pytestmark = pytest.mark.golden


@pytest.mark.parametrize("case", golden_cases("losses", "ctc*"))
def test_equals_torch(case):
    arrays, together = case.arrays(), {}
    assert case.info["cases"]
    for name, options in case.info["cases"].items():
        of_case = {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}
        # Cases with equal options form one padded batch, except those with a single frame.
        alike = options["dtype"], options["blank"], len(of_case["logits_TNC"]) == 1
        together.setdefault(alike, {})[name] = of_case
    for (dtype, blank_id, _), cases in together.items():
        with jax.enable_x64(True) if dtype == "torch.float64" else contextlib.nullcontext():
            found = list(losses_and_gradients(list(cases.values()), blank_id=blank_id))
        for (name, of_case), of_it in zip(cases.items(), found, strict=True):
            assert of_it[0].dtype == of_case["logits_TNC"].dtype
            for what, difference, limit in differences(of_case, *of_it):
                assert_within(difference, limit, what=f"{name}: {what}")


def padded(arrays, value, dtype):
    """Pads arrays of different sizes to one array with all their rows."""
    room = np.full((sum(map(len, arrays)), *np.max([array.shape[1:] for array in arrays], axis=0)), value, dtype)
    first = 0
    for array in arrays:
        where = np.s_[first : first + len(array)], *(np.s_[:size] for size in array.shape[1:])
        room[where] = array
        first += len(array)
    return room


def losses_and_gradients(cases, *, blank_id):
    """Yields losses, feasibility, mean loss and the gradients of PyTorch's two reductions for each case."""
    logits = [case["logits_TNC"].swapaxes(0, 1) for case in cases]
    logit_lengths, label_lengths = (
        np.concatenate([case[key] for case in cases]).astype(np.int32) for key in ("input_lens", "target_lens")
    )
    weights = [
        {"sum": np.ones(len(x)), "mean": 1 / np.maximum(case["target_lens"], 1) / len(x)}
        for case, x in zip(cases, logits, strict=True)
    ]
    row_weights = {key: np.concatenate([each[key] for each in weights]) for key in weights[0]}

    @jax.jit
    def compute(logits, logit_lengths, labels, label_lengths, weights):
        def losses_of(logits):
            return ctc_loss(logits, logit_lengths, labels, label_lengths, blank_id=blank_id)

        losses, pull_back, feasible = jax.vjp(losses_of, logits, has_aux=True)
        gradients = {key: pull_back(weight.astype(losses.dtype))[0] for key, weight in weights.items()}
        return losses, feasible, gradients

    # Padded symbols have probability 0.
    batch = padded(logits, -1e9, logits[0].dtype), logit_lengths, padded([c["targets"] for c in cases], 0, np.int32)
    losses, feasible, gradients = jax.device_get(compute(*batch, label_lengths, row_weights))
    first = 0
    for x, weight in zip(logits, weights, strict=True):
        rows, (frames, symbols) = slice(first, first + len(x)), x.shape[1:]
        for gradient in gradients.values():
            assert not gradient[rows, frames:].any()
            assert not gradient[rows, :, symbols:].any()
        of_case = {key: gradient[rows, :frames, :symbols].swapaxes(0, 1) for key, gradient in gradients.items()}
        yield losses[rows], feasible[rows], (losses[rows] * weight["mean"]).sum(), of_case
        first += len(x)


def differences(case, losses, feasible, mean, gradients):
    """Yields relative differences and their limits, for both conventions of PyTorch: loss infinite or 0 without a
    path."""
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

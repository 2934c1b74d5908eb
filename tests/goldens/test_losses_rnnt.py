"""Transducer losses and gradients against torchaudio, NeMo and fast_rnnt, and the pruned loss against fast_rnnt."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.losses.lattice import lattice_loss
from asr_jax.losses.pruned_transducer import (
    kept_log_probs,
    kept_positions,
    occupancies,
    pruned_log_probs,
    simple_log_probs,
)
from tests.losses.transducer_loss import transducer_loss
from tests.support import assert_within, golden_cases, relative

pytestmark = pytest.mark.golden
PEERS = ("torchaudio", "nemo_numba", "fast_rnnt")


def of(arrays, name):
    return {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}


@pytest.mark.parametrize("case", [c for c in golden_cases("losses", "rnnt*") if "pruned" not in c.id])
def test_equals_its_peers(case):
    arrays, compared = case.arrays(), 0
    cases = {name: options for name, options in case.info["cases"].items() if name != "errors"}
    for name, options in cases.items():
        of_case = of(arrays, name)
        logits, width = of_case["logits"], of_case["logits"].shape[2] - 1
        labels = of_case["targets"][:, :width].astype(np.int32)
        lengths = of_case["T_lens"].astype(np.int32), of_case["U_lens"].astype(np.int32)
        loss = partial(transducer_loss, blank_id=options["blank"], fast_emit=options["fastemit_lambda"])
        limit = options["clamp"] if options["clamp"] > 0 else np.inf  # of the gradient of each logit

        @jax.jit
        def run(logits, labels, num_frames, num_labels, loss=loss):
            losses, pull_back = jax.vjp(lambda x: loss(x, num_frames, labels, num_labels), logits)
            return losses, pull_back(jnp.ones_like(losses))[0]

        losses, gradient = jax.device_get(run(logits, labels, *lengths))
        gradient = np.clip(gradient, -limit, limit)
        for peer in PEERS:
            if f"{peer}/loss" in of_case:
                assert_within(relative(losses, of_case[f"{peer}/loss"]), 1e-5, what=f"{name} {peer} loss")
                difference = relative(gradient, of_case[f"{peer}/dlogits"])
                assert_within(difference, 1e-3, what=f"{name} {peer} gradient")
                compared += 1
    assert compared >= len(cases)


@pytest.mark.parametrize("case", golden_cases("losses", "rnnt_pruned*"))
def test_pruned_equals_fast_rnnt(case):
    arrays, blank_id = case.arrays(), case.info.get("blank", 0)
    labels, num_labels, num_frames = (
        jnp.asarray(array, jnp.int32) for array in (arrays["symbols"], *arrays["boundary"].T[2:])
    )
    scales = dict(re.findall(r"(\w+_only_scale) (\d*\.?\d+)", case.info["note"]))
    smoothed = {"acoustic_scale": float(scales["am_only_scale"]), "language_scale": float(scales["lm_only_scale"])}

    @partial(jax.jit, static_argnames="size")
    def positions(of_blank, of_label, *, size):
        return kept_positions(of_blank, of_label, num_frames, num_labels, size=size)

    @jax.jit
    def pruned(logits, starts):
        def total(logits):
            kept = kept_log_probs(logits, starts, labels, blank_id=blank_id)
            blank, label = pruned_log_probs(*kept, starts, num_labels=labels.shape[1])
            return lattice_loss(blank[None], label[None], num_frames, num_labels)

        found, pull_back = jax.vjp(total, logits)
        return found, pull_back(jnp.ones_like(found))[0]

    for kind, scales in (("simple", {}), ("smoothed", smoothed)):
        expected = of(arrays, kind)

        @jax.jit
        def simple(acoustic, language, scales=scales):
            return simple_log_probs(acoustic, language, labels, blank_id=blank_id, **scales)

        @jax.jit
        def losses(acoustic, language, simple=simple):
            blank, label = simple(acoustic, language)
            return lattice_loss(blank[None], label[None], num_frames, num_labels)

        @jax.jit
        def run(acoustic, language, losses=losses, simple=simple):
            found, pull_back = jax.vjp(losses, acoustic, language)
            return (
                found,
                pull_back(jnp.ones_like(found)),
                occupancies(*simple(acoustic, language), num_frames, num_labels),
            )

        found, gradients, (of_blank, of_label) = jax.device_get(run(arrays["am"], arrays["lm"]))
        # fast_rnnt's backward pass multiplies the occupancies that it has returned by the cotangent, in place. The
        # occupancies and ranges of a case are therefore of one sign, either one.
        sign = np.sign(expected["py_grad"].sum())
        theirs = [np.swapaxes(expected[f"p{arc}_grad"], 1, 2) for arc in "yx"]
        theirs[1] = theirs[1][:, :-1]
        for what, value, other, limit in (
            ("loss", found, expected["loss"], 1e-5),
            ("acoustic gradient", gradients[0], expected["dam"], 1e-3),
            ("language gradient", gradients[1], expected["dlm"], 1e-3),
            ("occupancies of blanks", of_blank.swapaxes(1, 2), sign * expected["py_grad"], 1e-3),
            ("occupancies of labels", of_label.swapaxes(1, 2), sign * expected["px_grad"][..., :-1], 1e-3),
        ):
            assert_within(relative(value, other), limit, what=f"{kind} {what}")
        for name in (key for key in expected if key.startswith("ranges_")):
            ranges = expected[name]
            size = ranges.shape[2]
            # The reference's occupancies: if positions are equal except for rounding, rounding decides which are kept.
            starts = positions(*theirs, size=size)
            np.testing.assert_array_equal(starts, ranges[..., 0])
            of_size = of(expected, name.replace("ranges", "pruned"))
            found, gradient = pruned(of_size["logits"], starts)
            assert_within(relative(found, of_size["loss"]), 1e-5, what=f"{kind} {size} loss")
            assert_within(relative(gradient, of_size["dlogits"]), 1e-3, what=f"{kind} {size} gradient")

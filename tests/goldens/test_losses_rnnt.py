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
IMPOSSIBLE = -1e30
"""Logit of a label whose probability is 0."""


def of(arrays, name):
    return {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}


def settings_of(options):
    return options["blank"], options["fastemit_lambda"]


def padded(array, shape, value=0):
    """Returns an array with a larger shape, with `value` in the new places."""
    return np.pad(array, [(0, size - own) for size, own in zip(shape, array.shape, strict=True)], constant_values=value)


def losses_and_gradients(cases, blank_id, fast_emit):
    """Computes cases as rows of one batch, whose padding and further labels have a probability of 0.

    Returns:
        Losses and gradients of each case.
    """
    sizes = np.max([each["logits"].shape for each in cases.values()], axis=0)[1:]
    logits = [padded(each["logits"], (len(each["logits"]), *sizes), IMPOSSIBLE) for each in cases.values()]
    labels = [each["targets"][:, : each["logits"].shape[2] - 1] for each in cases.values()]
    labels = [padded(each, (len(each), sizes[1] - 1)) for each in labels]
    lengths = [[each[name] for each in cases.values()] for name in ("T_lens", "U_lens")]
    logits, labels, num_frames, num_labels = map(np.concatenate, (logits, labels, *lengths))

    @jax.jit
    def run(logits, *texts):
        loss = partial(transducer_loss, blank_id=blank_id, fast_emit=fast_emit)
        losses, pull_back = jax.vjp(lambda x: loss(x, *texts), logits)
        return losses, pull_back(jnp.ones_like(losses))[0]

    texts = (np.int32(each) for each in (num_frames, labels, num_labels))
    losses, gradient = jax.device_get(run(logits, *texts))
    found, first = {}, 0
    for name, each in cases.items():
        rows, frames, places, size = each["logits"].shape
        of_rows = slice(first, first + rows)
        found[name], first = (losses[of_rows], gradient[of_rows, :frames, :places, :size]), first + rows
    return found


@pytest.mark.parametrize("case", [c for c in golden_cases("losses", "rnnt*") if "pruned" not in c.id])
def test_equals_its_peers(case):
    arrays, compared = case.arrays(), 0
    cases = {name: options for name, options in case.info["cases"].items() if name != "errors"}
    found = {}
    for settings in {settings_of(options) for options in cases.values()}:
        found |= losses_and_gradients(
            {name: of(arrays, name) for name, options in cases.items() if settings_of(options) == settings}, *settings
        )
    for name, options in cases.items():
        of_case, (losses, gradient) = of(arrays, name), found[name]
        limit = options["clamp"] if options["clamp"] > 0 else np.inf  # of the gradient of each logit
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

"""Arrays without rows or without frames: kernels return what their references do, and gradients of 0."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.devices import TracedFor
from asr_jax.kernels import implementations
from asr_jax.kernels.bias_norm.api import bias_norm
from asr_jax.kernels.ctc_sweep.api import ctc_sweep
from asr_jax.kernels.ctc_viterbi.api import ctc_viterbi
from asr_jax.kernels.depthwise_conv.api import depthwise_conv
from asr_jax.kernels.glu.api import glu
from asr_jax.kernels.lattice_sweep.api import lattice_sweep
from asr_jax.kernels.lattice_sweep.reference import Start
from asr_jax.kernels.masking.api import mask_time
from asr_jax.kernels.pairwise_downsample.api import pairwise_downsample
from asr_jax.kernels.relative_attention.api import relative_attention
from asr_jax.kernels.relative_shift.api import relative_shift
from asr_jax.kernels.swoosh.api import swoosh_l
from asr_jax.kernels.transducer_joint.api import transducer_joint
from asr_jax.nn.normalization import masked_batch_norm
from tests.kernels.sweeps import RNNT


def calls(rows, frames):
    """Functions of an implementation and of arrays, and these arrays."""
    x, lengths, vector = jnp.ones((rows, frames, 4)), jnp.zeros(rows, jnp.int32), jnp.ones(4)
    labels = jnp.ones((rows, 2), jnp.int32)
    start = Start(jnp.zeros((1, rows), jnp.int32), jnp.ones((1, rows, 3), bool))
    heads, offsets = jnp.ones((rows, frames, 2, 4)), max(2 * frames - 1, 0)
    return {
        "bias_norm": (lambda name, *given: bias_norm(*given, implementation=name), x, vector, jnp.zeros(())),
        "ctc_viterbi": (
            lambda name, each: ctc_viterbi(each, lengths, labels, lengths, blank_id=0, implementation=name), x
        ),
        "depthwise_conv": (
            lambda name, *given: depthwise_conv(*given, padding=(2, 2), implementation=name), x, jnp.ones((3, 4))
        ),
        "glu": (lambda name, each: glu(each, implementation=name), x),
        "lattice_sweep": (
            lambda name, *given: lattice_sweep(given, start, spans=RNNT[0], moves=RNNT[1], implementation=name),
            *[jnp.ones((frames, 1, rows, 3))] * 2,
        ),
        "masked_batch_norm": (
            lambda name, each, gain, bias: masked_batch_norm(each, lengths, gain, bias, 1e-5, name)[0],
            x, vector, vector,
        ),
        "masking": (lambda name, each: mask_time(each, lengths, implementation=name), x),
        "pairwise_downsample": (
            lambda name, *given: pairwise_downsample(*given, lengths, implementation=name), x, jnp.ones(2)
        ),
        "swoosh": (lambda name, each: swoosh_l(each, implementation=name), x),
        "transducer_joint": (
            lambda name, *given: transducer_joint(
                *given, labels, lengths, lengths, blank_id=0, activation="relu", implementation=name
            ),
            x, jnp.ones((rows, 3, 4)), jnp.ones((4, 5)), jnp.ones(5),
        ),
        "ctc_sweep": (
            lambda name, each: ctc_sweep(each, labels[None], lengths, implementation=name),
            jnp.ones((frames, rows, 4)),
        ),
        "relative_shift": (
            lambda name, each: relative_shift(each, implementation=name),
            jnp.ones((rows, frames, offsets)),
        ),
        "relative_attention": (
            lambda name, *given: relative_attention(*given, lengths, scale=1.0, implementation=name),
            *[heads] * 4, jnp.ones((offsets, 2, 4)),
        ),
    }  # fmt: skip


@pytest.mark.parametrize(("implementation", "platform"), [("mosaic_tpu", "tpu"), ("triton", "gpu")])
@pytest.mark.parametrize(
    ("kernel", "rows", "frames"), [(kernel, *shape) for shape in ((0, 5), (2, 0)) for kernel in calls(*shape)]
)
def test_empty_arrays(kernel, rows, frames, implementation, platform, monkeypatch):
    if implementation == "triton":
        pytest.importorskip("jax_triton", reason="needs the extra kernels")
    function, *given = calls(rows, frames)[kernel]

    @functools.partial(jax.jit, static_argnums=0)
    def values_and_gradients(name, *given):
        values, transpose = jax.vjp(functools.partial(function, name), *given)
        return values, transpose(jax.tree.map(jnp.ones_like, values))

    expected, _ = values_and_gradients("auto", *given)
    monkeypatch.setattr(implementations, "traced_for", lambda: TracedFor(platform, 1, 90))
    found, gradients = values_and_gradients(implementation, *given)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    for gradient, of in zip(gradients, given, strict=True):
        np.testing.assert_array_equal(gradient, jnp.zeros_like(of))

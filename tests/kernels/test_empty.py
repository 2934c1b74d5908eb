"""Arrays without rows or without frames: kernels return what their references do, and gradients of 0."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.devices import TracedFor
from asr_jax.kernels import implementations
from asr_jax.kernels.cases import Sizes, cases
from asr_jax.kernels.depthwise_conv.api import depthwise_conv


def calls(rows, frames):
    """Operations whose arrays are empty."""
    every = cases(Sizes(rows, frames, channels=8, heads=2, labels=2, vocab_size=5, taps=3))
    lattice, convolution = every["lattice_sweep"], every["depthwise_conv"]
    if not frames:  # no diagonals, and enough padding for the taps
        weights, start = lattice.arguments
        every["lattice_sweep"] = lattice._replace(arguments=(tuple(each[:0] for each in weights), start))
        every["depthwise_conv"] = convolution._replace(function=functools.partial(depthwise_conv, padding=(2, 2)))
    return {name: case for name, case in every.items() if "mask" not in name or case.num_gradients}


@pytest.mark.parametrize(("implementation", "platform"), [("mosaic_tpu", "tpu"), ("triton", "gpu")])
@pytest.mark.parametrize(
    ("name", "rows", "frames"), [(name, *shape) for shape in ((0, 5), (2, 0)) for name in calls(*shape)]
)
def test_empty_arrays(name, rows, frames, implementation, platform, monkeypatch):
    if implementation == "triton":
        pytest.importorskip("jax_triton", reason="needs the extra kernels")
    case = calls(rows, frames)[name]
    given, others = case.arguments[: case.num_gradients], case.arguments[case.num_gradients :]

    @functools.partial(jax.jit, static_argnums=0)
    def values_and_gradients(name, given, others):
        function = functools.partial(case.function, implementation=name)
        values, transpose = jax.vjp(lambda *each: function(*each, *others), *given)
        return values, transpose(jax.tree.map(jnp.ones_like, values))

    expected, _ = values_and_gradients("auto", given, others)
    monkeypatch.setattr(implementations, "traced_for", lambda: TracedFor(platform, 1, 90))
    found, gradients = values_and_gradients(implementation, given, others)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    for gradient, of in zip(gradients, given, strict=True):
        np.testing.assert_array_equal(gradient, jnp.zeros_like(of))

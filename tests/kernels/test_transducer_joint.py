"""The joint network of transducers: every implementation against the reference, values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.devices import TracedFor
from asr_jax.kernels import implementations
from asr_jax.kernels.transducer_joint import reference, xla
from asr_jax.kernels.transducer_joint.api import transducer_joint
from asr_jax.kernels.transducer_joint.reference import picked
from tests.kernels.compiled import compiled_for
from tests.kernels.drawn import with_drawn
from tests.kernels.joint import BLANK, DRAWN, SIZES, made, reference_gradients
from tests.support import assert_close


def expected(given, activation):
    """Nodes one after the other, in float64."""
    frames, predictions, kernel, bias, labels, num_frames, num_labels = (np.asarray(each, np.float64) for each in given)
    found = np.zeros((*frames.shape[:2], predictions.shape[1])), np.zeros((*frames.shape[:2], labels.shape[1]))
    for row in range(len(frames)):
        for t in range(int(num_frames[row])):
            for s in range(int(num_labels[row]) + 1):
                hidden = frames[row, t] + predictions[row, s]
                logits = (np.tanh(hidden) if activation == "tanh" else np.maximum(hidden, 0)) @ kernel + bias
                logits -= np.log(np.sum(np.exp(logits)))
                found[0][row, t, s] = logits[BLANK]
                if s < num_labels[row]:
                    found[1][row, t, s] = logits[int(labels[row, s])]
    return found


@functools.cache
def inputs(sizes, dtype):
    """Returns inputs in float32. The first four are rounded to `dtype`."""
    given = jax.device_get(made(sizes))
    return *(each.astype(jnp.dtype(dtype)).astype(np.float32) for each in given[:4]), *given[4:]


@functools.cache
def reference_program(sizes):
    return jax.jit(lambda *given: reference_gradients(given, sizes[-1]))


@functools.cache
def reference_of(sizes, dtype):
    """Values, cotangents and gradients of the reference in float32, for inputs that are rounded to a dtype."""
    return jax.device_get(reference_program(sizes)(*inputs(sizes, dtype)))


def values_and_gradients(name, given, dtype, activation, cotangents, monkeypatch):
    """Calls an implementation: of XLA with tiles of 5,000 logits, of Pallas in its interpreter."""
    monkeypatch.setattr(xla, "TILE_LOGITS", 5000)
    call = functools.partial(transducer_joint, blank_id=BLANK, activation=activation, implementation=name)

    @jax.jit
    def both(arrays, lengths, cotangents):
        values, transpose = jax.vjp(lambda *each: call(*each, *lengths), *(each.astype(dtype) for each in arrays))
        return values, transpose(cotangents)

    return jax.device_get(both(given[:4], given[4:], cotangents))


@pytest.mark.parametrize("sizes", with_drawn(SIZES, DRAWN))
def test_values_of_the_reference(sizes):
    for one, other in zip(
        reference_of(sizes, "float32")[0], expected(inputs(sizes, "float32"), sizes[-1]), strict=True
    ):
        assert_close(one, other, atol=1e-5)


@pytest.mark.parametrize("name", ["xla", "mosaic_tpu"])
# In bfloat16, both inputs, their sum, its activation, the product and the result are rounded.
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), pytest.param("bfloat16", 6 * 2.0**-8, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("sizes", with_drawn(SIZES, DRAWN))
def test_values_and_gradients(name, dtype, tolerance, sizes, interpreted, monkeypatch):
    values, cotangents, gradients = reference_of(sizes, dtype)
    found = values_and_gradients(name, inputs(sizes, dtype), dtype, sizes[-1], cotangents, monkeypatch)
    assert all(each.dtype == dtype for each in found[1])
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves((values, gradients)), strict=True):
        scale = float(np.abs(other).max(initial=0))
        assert_close(one.astype(np.float32), other, atol=tolerance * scale)


def test_an_implementation_that_cannot_run_says_why(monkeypatch):
    call = functools.partial(transducer_joint, blank_id=BLANK, activation="relu", implementation="mosaic_tpu")
    with pytest.raises(ValueError, match="mosaic_tpu on cpu: it is for TPUs; expected reference or xla"):
        call(*made(SIZES[0]))
    monkeypatch.setattr(implementations, "traced_for", lambda: TracedFor("tpu", 1))
    for width, vocab_size, positions, size in ((1024, 16384, 4, 162), (640, 1024, 601, 232), (1024, 4096, 201, 154)):
        message = (
            f"weights of {width} × {vocab_size} and {positions} label positions in float32 need {size} MiB of VMEM: "
            "expected at most 100 for mosaic_tpu, or reference or xla"
        )
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(call, *described(1, 9, positions, width, vocab_size))


def described(rows, frames, positions, width, vocab_size, dtype="float32"):
    """Shapes and dtypes of the arguments."""
    shapes = [(rows, frames, width), (rows, positions, width), (width, vocab_size), (vocab_size,)]
    more = [jax.ShapeDtypeStruct(shape, "int32") for shape in ((rows, positions - 1), (rows,), (rows,))]
    return *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes), *more


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "implementation", "sizes", "dtype"),
    [
        *((device, implementation, (8, 200, 51, 512, 1024), dtype)
          for device, implementation in (("v5e", "mosaic_tpu"), ("h100", "triton"), ("a100", "triton"))
          for dtype in ("float32", "bfloat16")),
        ("v5e", "mosaic_tpu", (32, 400, 51, 1024, 7168), "float32"),  # the largest vocabularies that are accepted
        ("v5e", "mosaic_tpu", (32, 400, 51, 1024, 11776), "bfloat16"),
    ],
)  # fmt: skip
def test_it_compiles_for_accelerators(device, implementation, sizes, dtype):
    rows, frames, positions, _, vocab_size = sizes
    call = functools.partial(transducer_joint, blank_id=0, activation="tanh", implementation=implementation)

    def gradient(*given):
        return jax.grad(lambda *each: sum(map(jnp.sum, call(*each, *given[4:]))), range(4))(*given[:4])

    compiled = compiled_for(device, gradient, *described(*sizes, dtype))
    assert "custom-call" in compiled.as_text()
    logits_bytes = rows * frames * positions * vocab_size * 4
    assert compiled.memory_analysis().temp_size_in_bytes < logits_bytes / 4


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_the_gradient_of_the_label_is_at_the_label_alone(platform, monkeypatch):
    monkeypatch.setattr(reference, "traced_for", lambda: TracedFor(platform, 1))
    random = np.random.default_rng(0)
    logits, factors = (random.normal(size=shape).astype(np.float32) for shape in ((2, 3, 4, 7), (2, 3, 4)))
    ids = random.integers(0, 7, (2, 1, 4))
    found = jax.jit(jax.grad(lambda logits, ids: jnp.sum(picked(logits, ids) * factors)))(logits, ids)
    expected = np.zeros(logits.shape, np.float32)
    for place in np.ndindex(2, 3, 4):
        expected[place][ids[place[0], 0, place[2]]] = factors[place]
    np.testing.assert_array_equal(found, expected)

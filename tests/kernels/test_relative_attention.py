"""Attention with relative positions: every implementation against a loop over queries, values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from asr_jax.core.devices import TracedFor
from asr_jax.kernels import implementations
from asr_jax.kernels.relative_attention import xla
from asr_jax.kernels.relative_attention.api import relative_attention
from tests.kernels.attention import DRAWN, SCALE, SIZES, made, reference_gradients
from tests.kernels.compiled import compiled_for
from tests.kernels.drawn import with_drawn
from tests.support import assert_close


def computed(implementation, block=xla.BLOCK):
    """Returns a function that computes the attention, on TPUs with Pallas's interpreter."""

    def function(*given):
        with pytest.MonkeyPatch.context() as changed:
            changed.setattr(implementations, "traced_for", lambda: TracedFor("tpu", 1))
            changed.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))
            changed.setattr(xla, "BLOCK", block)
            return relative_attention(*given, scale=SCALE, implementation=implementation)

    return function


IMPLEMENTATIONS = {
    "reference": computed("reference"),
    "xla": computed("xla", 50),
    "xla, one query": computed("xla", 1),
    "mosaic_tpu": computed("mosaic_tpu"),
}
PROGRAMS = {name: jax.jit(function) for name, function in IMPLEMENTATIONS.items()}


@functools.cache
def expected(sizes, dtype=jnp.float32):
    """Queries one after the other, in float64."""
    *arrays, lengths = (np.asarray(each, np.float64) for each in made(sizes, dtype))
    query, position_query, key, value, offsets = arrays
    found = np.zeros(value.shape)
    rows, frames, heads, _ = query.shape
    for row in range(rows):
        keys = range(int(lengths[row]))
        for t in range(frames if keys else 0):
            for head in range(heads):
                scores = np.array([
                    query[row, t, head] @ key[row, s, head]
                    + position_query[row, t, head] @ offsets[frames - 1 + s - t, head]
                    for s in keys
                ])  # fmt: skip
                weights = np.exp(SCALE * (scores - scores.max()))
                found[row, t, head] = weights / weights.sum() @ value[row, : len(weights), head]
    return found


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *((name, SIZES[1]) for name in IMPLEMENTATIONS if name != "mosaic_tpu"),
        pytest.param("mosaic_tpu", SIZES[1], marks=pytest.mark.slow),  # the test of its gradients compares its values
        *(
            pytest.param(name, sizes, marks=pytest.mark.slow)
            for sizes in (SIZES[0], *SIZES[2:], *DRAWN)
            for name in IMPLEMENTATIONS
        ),
    ],
)
def test_values(name, sizes):
    assert_close(PROGRAMS[name](*made(sizes)), expected(sizes), atol=1e-5)


@pytest.mark.parametrize("name", [*tuple(IMPLEMENTATIONS)[:3], pytest.param("mosaic_tpu", marks=pytest.mark.slow)])
def test_values_in_bfloat16(name):
    found = PROGRAMS[name](*made(SIZES[1], jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    assert_close(np.asarray(found, np.float32), expected(SIZES[1], jnp.bfloat16), atol=2e-2)


@functools.cache
def reference_of(sizes):
    """Values of the reference, random cotangents, and the gradients, in NumPy."""
    return jax.device_get(jax.jit(reference_gradients)(made(sizes)))


@pytest.mark.parametrize("name", ["xla", "mosaic_tpu"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), pytest.param("bfloat16", 2e-2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("sizes", with_drawn(SIZES[1:2], DRAWN))
def test_gradients(name, sizes, dtype, tolerance, interpreted, monkeypatch):
    monkeypatch.setattr(xla, "BLOCK", 50)
    call = functools.partial(relative_attention, scale=SCALE, implementation=name)
    _, cotangent, gradients = reference_of(sizes)
    *arrays, lengths = made(sizes)
    given = [np.asarray(each).astype(jnp.dtype(dtype)) for each in arrays]

    def loss(*each):
        values = call(*each, lengths)
        return jnp.sum(values * cotangent), values

    found, values = jax.device_get(jax.jit(jax.grad(loss, range(5), has_aux=True))(*given))
    assert_close(values.astype(np.float32), expected(sizes, jnp.dtype(dtype)), atol=tolerance)
    for one, other in zip(found, gradients, strict=True):
        assert one.dtype == dtype
        assert_close(one.astype(np.float32), other, atol=tolerance * (np.abs(other).max(initial=0) or 1.0))


@pytest.mark.slow
def test_lengths_above_the_number_of_frames_count_as_that_number():
    *arrays, _ = made(SIZES[0])
    found, expected = (PROGRAMS["mosaic_tpu"](*arrays, np.full(3, length, np.int32)) for length in (12, 7))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_blocks_of_queries_need_less_memory():
    given = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in made((2, 1200, 4, 8, 8, 8))]

    def memory(implementation):
        call = functools.partial(relative_attention, scale=SCALE, implementation=implementation)
        call = jax.checkpoint(call, policy=jax.checkpoint_policies.dots_saveable)  # as in layers, see nn.remat
        gradient = jax.grad(lambda *each: jnp.sum(call(*each)), range(5))
        return jax.jit(gradient).lower(*given).compile().memory_analysis().temp_size_in_bytes

    assert memory("xla") < 0.3 * memory("reference")


def test_what_cannot_run_is_named(monkeypatch):
    *arrays, lengths = made((1, 9, 1, 4, 4, 4))
    with pytest.raises(ValueError, match="17 offsets for 8 frames: expected 15"):
        relative_attention(*(each[:, :8] for each in arrays[:4]), arrays[4], lengths, scale=1.0)
    *long, lengths = (jax.ShapeDtypeStruct(each.shape, each.dtype) for each in made((1, 2049, 1, 1, 1, 1)))
    call = functools.partial(relative_attention, scale=1.0, implementation="mosaic_tpu")
    with pytest.raises(ValueError, match="mosaic_tpu on cpu: it is for TPUs; expected reference or xla"):
        jax.eval_shape(call, *long, lengths)
    monkeypatch.setattr(implementations, "traced_for", lambda: TracedFor("tpu", 1))
    with pytest.raises(ValueError, match="2049 frames: expected at most 2048 for mosaic_tpu, or reference or xla"):
        jax.eval_shape(call, *long, lengths)
    message = (
        r"2048 frames and heads of widths \[768, 768, 768\] in float32 need 113 MiB of VMEM: expected at most 100 for "
        "mosaic_tpu, or reference or xla"
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(call, *described(1, 2048, 1, 768))


def described(rows, frames, heads, width, dtype="float32"):
    """Shapes and dtypes of the arguments."""
    shapes = [(rows, frames, heads, width)] * 4 + [(2 * frames - 1, heads, width)]
    return *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes), jax.ShapeDtypeStruct((rows,), "int32")


def test_heads_that_are_too_wide_for_triton_are_named(monkeypatch):
    pytest.importorskip("jax_triton")
    monkeypatch.setattr(implementations, "traced_for", lambda: TracedFor("gpu", 1, 90))
    *wide, lengths = (jax.ShapeDtypeStruct(each.shape, each.dtype) for each in made((1, 9, 1, 129, 4, 4)))
    with pytest.raises(
        ValueError, match=r"heads of widths \[129, 4, 4\]: expected at most 128 for triton, or reference or xla"
    ):
        jax.eval_shape(functools.partial(relative_attention, scale=1.0, implementation="triton"), *wide, lengths)


def gradient_for(device, implementation, sizes, dtype):
    """Compiles the gradient for a device that is absent."""
    call = functools.partial(relative_attention, scale=SCALE, implementation=implementation)

    def gradient(*given):
        return jax.grad(lambda *each: jnp.sum(call(*each, given[5]).astype(jnp.float32)), range(5))(*given[:5])

    return compiled_for(device, gradient, *described(*sizes, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("frames", [400, 2048])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("device", "implementation"), [("v5e", "mosaic_tpu"), ("h100", "triton"), ("a100", "triton")])
def test_it_compiles_for_accelerators(device, implementation, frames, dtype):
    compiled = gradient_for(device, implementation, (2, frames, 4, 64), dtype)
    assert "custom-call" in compiled.as_text()
    scores_bytes = 2 * 4 * frames * frames * 4
    assert compiled.memory_analysis().temp_size_in_bytes < scores_bytes


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "dtype"), [
    ((8, 2048, 64, 64), "float32"), ((2, 2048, 8, 640), "float32"), ((2, 1024, 8, 1280), "float32"),
    ((2, 2048, 8, 768), "bfloat16"),
])  # fmt: skip
def test_what_is_accepted_fits_into_vmem(sizes, dtype):
    """The first one has arrays that XLA cannot keep in VMEM as a whole; the others have the widest heads."""
    assert "custom-call" in gradient_for("v5e", "mosaic_tpu", sizes, dtype).as_text()

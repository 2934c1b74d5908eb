"""Small operations: the reference against NumPy, and the kernels against the reference, with gradients."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from asr_jax.core.devices import TracedFor
from asr_jax.kernels import elementwise_tpu, implementations
from asr_jax.kernels.glu.api import glu
from asr_jax.kernels.masking import api as masking
from asr_jax.kernels.pairwise_downsample.api import pairwise_downsample
from asr_jax.kernels.relative_shift.api import relative_shift
from asr_jax.kernels.swoosh.api import swoosh_l
from asr_jax.nn.zipformer.subsampling import Downsample
from tests.kernels.compiled import compiled_for
from tests.kernels.drawn import with_drawn
from tests.kernels.small import DRAWN, SIZES, assert_computed, cases, computed, expected_of
from tests.support import assert_close

NAMES = tuple(cases(SIZES[0]))
each_operation = pytest.mark.parametrize("name", NAMES)


@functools.cache
def values_of_all(sizes):
    """Values of all operations, in one program."""

    def run(arguments):
        return {name: case.function(*arguments[name]) for name, case in every.items()}

    every = cases(sizes)
    return jax.device_get(jax.jit(run)({name: case.arguments for name, case in every.items()}))


@each_operation
@pytest.mark.parametrize("sizes", with_drawn(SIZES, DRAWN))
def test_values_of_the_reference(name, sizes):
    expected = expected_of(name, sizes)
    assert_close(values_of_all(sizes)[name], expected, atol=1e-5 * max(np.abs(expected).max(), 1))


@pytest.fixture
def few_tiles(on_tpu, monkeypatch):
    """Kernels for TPUs have blocks of a few tiles."""
    monkeypatch.setattr(elementwise_tpu, "ELEMENTS", elementwise_tpu.ROWS * elementwise_tpu.LANES)
    monkeypatch.setattr(elementwise_tpu, "MOST_LANES", elementwise_tpu.LANES)


@functools.cache
def all_computed(sizes, dtype, interpreter):
    """Values and gradients of the kernels for TPUs in a dtype and of the reference in float32, in one program.

    Args:
        sizes: Rows, frames and channels.
        dtype: Dtype of the kernels.
        interpreter: Name of the interpreter in which the caller lets the kernels run.
    """
    every = {name: case.in_dtype(dtype) for name, case in cases(sizes).items()}

    @jax.jit
    def run(arguments):
        given = {name: case._replace(arguments=arguments[name]) for name, case in every.items()}
        wide = {name: case._replace(arguments=in_float32(case)) for name, case in given.items()}
        return [
            {name: computed(case, how) for name, case in each.items()}
            for how, each in (("mosaic_tpu", given), ("reference", wide))
        ]

    return run({name: case.arguments for name, case in every.items()})


def in_float32(case):
    number = case.num_gradients
    return *(each.astype(jnp.float32) for each in case.arguments[:number]), *case.arguments[number:]


def compare(name, sizes, dtype, interpreter):
    found, reference = all_computed(sizes, dtype, interpreter)
    assert_computed(found[name], reference[name], jnp.dtype(dtype))


@each_operation
@pytest.mark.parametrize(
    ("sizes", "dtype"), [(SIZES[0], "float32"), pytest.param(SIZES[1], "bfloat16", marks=pytest.mark.slow)]
)
def test_kernels_for_tpus_equal_the_reference(name, sizes, dtype, interpreted, few_tiles):
    compare(name, sizes, dtype, "of Pallas")


@pytest.mark.slow
@each_operation
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [*SIZES, *DRAWN])
def test_kernels_for_tpus_equal_the_reference_in_the_interpreter_of_memory(name, sizes, dtype, few_tiles):
    with pltpu.force_tpu_interpret_mode():
        compare(name, sizes, dtype, "of memory")


def test_pairs_agree_with_the_layer_on_valid_frames():
    case = cases(SIZES[0])["pairwise_downsample"]

    @jax.jit
    def both(x, logits, lengths):
        layer = Downsample(2).apply({"params": {"logits": logits}}, x, lengths)
        return masking.mask_time(layer, (lengths + 1) // 2), pairwise_downsample(x, logits, lengths)

    layer, found = both(*case.arguments)
    assert_close(layer, found, atol=1e-5)


def test_the_frames_of_a_group_have_weights_however_different_their_logits_are():
    given = np.ones((1, 3, 1), np.float32), np.float32([0, 200]), np.array([3])
    np.testing.assert_array_equal(np.asarray(jax.jit(pairwise_downsample)(*given))[0, :, 0], 1.0)


def test_no_rows_or_no_frames_have_no_pairs():
    for shape, groups in (((0, 3, 1), 2), ((2, 0, 1), 0)):
        given = np.ones(shape, np.float32), np.zeros(2, np.float32), np.zeros(shape[0], np.int32)
        assert jax.jit(pairwise_downsample)(*given).shape == (shape[0], groups, 1)


def test_what_is_wrong_is_named():
    x, shorter, none, two = jax.device_put([np.zeros(shape, np.float32) for shape in ((2, 5, 3), (2, 4, 3), 0, 2)])
    lengths, one = jax.device_put([np.ones(number, np.int32) for number in (2, 1)])
    for call, message in (
        (lambda: glu(x), "axis -1 has size 3: expected an even number"),
        (
            lambda: glu(x, axis=0),
            r"axis 0 of an array with 3 axes: expected the last one \(-1\) or that before it \(-2\)",
        ),
        (lambda: relative_shift(x), "3 offsets for 5 queries: expected queries and keys together, minus 1"),
        (lambda: masking.mask_time(x, one), "1 lengths for 2 rows: expected one for each row"),
        (
            lambda: masking.residual_add_mask_time(x, shorter, lengths),
            r"update has shape \(2, 4, 3\) and dtype float32",
        ),
        (lambda: masking.attention_mask(lengths, 0, 3), "0 queries and 3 keys: expected at least 1 of each"),
        (lambda: pairwise_downsample(x, none, lengths), "0 logits: expected one for each frame of a group"),
        (lambda: pairwise_downsample(x, two, one), "1 lengths for 2 rows"),
        (lambda: swoosh_l(x, implementation="mosaic_tpu"), "mosaic_tpu on cpu: it is for TPUs; expected reference"),
        (lambda: swoosh_l(x, implementation="triton"), "triton on cpu: it is for NVIDIA GPUs; expected reference"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_an_implementation_that_does_not_exist_or_is_not_installed_is_named(monkeypatch):
    with pytest.raises(ValueError, match="implementation is 'cuda': expected auto, reference, triton or mosaic_tpu"):
        implementations.module_of("swoosh", "cuda")
    # The functions that call this are type-checked in tests, which refuses other names.
    with pytest.raises(
        ValueError, match="implementation is 'cuda': expected auto, reference, xla, triton or mosaic_tpu"
    ):
        implementations.selected("swoosh", "cuda", portable=("reference", "xla"))
    monkeypatch.setattr(implementations, "traced_for", lambda: TracedFor("gpu", 1))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"jax-triton is not installed: ASR_JAX_EXTRAS=kernels "):
        implementations.module_of("swoosh", "triton")


@pytest.mark.slow
@each_operation
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [SIZES[0], (2, 512, 512)])
@pytest.mark.parametrize(("device", "implementation"), [("v5e", "mosaic_tpu"), ("h100", "triton"), ("a100", "triton")])
def test_they_compile_for_accelerators(name, device, implementation, sizes, dtype):
    case = cases(sizes)[name].in_dtype(dtype)

    def run(*given):
        return computed(case._replace(arguments=given), implementation)

    text = compiled_for(device, run, *case.arguments).as_text()
    assert text.count("custom-call(") >= (2 if case.num_gradients else 1)


def test_empty_arrays(on_tpu):
    for shape in ((0, 5), (3, 0), (0, 2, 5)):
        run = jax.jit(jax.value_and_grad(lambda x: swoosh_l(x, implementation="mosaic_tpu").sum()))
        found, gradient = run(np.ones(shape, np.float32))
        assert found == 0
        assert gradient.shape == shape


def test_arrays_that_are_too_large_for_triton_are_refused():
    pytest.importorskip("jax_triton", reason="needs the extra kernels")
    from asr_jax.kernels.triton_calls import triton_call

    with pytest.raises(ValueError, match=r"array of \(2, 1073741824\): expected at most 2,147,418,112 elements"):
        triton_call(jax.ShapeDtypeStruct((2, 2**30), jnp.float32), kernel=None, out=(), grid=(1,))

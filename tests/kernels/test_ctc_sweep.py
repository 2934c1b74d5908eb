"""The kernels of the recursion of CTC against the scan, in the interpreters of Pallas and Triton."""

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.programs import Programs
from asr_jax.core.targets import target_of
from asr_jax.kernels.ctc_sweep import mosaic_tpu
from asr_jax.kernels.ctc_sweep.api import ctc_sweep
from asr_jax.kernels.ctc_sweep.reference import NEVER

# Frames, rows, labels, directions: several blocks of frames, several tiles of rows and of columns, no labels, one frame
SIZES = [(5, 3, 2, 2), (41, 9, 7, 2), (1, 1, 1, 1), (6, 2, 0, 2), (30, 2, 140, 1)]


def drawn(frames, rows, num_labels, directions):
    random = np.random.default_rng(frames)
    labels = random.integers(1, 4, (rows, num_labels))
    lengths = random.integers(0, num_labels + 1, rows)
    emissions = random.normal(-2, 2, (frames, rows, num_labels + 2))
    emissions[..., -1] = emissions[..., 0]
    emissions[:, :, 1:-1][:, np.arange(num_labels)[None] >= lengths[:, None]] = NEVER
    padding = np.where(np.isin(np.arange(num_labels + 2), (0, num_labels + 1)), 0, NEVER)
    emissions[frames // 2 + 1 :, 0] = padding
    both = np.stack([labels, labels[:, ::-1]])[:directions]
    return jnp.asarray(emissions, jnp.float32), jnp.asarray(both, jnp.int32), jnp.asarray(lengths, jnp.int32)


def assert_equal(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        possible = other > NEVER / 2
        np.testing.assert_array_equal(one > NEVER / 2, possible)
        np.testing.assert_allclose(one[possible], other[possible], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_kernel_of_tpus_equals_the_scan(sizes, monkeypatch):
    given = drawn(*sizes)
    monkeypatch.setattr(mosaic_tpu, "BLOCK", 16 * mosaic_tpu.ROWS * mosaic_tpu.LANES)
    found = jax.jit(functools.partial(mosaic_tpu.sweep, interpret=True))(*given)
    assert_equal(found, jax.jit(ctc_sweep)(*given))


@pytest.mark.slow
def test_the_kernel_of_gpus_equals_the_scan():
    if importlib.util.find_spec("jax_triton") is None:
        pytest.skip("jax-triton is not installed: pip install 'asr-jax[kernels]'")
    command = [sys.executable, "-m", "tests.kernels.triton_interpreted"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == len(SIZES)


def test_an_implementation_that_cannot_run_says_why():
    given = drawn(5, 3, 2, 2)
    with pytest.raises(ValueError, match="bfloat16: expected float32 for mosaic_tpu"):
        ctc_sweep(given[0].astype(jnp.bfloat16), *given[1:], implementation="mosaic_tpu")
    if importlib.util.find_spec("jax_triton") is None:
        with pytest.raises(ValueError, match=r"pip install 'asr-jax\[kernels\]'"):
            ctc_sweep(*given, implementation="triton")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "implementation"), [("v5e", "mosaic_tpu"), ("h100", "triton")])
@pytest.mark.parametrize("sizes", [(400, 32, 60, 2), (2000, 3, 300, 1)])
def test_kernels_compile_for_their_devices(sizes, name, implementation):
    try:
        mesh = target_of(name).one
    except UserError as error:
        pytest.skip(str(error))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding) for each in drawn(*sizes)]
    function = functools.partial(ctc_sweep, implementation=implementation)
    compiled = Programs().lower("sweep", function, *shapes).compile()
    text = compiled.as_text()
    assert "custom-call" in text
    assert "while" not in text

"""The kernels of the recursions of CTC and of lattices against the scans, in the interpreters of Pallas and Triton."""

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from asr_jax.core.devices import TracedFor
from asr_jax.kernels import implementations
from asr_jax.kernels.ctc_sweep import mosaic_tpu as ctc_tpu
from asr_jax.kernels.ctc_sweep.api import ctc_sweep
from asr_jax.kernels.lattice_sweep import mosaic_tpu as lattice_tpu
from asr_jax.kernels.lattice_sweep.api import lattice_sweep
from tests.kernels.compiled import compiled_for
from tests.kernels.sweeps import (
    CTC_DRAWN,
    CTC_SIZES,
    LATTICE_DRAWN,
    LATTICE_SIZES,
    RNNT,
    TDT,
    assert_equal,
    for_ctc,
    for_lattices,
    with_bonus,
)  # fmt: skip
from tests.kernels.triton_compared import COMPARED


@pytest.mark.parametrize(
    ("sizes", "has_bonus"),
    [
        (CTC_SIZES[0], False),
        *((sizes, True) for sizes in CTC_SIZES),
        *(pytest.param(sizes, False, marks=pytest.mark.slow) for sizes in (*CTC_SIZES[1:], *CTC_DRAWN)),
        *(pytest.param(sizes, True, marks=pytest.mark.slow) for sizes in CTC_DRAWN),
    ],
)
def test_the_kernel_of_ctc_for_tpus_equals_the_scan(sizes, has_bonus, interpreted, monkeypatch):
    given = with_bonus(*for_ctc(*sizes)) if has_bonus else for_ctc(*sizes)
    monkeypatch.setattr(ctc_tpu, "BLOCK", 16 * ctc_tpu.ROWS * ctc_tpu.LANES)
    both = jax.jit(lambda *given: (ctc_sweep(*given, implementation="mosaic_tpu"), ctc_sweep(*given)))
    assert_equal(*both(*given))


@pytest.mark.parametrize(
    ("sizes", "arcs"),
    [
        (LATTICE_SIZES[1], RNNT),
        *((sizes, TDT) for sizes in LATTICE_SIZES),
        *(pytest.param(sizes, RNNT, marks=pytest.mark.slow) for sizes in (*LATTICE_SIZES[:1], *LATTICE_SIZES[2:])),
        *(pytest.param(sizes, arcs, marks=pytest.mark.slow) for sizes in LATTICE_DRAWN for arcs in (RNNT, TDT)),
    ],
)
def test_the_kernel_of_lattices_for_tpus_equals_the_scan(sizes, arcs, interpreted, monkeypatch):
    spans, moves = arcs
    given = for_lattices(*sizes, num_arcs=len(spans))
    monkeypatch.setattr(lattice_tpu, "BLOCK", 64 * lattice_tpu.ROWS * lattice_tpu.LANES)
    sweep = functools.partial(lattice_sweep, spans=spans, moves=moves)
    both = jax.jit(lambda *given: (sweep(*given, implementation="mosaic_tpu"), sweep(*given)))
    assert_equal(*both(*given))


@pytest.mark.slow
def test_the_kernels_for_gpus_equal_the_scans():
    if importlib.util.find_spec("jax_triton") is None:
        pytest.skip("jax-triton is not installed: pip install 'asr-jax[kernels]'")
    command = [sys.executable, "-m", "tests.kernels.triton_interpreted"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == sum(len(each.sizes) for each in COMPARED.values())


def test_an_implementation_that_cannot_run_says_why(monkeypatch):
    given, (weights, start) = for_ctc(5, 3, 2, 2), for_lattices(5, 3, 2, 2)
    arcs = {"spans": RNNT[0], "moves": RNNT[1]}
    with pytest.raises(ValueError, match="triton on cpu: it is for NVIDIA GPUs; expected reference"):
        ctc_sweep(*given, implementation="triton")
    monkeypatch.setattr(implementations, "traced_for", lambda: TracedFor("tpu", 1))
    with pytest.raises(ValueError, match="bfloat16: expected float32 for mosaic_tpu"):
        ctc_sweep(given[0].astype(jnp.bfloat16), *given[1:], implementation="mosaic_tpu")
    low = [each.astype(jnp.bfloat16) for each in weights]
    with pytest.raises(ValueError, match="bfloat16: expected float32 for mosaic_tpu"):
        lattice_sweep(low, start, **arcs, implementation="mosaic_tpu")
    monkeypatch.setattr(implementations, "traced_for", lambda: TracedFor("gpu", 1, 90))
    if importlib.util.find_spec("jax_triton") is None:
        for call in (ctc_sweep, functools.partial(lattice_sweep, **arcs)):
            with pytest.raises(ValueError, match=r"ASR_JAX_EXTRAS=kernels "):
                call(*(given if call is ctc_sweep else (weights, start)), implementation="triton")


PROGRAMS = {
    "ctc": (ctc_sweep, for_ctc, (400, 32, 60, 2)),
    "long ctc": (ctc_sweep, for_ctc, (2000, 3, 300, 1)),
    "rnnt": (
        functools.partial(lattice_sweep, spans=RNNT[0], moves=RNNT[1]), functools.partial(for_lattices, num_arcs=2),
        (375, 16, 75, 2),
    ),
    "tdt": (
        functools.partial(lattice_sweep, spans=TDT[0], moves=TDT[1]), functools.partial(for_lattices, num_arcs=5),
        (375, 16, 75, 2),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("device", "implementation"), [("v5e", "mosaic_tpu"), ("h100", "triton")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compile_for_their_devices(name, device, implementation):
    function, drawn, sizes = PROGRAMS[name]
    if (name, implementation) == ("tdt", "triton"):
        pytest.skip("triton has arcs of RNN-T alone")
    call = functools.partial(function, implementation=implementation)
    text = compiled_for(device, call, *drawn(*sizes)).as_text()
    assert "custom-call" in text
    assert "while" not in text

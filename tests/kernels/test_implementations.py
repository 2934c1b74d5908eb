"""Selection of kernels by a setting."""

import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from asr_jax.config import Training
from asr_jax.core.collectives import BY_ROWS, on_each_device
from asr_jax.core.devices import TracedFor, _traced_for, tracing_for
from asr_jax.core.meshes import MeshSizes
from asr_jax.kernels import implementations
from asr_jax.kernels.ctc_sweep.api import ctc_sweep
from asr_jax.kernels.implementations import (
    SELECTABLE,
    CannotCompute,
    module_of,
    preferred,
    selected,
    selected_kernels,
)  # fmt: skip
from tests.kernels.triton_compared import COMPARED

KERNELS = selected_kernels(("glu=triton", "ctc_sweep=mosaic_tpu"))


def test_a_kernel_is_selected_for_its_devices() -> None:
    with _traced_for(TracedFor("gpu", 1, 90, KERNELS)):
        assert preferred("glu") == "triton"
        assert preferred("ctc_sweep") == ""  # the selected kernel is for TPUs
        assert preferred("swoosh") == ""
        assert selected("glu", "reference") == "reference"
    with tracing_for(jax.devices()[:1], KERNELS):
        assert preferred("glu") == ""


@pytest.mark.parametrize("kernel", SELECTABLE)
def test_each_kernel_that_can_be_selected_exists(kernel: str) -> None:
    """Triton need not be installed: its modules are found and not imported."""
    assert module_of(kernel, "reference").__name__ == f"asr_jax.kernels.{kernel}.reference"
    for implementation in implementations.KERNELS:
        assert importlib.util.find_spec(f"asr_jax.kernels.{kernel}.{implementation}"), implementation
    assert importlib.import_module(f"asr_jax.kernels.{kernel}.mosaic_tpu")


def test_each_kernel_for_gpus_is_compared_with_its_reference() -> None:
    assert {*COMPARED} == {path.parent.name for path in Path(implementations.__file__).parent.glob("*/triton.py")}


@pytest.mark.parametrize("text", ["glu", "glu=xla", "softmax=triton", "glu = triton"])
def test_unknown_kernels_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="NAME=IMPLEMENTATION"):
        Training(num_updates=1, kernels=(text,))


def test_a_kernel_is_selected_once() -> None:
    with pytest.raises(ValueError, match="each kernel once"):
        selected_kernels(("glu=triton", "glu=mosaic_tpu"))


V5E = "TPU v5 lite"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are the fastest on a v5e, an H100 and a CPU."""
    table = {
        "v5e": {"glu": "mosaic_tpu", "ctc_sweep": "mosaic_tpu"}, "h100": {"glu": "triton"}, "cpu": {"glu": "triton"}
    }  # fmt: skip
    monkeypatch.setattr(implementations, "fastest", lambda: table)
    monkeypatch.setattr(implementations, "_is_installed", lambda name: True)


def test_auto_is_the_fastest_kernel_of_the_device(measured: None) -> None:
    x = jnp.zeros((2, 3))
    for devices, expected in (
        (TracedFor("tpu", 1, kind=V5E), "mosaic_tpu"),
        (TracedFor("gpu", 1, 90, kind="NVIDIA H100 80GB HBM3"), "triton"),
        (TracedFor("tpu", 1, kind="TPU v6 lite"), ""),  # not measured
        (TracedFor("tpu", 1), ""),  # outside of tracing_for
        (TracedFor("gpu", 1, 90, (("glu", "triton"),), V5E), "triton"),  # the setting
    ):
        with _traced_for(devices):
            assert preferred("glu", x) == expected
            assert selected("glu", "reference", x) == "reference"


def test_auto_is_no_kernel_that_cannot_compute_the_arrays(measured: None) -> None:
    with _traced_for(TracedFor("tpu", 1, kind=V5E)):
        assert preferred("glu", reason_against=lambda name: "3 channels") == ""
        assert preferred("glu", jnp.zeros(4, jnp.float16)) == ""  # not measured
        # The kernel is for float32, so that "auto" is the reference, and the name is refused.
        given = jnp.zeros((2, 1, 3), jnp.bfloat16), jnp.ones((1, 1, 1), jnp.int32), jnp.ones(1, jnp.int32)
        assert ctc_sweep(*given)[0].shape == (1,)
        with pytest.raises(CannotCompute, match="expected float32 for mosaic_tpu, or reference"):
            ctc_sweep(*given, implementation="mosaic_tpu")
    large = jax.ShapeDtypeStruct((2, 2**30), jnp.bfloat16)
    with _traced_for(TracedFor("gpu", 1, 90, kind="NVIDIA H100 80GB HBM3")):
        assert preferred("glu", large) == ""
        with pytest.raises(
            CannotCompute, match="2,147,483,648 elements: expected at most 2,147,418,112 for triton, or reference"
        ):
            selected("glu", "triton", large)


def test_auto_needs_triton_to_be_installed(measured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementations, "_is_installed", lambda name: False)
    with _traced_for(TracedFor("gpu", 1, 90, kind="NVIDIA H100 80GB HBM3")):
        assert preferred("glu") == ""


@pytest.mark.parametrize(("sizes", "inside"), [(MeshSizes(data=2), "triton"), (MeshSizes(data=2, model=2), "")])
def test_auto_is_a_kernel_where_each_device_computes_its_own_rows(
    sizes: MeshSizes, inside: str, measured: None
) -> None:
    """XLA cannot spread a kernel over devices."""
    found, mesh = list[str](), sizes.mesh(list(jax.devices()[: sizes.data * sizes.model]))

    def of_rows(same: Any, rows: Any) -> Any:
        found.append(preferred("glu", rows))
        return rows

    def whole(rows: Any) -> Any:
        with tracing_for(list(mesh.devices.flat)):
            found.append(preferred("glu", rows))
            return on_each_device(of_rows, mesh, BY_ROWS)((), rows)

    jax.jit(whole).lower(jnp.zeros((4, 6)))
    assert found == ["", inside]

"""Selection of kernels by a setting."""

import importlib.util
from pathlib import Path

import jax
import pytest

from asr_jax.config import Training
from asr_jax.core.devices import TracedFor, _traced_for, tracing_for
from asr_jax.kernels import implementations
from asr_jax.kernels.implementations import SELECTABLE, module_of, selected, selected_kernels
from tests.kernels.triton_compared import COMPARED

KERNELS = selected_kernels(("glu=triton", "ctc_sweep=mosaic_tpu"))


def test_a_kernel_is_selected_for_its_devices() -> None:
    with _traced_for(TracedFor("gpu", 1, 90, KERNELS)):
        assert selected("glu", "auto", "reference") == "triton"
        assert selected("ctc_sweep", "auto", "scan") == "scan"  # the selected kernel is for TPUs
        assert selected("swoosh", "auto", "reference") == "reference"
        assert selected("glu", "reference", "reference") == "reference"
    with tracing_for(jax.devices()[:1], KERNELS):
        assert selected("glu", "auto", "reference") == "reference"


@pytest.mark.parametrize("kernel", SELECTABLE)
def test_each_kernel_that_can_be_selected_exists(kernel: str) -> None:
    """Triton need not be installed: its modules are found and not imported."""
    assert module_of(kernel, "default", "default").__name__ == f"asr_jax.kernels.{kernel}.reference"
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

"""Names of devices to compile for; their compilers are not part of the test environment."""

import importlib.util

import jax
import pytest

from asr_jax.core.devices import traced_for, tracing_for
from asr_jax.core.environment import GPU_SHARE
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import abstract, data_mesh, replicated
from asr_jax.core.programs import Programs
from asr_jax.core.targets import ACCELERATORS, DEVICE_KINDS, Target, accelerator_of, target_of
from tests.support import approx


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h1000", "'h1000' is not known.*h100, .*did you mean 'h100'"),
        ("h100:4x4", "'4x4' is not a number of GPUs"),
        ("h100:", "'' is not a number of GPUs"),
        ("v5e:8", "'8' is not a topology"),
        ("cpu:4", "expected cpu, which is all devices"),
    ],
)
def test_unknown_targets_are_named(name, message):
    with pytest.raises(UserError, match=message):
        target_of(name)


@pytest.mark.parametrize(("name", "package"), [("v5e", "libtpu"), ("h100", "jax_plugins.xla_cuda12")])
def test_a_compiler_that_is_not_installed_is_named_with_its_extra(name, package, monkeypatch):
    if importlib.util.find_spec("jax_plugins") or importlib.util.find_spec("libtpu"):
        pytest.skip(f"this environment has the compiler {package}")
    with pytest.raises(UserError, match="is not installed: ASR_JAX_EXTRAS="):
        target_of(name)


def test_accelerators_have_the_names_of_present_devices():
    assert accelerator_of("NVIDIA H100 80GB HBM3") == ACCELERATORS["h100"]
    assert accelerator_of("TPU v5 lite") == ACCELERATORS["v5e"]
    assert accelerator_of("cpu") is None
    assert set(DEVICE_KINDS.values()) <= set(ACCELERATORS)


def test_a_gpu_has_the_memory_that_jax_allocates(monkeypatch):
    target = Target("h100", ACCELERATORS["h100"], data_mesh(1))
    monkeypatch.setenv(GPU_SHARE, "0.5")
    assert target.memory_bytes == approx(84.9e9 / 2)


def test_the_devices_of_this_machine_are_a_target():
    target = target_of("CPU")
    assert target.name == "cpu"
    assert target.mesh == data_mesh()
    assert target.one.size == 1
    assert target.memory_bytes > 1e8


def test_functions_are_traced_for_the_devices_of_their_arguments():
    traced = []

    @jax.jit
    def inner(x):
        traced.append(traced_for())
        return x + 1

    for devices in (1, 4, 1):
        x = abstract(jax.ShapeDtypeStruct((4,), "float32"), replicated(data_mesh(devices)))
        Programs().lower("inner", inner, x)
    assert [each.number for each in traced] == [1, 4]  # the second trace for one device comes from JAX's cache
    with tracing_for(list(data_mesh(2).devices.flat)):
        assert traced_for() == ("cpu", 2, 0, (), "cpu")
    assert traced_for() == ("cpu", len(jax.devices()), 0, (), "")

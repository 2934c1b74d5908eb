"""Figures of a device, and the kernels that they select for `implementation="auto"`."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from asr_jax.core.devices import TracedFor, _traced_for
from asr_jax.core.errors import UserError
from asr_jax.kernels import implementations
from asr_jax.kernels.ctc_sweep.api import ctc_sweep
from asr_jax.kernels.implementations import selected
from benchmarks import device_results

DEVICE = "TPU v5 lite"


def figures(precision: str, **ms: dict[str, float]) -> dict[str, Any]:
    """Figures of `asr_jax.benchmark kernels`: times of the implementations by operation."""
    rows = [
        {"kernel": name.split(" ")[0], "operation": name, "implementation": each, "ms": time, "times_s": [time] * 3}
        for name, times in ms.items()
        for each, time in times.items()
    ]
    return {"device": DEVICE, "precision": precision, "rows": rows, "refused": []}


FAST = {"glu": {"reference": 2.0, "mosaic_tpu": 1.0}, "glu with gradient": {"reference": 5.0, "mosaic_tpu": 4.0}}
CASES = {
    "faster everywhere": ({}, {"glu": "mosaic_tpu"}),
    "slower with gradient": ({"glu with gradient": {"reference": 3.0, "mosaic_tpu": 4.0}}, {}),
    "refused in one operation": ({"glu of channels": {"reference": 3.0}}, {}),
    "not selectable": ({"masking": {"reference": 2.0, "mosaic_tpu": 1.0}}, {"glu": "mosaic_tpu"}),
}


@pytest.mark.parametrize(("more", "expected"), CASES.values(), ids=CASES)
def test_a_kernel_is_the_fastest_if_it_is_in_all_operations_and_precisions(
    more: dict[str, Any], expected: dict[str, str], tmp_path: Path
) -> None:
    for precision, ms in (("f32", FAST), ("bf16", FAST | more)):
        (tmp_path / f"kernels_{precision}.json").write_text(json.dumps(figures(precision, **ms)))
    path = device_results.collect(tmp_path, tmp_path)
    assert path.name == "tpu-v5-lite.json"
    content = json.loads(path.read_text())
    assert "times_s" not in path.read_text()
    assert device_results.fastest([content]) == ({DEVICE: expected} if expected else {})


def test_figures_of_several_devices_are_refused(tmp_path: Path) -> None:
    (tmp_path / "frontend.json").write_text('{"device": "NVIDIA H100 80GB HBM3", "times_s": {"icefall": 1.0}}')
    (tmp_path / "omitted.txt").write_text("train_zipformer: no time left\n")
    content = json.loads(device_results.collect(tmp_path, tmp_path).read_text())
    assert content["omitted"] == ["train_zipformer: no time left"]
    assert content["figures"]["frontend"]["times_s"] == {"icefall": 1.0}
    (tmp_path / "inference.json").write_text('{"machine": {"device": "cpu"}}')
    with pytest.raises(UserError, match="figures of 2 devices: expected those of one device"):
        device_results.collect(tmp_path, tmp_path)


def test_the_committed_table_is_that_of_the_committed_benchmarks() -> None:
    files = [json.loads(path.read_text()) for path in device_results.device_files()]
    assert json.loads(implementations.FASTEST.read_text()) == device_results.fastest(files)


def test_auto_is_the_fastest_kernel_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {DEVICE: {"glu": "mosaic_tpu", "ctc_sweep": "mosaic_tpu"}}
    monkeypatch.setattr(implementations, "fastest", lambda: table)
    for devices, expected in (
        (TracedFor("tpu", 1, kind=DEVICE), "mosaic_tpu"),
        (TracedFor("tpu", 1, kind="TPU v6 lite"), "reference"),  # not measured
        (TracedFor("tpu", 4, kind=DEVICE), "reference"),  # XLA cannot spread the kernel over devices
    ):
        with _traced_for(devices):
            assert selected("glu", "auto", "reference") == expected
            assert selected("glu", "reference", "reference") == "reference"
    with _traced_for(TracedFor("tpu", 1, kind=DEVICE)):
        assert selected("glu", "auto", "reference", lambda name: "3 channels: expected 4") == "reference"
        # The kernel is for float32, so that "auto" falls back, and the name is refused.
        given = jnp.zeros((2, 1, 3), jnp.bfloat16), jnp.ones((1, 1, 1), jnp.int32), jnp.ones(1, jnp.int32)
        assert ctc_sweep(*given)[0].shape == (1,)
        with pytest.raises(ValueError, match="expected float32 for mosaic_tpu, or scan"):
            ctc_sweep(*given, implementation="mosaic_tpu")


def test_auto_needs_triton_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementations, "fastest", lambda: {"H": {"glu": "triton"}})
    for is_installed, expected in ((True, "triton"), (False, "reference")):
        monkeypatch.setattr(implementations, "_is_installed", lambda name, found=is_installed: found)
        with _traced_for(TracedFor("gpu", 1, 90, kind="H")):
            assert selected("glu", "auto", "reference") == expected

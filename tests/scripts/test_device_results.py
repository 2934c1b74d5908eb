"""Figures of a device, and the kernels that are the fastest by them."""

import json
from pathlib import Path
from typing import Any

import pytest

from asr_jax.core.errors import UserError
from asr_jax.kernels import implementations
from benchmarks import device_results

DEVICE = "TPU v5 lite"
PASSED = "13 passed, 2 skipped, 6000 deselected in 60.00s"


def figures(precision: str, **ms: dict[str, float]) -> dict[str, Any]:
    """Figures of `asr_jax.benchmark kernels`: times of the implementations by operation."""
    rows = [
        {"kernel": name.split(" ")[0], "operation": name, "implementation": each, "ms": time, "times_s": [time] * 3}
        for name, times in ms.items()
        for each, time in times.items()
    ]
    return {"device": DEVICE, "precision": precision, "is_complete": True, "rows": rows, "omitted": []}


FAST = {"glu": {"reference": 2.0, "mosaic_tpu": 1.0}, "glu with gradient": {"reference": 5.0, "mosaic_tpu": 3.9}}
CASES: dict[str, tuple[dict[str, Any] | None, str, dict[str, str]]] = {
    "faster everywhere": ({}, PASSED, {"glu": "mosaic_tpu"}),
    "slower with gradient": ({"glu with gradient": {"reference": 3.0, "mosaic_tpu": 4.0}}, PASSED, {}),
    "little faster with gradient": ({"glu with gradient": {"reference": 5.0, "mosaic_tpu": 4.1}}, PASSED, {}),
    "not computed in one operation": ({"glu of channels": {"reference": 3.0}}, PASSED, {}),
    "not selectable": ({"relative_attention": {"reference": 2.0, "mosaic_tpu": 1.0}}, PASSED, {"glu": "mosaic_tpu"}),
    "one precision": (None, PASSED, {}),
    "failed tests": ({}, "1 failed, 12 passed in 60.00s", {}),
    "no tests": ({}, "13 skipped in 1.00s", {}),
}


@pytest.mark.parametrize(("more", "tests", "expected"), CASES.values(), ids=CASES)
def test_a_kernel_is_the_fastest_if_it_is_in_all_operations_and_precisions(
    more: dict[str, Any] | None, tests: str, expected: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tests.txt").write_text(f"...\n{tests}\n")
    (tmp_path / "kernels_f32.json").write_text(json.dumps(figures("f32", **FAST)))
    if more is not None:
        (tmp_path / "kernels_bf16.json").write_text(json.dumps(figures("bf16", **(FAST | more))))
    path = device_results.collect(tmp_path, tmp_path / "out")
    assert path.name == "v5e.json"
    assert "times_s" not in path.read_text()
    content = json.loads(path.read_text())
    assert device_results.fastest([content]) == ({"v5e": expected} if expected else {})


def test_figures_that_were_cut_off_select_no_kernel() -> None:
    whole, cut = figures("f32", **FAST), figures("bf16", **FAST) | {"is_complete": False}
    content = {"device": DEVICE, "tests": [PASSED], "figures": {"kernels_f32": whole, "kernels_bf16": cut}}
    assert device_results.fastest([content]) == {}
    cut["is_complete"] = True
    assert device_results.fastest([content]) == {"v5e": {"glu": "mosaic_tpu"}}


def test_parts_of_several_calls_are_joined(tmp_path: Path) -> None:
    """A second call measures a part that had been omitted."""
    first, second, out = (tmp_path / name for name in ("first", "second", "out"))
    first.mkdir()
    second.mkdir()
    machine = {"machine": {"device": "NVIDIA H200"}}
    (first / "frontend.json").write_text('{"device": "NVIDIA H200", "times_s": {"icefall": 1.0}}')
    (first / "decoding.json").write_text('{"cores": 16}')
    (first / "train_broken.json").write_text('{"machine": ')
    (first / "tests.txt").write_text(f"{PASSED}\n")
    (first / "omitted.txt").write_text("train_zipformer: no time left\n")
    content = json.loads(device_results.collect(first, out).read_text())
    assert content["omitted"] == ["train_zipformer: no time left", "train_broken: train_broken.json is not JSON"]
    frontend = {"device": "NVIDIA H200", "times_s": {"icefall": 1.0}}
    assert content["figures"] == {"decoding": {"cores": 16}, "frontend": frontend}
    (second / "train_zipformer.json").write_text(json.dumps(machine))
    path = device_results.collect(second, out)
    content = json.loads(path.read_text())
    assert path.name == "h200.json"
    assert content["omitted"] == ["train_broken: train_broken.json is not JSON"]
    assert {*content["figures"]} == {"decoding", "frontend", "train_zipformer"}
    assert content["figures"]["train_zipformer"]["planned_for_h100"] == device_results.planned("zipformer")
    assert content["tests"] == [PASSED]
    path.write_text(json.dumps(content | {"sources": "of another version"}))
    assert {*json.loads(device_results.collect(second, out).read_text())["figures"]} == {"train_zipformer"}


def test_figures_of_several_devices_are_refused(tmp_path: Path) -> None:
    (tmp_path / "frontend.json").write_text('{"device": "NVIDIA H200"}')
    (tmp_path / "inference.json").write_text('{"machine": {"device": "cpu"}}')
    with pytest.raises(UserError, match="the figures are of NVIDIA H200, cpu; expected figures of one device"):
        device_results.collect(tmp_path, tmp_path)


def test_the_committed_table_is_that_of_the_committed_benchmarks() -> None:
    files = [json.loads(path.read_text()) for path in device_results.device_files()]
    assert json.loads(implementations.FASTEST.read_text()) == device_results.fastest(files)

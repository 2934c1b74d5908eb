"""The formulae of docs/scale.md, against values computed by hand, and its figures."""

import json

import pytest

from asr_jax.core.targets import ACCELERATORS
from benchmarks import scale
from tests.support import approx


def test_bytes_of_an_update():
    assert scale.all_reduce_bytes(1e6, 1) == scale.fsdp_bytes(1e6, 1) == 0
    assert scale.all_reduce_bytes(1e6, 8) == 7e6  # 2 x 7/8 x 4 MB
    assert scale.fsdp_bytes(1e6, 8) == 10.5e6  # 3 x 7/8 x 4 MB
    assert scale.all_reduce_bytes(1e6, 512) == 7_984_375  # 8 MB without 1/512


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("8 × H100", 450),
        ("64 × H100", 400),
        ("512 × H100", 400),
        ("8 × A100", 300),
        ("64 × A100", 200),
        ("v5e-256", 200),
    ],
)
def test_a_ring_has_the_bandwidth_of_its_slowest_link(name, gb_per_s):
    assert scale.SYSTEMS[name].ring_gb_per_s == gb_per_s


@pytest.mark.parametrize(("communication_s", "after", "during"), [(1.0, 4.0, 3.0), (2.0, 5.0, 3.0), (5.0, 8.0, 6.0)])
def test_an_update_with_and_without_overlap(communication_s, after, during):
    """The gradient takes 3 s, of which the backward pass takes 2 s."""
    assert scale.update_s(3.0, communication_s, overlaps=False) == after
    assert scale.update_s(3.0, communication_s, overlaps=True) == approx(during)


def test_the_batch_whose_gradient_takes_as_long_as_its_all_reduce():
    gradient = {"TFLOP": 19.78, "GB moved": 33.5, "audio_s": 100.0}  # 20 ms of products, 10 ms of memory
    per_audio_s = scale.compute_s_per_audio_s(gradient, ACCELERATORS["h100"])
    assert per_audio_s == approx(2e-4)
    assert scale.least_batch_s(0.002, per_audio_s, 64) == approx(640)  # 10 s on each of 64 devices
    moved = gradient | {"GB moved": 134.0}
    assert scale.compute_s_per_audio_s(moved, ACCELERATORS["h100"]) == approx(4e-4)


def test_figures_are_up_to_date():
    found = json.loads((scale.RESULTS / "scale.json").read_text())["systems"]
    expected = [scale.on_system(config, of, name) for config, of in scale.gradients().items() for name in scale.SYSTEMS]
    assert len(found) == len(expected), "run python -m benchmarks.scale"
    for each, now in zip(found, expected, strict=True):
        assert each == approx(now), "run python -m benchmarks.scale"


def test_plans_of_many_processes_divide_the_rows_and_not_the_plan():
    alone, one_of_eight = (scale.plan_of_process(2000, num) for num in (1, 8))
    assert alone["batches"] > 4 * one_of_eight["batches"]
    assert 0 < one_of_eight["rows"] < 2 * alone["rows"]

"""The benchmark of kernels on a CPU, which has XLA's implementations alone."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.cli.benchmark import kernels
from asr_jax.core import targets
from asr_jax.core.errors import UserError
from asr_jax.kernels import cases
from asr_jax.kernels.implementations import CannotCompute
from tests.support import approx

SIZES = {"batch": 2, "seq-len": 12, "channels": 4, "labels": 3, "vocab-size": 5, "taps": 3, "heads": 2}
SMALL = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]


def test_each_implementation_has_its_figures(tmp_path, capsys):
    out = tmp_path / "kernels.json"
    names = ["depthwise_conv", "ctc_sweep"]
    kernels.main([*SMALL, "--iterations", "2", "--warm-ups", "1", "--json", str(out), "--operations", *names])
    rows = json.loads(out.read_text())["rows"]
    found = {(row["operation"], row["implementation"]) for row in rows}
    assert {
        ("depthwise_conv", "reference"),
        ("depthwise_conv with gradient", "xla"),
        ("ctc_sweep", "reference"),
    } <= found
    assert {name.removesuffix(" with gradient") for name, _ in found} == {*names}
    assert all(len(row["times_s"]) == 2 and row["ms"] > 0 and row["MB"] > 0 for row in rows)
    product = next(row for row in rows if (row["operation"], row["implementation"]) == ("depthwise_conv", "reference"))
    assert product["GFLOP of products"] == approx(2 * 2 * 12 * 4 * 3 / 1e9)
    assert "ctc_sweep" in capsys.readouterr().out


@pytest.mark.slow
def test_attention_and_lattices_have_figures_too(tmp_path):
    out = tmp_path / "kernels.json"
    names = ["relative_attention", "lattice_sweep"]
    kernels.main([*SMALL, "--iterations", "2", "--warm-ups", "1", "--json", str(out), "--operations", *names])
    found = {(row["operation"], row["implementation"]) for row in json.loads(out.read_text())["rows"]}
    assert ("relative_attention with gradient", "xla") in found
    assert {name.removesuffix(" with gradient") for name, _ in found} == {*names}


def test_the_limit_is_that_of_arguments_results_and_products(monkeypatch, tmp_path):
    monkeypatch.setattr(targets, "accelerator_of", lambda kind: targets.Accelerator("gpu", kind, 1.0, 1e-3, 1e-3))
    out = tmp_path / "kernels.json"
    kernels.main([*SMALL, "--iterations", "2", "--precision", "bf16", "--json", str(out), "--operations", "swoosh_l"])
    value, gradient = json.loads(out.read_text())["rows"]
    values = 2 * 12 * 4 * 2 / 1e6
    assert (value["MB at least"], gradient["MB at least"]) == approx((2 * values, 4 * values))
    assert value["of the limit"] == f"{1000 * 2 * values / value['ms']:.0%}"  # of 1 MB per second


def test_sizes_are_checked():
    with pytest.raises(UserError, match="seq_len is 0: expected at least 1"):
        kernels.main(["--seq-len", "0"])
    with pytest.raises(UserError, match=r"--operations softmax: expected names of swoosh_l, .*, transducer_joint"):
        kernels.main([*SMALL, "--operations", "softmax"])
    with pytest.raises(UserError, match="heads is 3: expected a divisor of channels, 512"):
        kernels.main(["--heads", "3"])


def test_the_others_are_measured_if_an_implementation_fails(monkeypatch, tmp_path, capsys):
    def softmax(x, *, implementation):
        if implementation == "triton":
            raise CannotCompute("3 frames: expected at most 2")
        if implementation == "mosaic_tpu":
            raise RuntimeError("no shared memory\nat line 3")
        return jnp.sin(x)

    case = cases.Case("softmax", softmax, (np.ones(3, np.float32),), 1, ("reference", "triton", "mosaic_tpu"))
    monkeypatch.setattr(cases, "cases", lambda *given, **options: {"softmax": case})
    out = tmp_path / "kernels.json"
    with pytest.raises(UserError, match=r"failed, .*: softmax, mosaic_tpu; softmax with gradient, mosaic_tpu"):
        kernels.main([*SMALL, "--iterations", "1", "--json", str(out)])
    figures = json.loads(out.read_text())
    assert [row["operation"] for row in figures["rows"]] == ["softmax", "softmax with gradient"]
    assert [each["reason"] for each in figures["omitted"][::2]] == [
        "CannotCompute: 3 frames: expected at most 2", "RuntimeError: no shared memory",
    ]  # fmt: skip
    assert "softmax, triton: not measured: CannotCompute: 3 frames" in capsys.readouterr().err

"""The benchmark of kernels on a CPU, which has XLA's implementations alone."""

import json

import pytest

from asr_jax.cli.benchmark import kernels
from asr_jax.core.errors import UserError

SMALL = [
    "--batch",
    "2",
    "--seq-len",
    "12",
    "--channels",
    "4",
    "--labels",
    "3",
    "--vocab-size",
    "5",
    "--taps",
    "3",
    "--heads",
    "2",
]


def test_each_implementation_has_its_figures(tmp_path, capsys):
    out = tmp_path / "kernels.json"
    names = ["depthwise_conv", "ctc_sweep", "relative_attention", "lattice_sweep"]
    kernels.main([*SMALL, "--iterations", "2", "--warm-ups", "1", "--json", str(out), "--operations", *names])
    rows = json.loads(out.read_text())["rows"]
    found = {(row["operation"], row["implementation"]) for row in rows}
    assert {("depthwise_conv", "lax"), ("depthwise_conv with gradient", "shifted"), ("ctc_sweep", "scan")} <= found
    assert ("relative_attention with gradient", "xla") in found
    assert {name.removesuffix(" with gradient") for name, _ in found} == {*names}
    assert all(len(row["times_s"]) == 2 and row["ms"] > 0 and row["MB"] > 0 for row in rows)
    product = next(row for row in rows if (row["operation"], row["implementation"]) == ("depthwise_conv", "lax"))
    assert product["GFLOP of products"] == pytest.approx(2 * 2 * 12 * 4 * 3 / 1e9)
    assert "lattice_sweep" in capsys.readouterr().out


def test_sizes_are_checked():
    with pytest.raises(UserError, match="--seq-len 0: expected at least 1"):
        kernels.main(["--seq-len", "0"])
    with pytest.raises(UserError, match=r"--operations softmax: expected names of swoosh_l, .*, transducer_joint"):
        kernels.main([*SMALL, "--operations", "softmax"])
    with pytest.raises(UserError, match="--heads 3: expected a divisor of --channels 512"):
        kernels.main(["--heads", "3"])

"""Figures over several runs, against NVIDIA's published tables of training stability."""

import json

from asr_jax.cli.over_runs import over_runs, show_over_runs
from tests.support import approx

QUARTZNET = {
    "dev-clean": ((3.57, 3.48, 3.54, 3.48, 3.47, 3.69, 3.51, 3.59), 3.54, 0.07),
    "dev-other": ((10.68, 10.78, 10.47, 10.72, 10.84, 11.03, 10.67, 10.86), 10.76, 0.15),
    "test-clean": ((3.70, 3.82, 3.79, 3.84, 3.69, 4.03, 3.82, 3.80), 3.81, 0.10),
    "test-other": ((10.75, 10.62, 10.54, 10.90, 10.69, 11.14, 10.41, 10.82), 10.73, 0.21),
}
"""WER of eight seeds, and their mean and standard deviation as NVIDIA states them for QuartzNet."""


def of_rates():
    return [
        {
            "run": f"runs/seed-{seed}", "checkpoint": 9, "head": "ctc", "decoding": "greedy",
            "sets": {name: {"wer": wers[seed] / 100, "cer": None} for name, (wers, _, _) in QUARTZNET.items()},
        }
        for seed in range(8)
    ]  # fmt: skip


def test_mean_and_standard_deviation_are_those_of_nvidias_table():
    rows = over_runs(of_rates())
    assert [(row["set"], row["measure"], row["runs"]) for row in rows] == [(name, "wer", 8) for name in QUARTZNET]
    for row, (wers, mean, std) in zip(rows, QUARTZNET.values(), strict=True):
        assert round(100 * row["mean"], 2) == mean
        assert round(100 * row["std"], 2) == std
        assert 100 * row["best"] == approx(min(wers))
        assert row["best_run"] == f"runs/seed-{wers.index(min(wers))} 9"
        assert 100 * row["worst"] == approx(max(wers))
        assert row["worst_run"] == f"runs/seed-{wers.index(max(wers))} 9"
        assert 100 * row["median"] == approx((sorted(wers)[3] + sorted(wers)[4]) / 2)
    json.dumps(rows, allow_nan=False)


def test_the_table(capsys):
    show_over_runs(over_runs(of_rates()))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["set", "measure", "runs", "mean", "std", "best", "worst", "median"]
    expected = "dev-clean wer 8 3.54 % 0.07 % 3.47 % 3.69 % 3.53 %"
    assert " ".join(next(line for line in lines if "dev-clean" in line).split()) == expected
    show_over_runs(over_runs(of_rates()[:1]))
    assert not capsys.readouterr().out


def test_the_highest_accuracy_is_the_best():
    results = [
        {"run": f"r{n}", "checkpoint": 1, "sets": {"v": {"loss": loss, "metrics": {"pretrain/accuracy": accuracy}}}}
        for n, (loss, accuracy) in enumerate([(5.0, 0.4), (4.0, 0.6), (6.0, 0.3)])
    ]
    loss, accuracy = over_runs(results)
    assert (loss["measure"], loss["best"], loss["worst"], loss["median"]) == ("loss", 4.0, 6.0, 5.0)
    assert (accuracy["measure"], accuracy["best"], accuracy["worst"]) == ("pretrain/accuracy", 0.6, 0.3)
    assert (accuracy["best_run"], accuracy["worst_run"]) == ("r1 1", "r2 1")


def test_heads_are_not_mixed():
    results = [result | {"head": head} for result in of_rates()[:2] for head in ("ctc", "other")]
    rows = over_runs(results)
    assert [(row["head"], row["runs"]) for row in rows] == [("ctc", 2)] * 4 + [("other", 2)] * 4

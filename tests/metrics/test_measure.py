"""Figures of several validation sets, and those that choose the best checkpoint."""

import math

import pytest

from asr_jax.metrics.measure import by_set, deciding, deciding_text, mean_of, measure_of, rate_of, without_value
from tests.support import approx

CLEAN = {"wer": 0.1, "cer": 0.05, "loss": 2.0, "words": 90, "utterances": 9}
OTHER = {"wer": 0.4, "cer": 0.15, "loss": 4.0, "words": 30, "utterances": 3}


def figures(best_of, clean=CLEAN, other=OTHER):
    sets = {"clean": clean, "other": other}
    return {"wer": 0.175, "utterances": 12, "sets": sets, "mean": mean_of(sets.values()), "best_of": best_of}


def test_the_mean_is_that_of_the_sets_not_of_their_words():
    assert mean_of([CLEAN, OTHER]) == approx({"wer": 0.25, "cer": 0.1, "loss": 3.0})
    assert mean_of([{"loss": 2.0}, {"loss": math.nan}])["loss"] != 2.0
    assert mean_of([CLEAN, {"wer": None}]) == {"wer": None}
    assert mean_of([CLEAN, {}]) == {}


@pytest.mark.parametrize(
    ("best_of", "wer", "text"),
    [
        ("all", 0.175, "WER 17.50 %"), ("mean", 0.25, "WER 25.00 % (mean)"), ("clean", 0.1, "WER 10.00 % (clean)"),
        ("other", 0.4, "WER 40.00 % (other)"),
    ],
)  # fmt: skip
def test_the_figures_that_choose(best_of, wer, text):
    found = figures(best_of)
    assert deciding(found)["wer"] == approx(wer)
    assert deciding_text(found) == text
    assert list(by_set(found)) == ["clean", "other", "mean", "all"]
    assert "sets" not in by_set(found)["all"]


def test_one_set_is_all_there_is():
    assert by_set(CLEAN) == {"all": CLEAN}
    assert deciding(CLEAN) == CLEAN
    assert deciding_text({"loss": 2.5}) == "loss 2.5"


def test_sets_of_which_nothing_was_measured():
    nothing = {"wer": None, "utterances": 3}
    found = {best_of: without_value(figures(best_of, other=nothing)) for best_of in ("all", "mean", "clean", "other")}
    assert found == {"all": [], "mean": ["other"], "clean": [], "other": ["other"]}
    assert (
        without_value({"wer": None, "utterances": 3}) == without_value({"loss": math.nan, "utterances": 0}) == ["all"]
    )
    assert without_value(figures("mean", clean={}, other={})) == ["clean", "other"]


def test_texts_without_spaces_are_judged_by_characters():
    assert rate_of(["今天天气很好", "ok"]) == rate_of(["ผมชื่อสมชาย"]) == "cer"
    assert rate_of(["one two", "今天"]) == rate_of(["one"]) == rate_of([]) == "wer"
    found = {"wer": 0.5, "cer": 0.25, "measure": "cer", "utterances": 2}
    assert (measure_of(found), deciding_text(found)) == ("cer", "CER 25.00 %")
    assert without_value(found | {"cer": None}) == ["all"]
    assert (measure_of({"cer": 0.1}), measure_of({"loss": 2.0, "wer": 0.1}), measure_of({"loss": 2.0})) == (
        "cer", "wer", "loss"
    )  # fmt: skip
    sets = figures("mean") | {"measure": "cer"}
    assert deciding_text(sets) == "CER 10.00 % (mean)"

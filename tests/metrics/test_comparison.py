"""Two systems on the same utterances: results by hand, swapped systems, paired resampling, and errors."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from asr_jax.core.errors import UserError
from asr_jax.metrics.bootstrap import Bootstrap
from asr_jax.metrics.comparison import compare
from asr_jax.metrics.scoring import Recognised, score
from tests.support import approx

ONE = [Recognised("1", "a b c d", "a b c d"), Recognised("2", "e f", "x y"), Recognised("alone", "g", "g")]
OTHER = [Recognised("2", "E f", "e F"), Recognised("1", "a b c d", "a B c x"), Recognised("new", "g", "g")]


def system(error_rate, *, seed, num=200):
    choose = random.Random(seed)
    return [
        Recognised(
            str(row), "a b c d e f g h", " ".join("x" if choose.random() < error_rate else w for w in "abcdefgh"),
            speaker=str(row % 20),
        )
        for row in range(num)
    ]  # fmt: skip


def test_figures_by_hand():
    found = compare(ONE, OTHER, normaliser="lower.v1")
    assert (found["first"]["wer"], found["second"]["wer"]) == (2 / 6, 1 / 6)
    assert found["difference"]["wer"] == -1 / 6
    assert found["matched_pairs"] == {
        "segments": 2,
        "mean_difference": -0.5,
        "z": approx(-1 / 3),  # mean -0.5, deviation sqrt(4.5), two segments: -2 and 1
        "p_value": approx(0.738883, abs=1e-6),
    }
    assert [(row["id"], row["first_errors"], row["second_errors"]) for row in found["differing"]] == [
        ("2", 2, 0),
        ("1", 0, 1),
    ]
    assert found["differing"][0] | {"first": "x y", "second": "e f", "reference": "e f"} == found["differing"][0]
    assert (found["only_first_ids"], found["only_second_ids"]) == (["alone"], ["new"])
    assert [found[name]["normaliser"] for name in ("first", "second")] == ["lower.v1"] * 2
    assert len(compare(ONE, OTHER, normaliser="lower.v1", num_shown=1)["differing"]) == 1
    json.dumps(found, allow_nan=False)


def of_set(name, system):
    return [replace(utterance, set=name) for utterance in system]


def test_sets_that_share_ids_are_matched_by_set_and_id():
    first = of_set("clean", ONE[:2]) + of_set("noisy", [Recognised("1", "h i", "h x")])
    second = of_set("noisy", [Recognised("1", "h i", "h i"), Recognised("2", "j", "j")]) + of_set("clean", OTHER[:2])
    found = compare(first, second, normaliser="lower.v1")
    assert (found["first"]["wer"], found["second"]["wer"]) == (3 / 8, 1 / 8)
    assert (found["only_first_ids"], found["only_second_ids"]) == ([], ["noisy 2"])
    shown = [(row["set"], row["id"], row["first_errors"], row["second_errors"]) for row in found["differing"]]
    assert shown == [("clean", "2", 2, 0), ("clean", "1", 0, 1), ("noisy", "1", 1, 0)]
    with pytest.raises(UserError, match=r"utterance 1 .*first"):
        compare(first, OTHER, normaliser="lower.v1")


@pytest.mark.parametrize(("one", "other"), [("set", "set"), ("set", "./set"), ("set", ""), ("", "set")])
def test_one_set_is_matched_by_id_whatever_it_is_called(one, other):
    found = compare(of_set(one, ONE), of_set(other, OTHER), normaliser="lower.v1")
    assert found == compare(ONE, OTHER, normaliser="lower.v1")


def test_each_side_is_scored_as_alone():
    first, second = system(0.1, seed=0), system(0.2, seed=1)
    found = compare(first, second, normaliser="none")
    assert found["first"] == score(first, normaliser="none")
    assert found["second"] == score(second, normaliser="none")


def test_swapped_systems_have_the_opposite_difference():
    first, second = system(0.1, seed=0), system(0.13, seed=1)
    found, swapped = (compare(*both, normaliser="none") for both in ((first, second), (second, first)))
    assert swapped["difference"]["wer"] == -found["difference"]["wer"]
    assert swapped["difference"]["wer_interval"] == approx([-b for b in found["difference"]["wer_interval"][::-1]])
    assert swapped["matched_pairs"]["z"] == approx(-found["matched_pairs"]["z"])
    assert swapped["matched_pairs"]["p_value"] == approx(found["matched_pairs"]["p_value"])


def test_both_are_drawn_together():
    """Errors that both systems have cancel: the interval of the difference is far narrower than those of the WERs."""
    first = system(0.3, seed=0)
    second = [replace(u, hypothesis=u.reference if u.id == "7" else u.hypothesis) for u in first]
    found = compare(first, second, normaliser="none")
    widths = [np.ptp(part["wer_interval"]) for part in (found["difference"], found["first"])]
    assert widths[0] < widths[1] / 5
    assert found["difference"]["bootstrap"]["over"] == "speakers"


def test_probability_of_improvement():
    worse, better = system(0.2, seed=0), system(0.1, seed=1)
    found = compare(worse, better, normaliser="none")["difference"]
    assert found["probability_of_improvement"] == 1.0
    assert found["wer_interval"][1] < 0
    same = compare(worse, worse, normaliser="none")
    assert (same["difference"]["wer_interval"], same["matched_pairs"]["p_value"]) == ([0.0, 0.0], 1.0)
    assert same["differing"] == []


def test_the_share_of_resamples_agrees_with_the_normal_approximation():
    """The share below zero is that of a normal distribution at the mean over the standard error, over 20 speakers."""
    first, second = system(0.1, seed=3, num=1000), system(0.105, seed=4, num=1000)
    found = compare(first, second, normaliser="none", bootstrap=Bootstrap(resamples=4000))["difference"]
    apart = np.zeros(20)
    for a, b in zip(first, second, strict=True):
        apart[int(a.speaker)] += b.hypothesis.count("x") - a.hypothesis.count("x")
    z = apart.mean() / (apart.std() / np.sqrt(20))
    assert found["probability_of_improvement"] == approx(norm.cdf(-z), abs=0.03)


def test_one_utterance_has_no_interval():
    found = compare(ONE[:1], OTHER[:2], normaliser="lower.v1")["difference"]
    assert (found["wer"], found["wer_interval"], found["probability_of_improvement"]) == (0.25, None, None)
    silent = [Recognised("1", "", "a"), Recognised("2", "", "")]
    assert compare(silent, silent, normaliser="none")["difference"]["wer"] is None


@pytest.mark.parametrize(
    ("first", "second", "normaliser", "message"),
    [
        (ONE, [Recognised("z", "a", "a")], "none", "has 3, the second 1;.*'1' .*'z'"),
        (ONE, [], "none", "has 3, the second 0;.*'none'"),
        (ONE + ONE[:1], OTHER, "none", "utterance 1 .*first"),
        (ONE, OTHER + OTHER[-1:], "none", "utterance new .*second"),
        (ONE, OTHER, "none", "1 of 2 .*2: 'e f' .*'E f'"),
        (ONE, OTHER, "lower", "'lower'"),
    ],
)
def test_what_cannot_be_compared(first, second, normaliser, message):
    with pytest.raises(UserError, match=message):
        compare(first, second, normaliser=normaliser)

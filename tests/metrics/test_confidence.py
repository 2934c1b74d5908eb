import math

import numpy as np
import pytest

from asr_jax.metrics.confidence import Calibration, confidence_report, fit_calibration
from tests.support import approx


def drawn(slope, offset, *, num=100_000, seed=0):
    """Confidences whose true log-odds are a linear function of theirs."""
    random = np.random.default_rng(seed)
    confidences = random.uniform(0.01, 0.99, num)
    return confidences, random.random(num) < Calibration(slope, offset)(confidences)


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (0.4, -1.0), (2.5, 0.7)])
def test_the_line_that_was_drawn_is_found(slope, offset):
    confidences, is_right = drawn(slope, offset)
    found = fit_calibration(confidences, is_right)
    assert found.slope == approx(slope, rel=0.06)
    assert found.offset == approx(offset, abs=0.06)


def test_calibration_lowers_the_error_on_words_it_has_not_seen():
    confidences, is_right = drawn(0.4, -1.0)
    calibration = fit_calibration(*drawn(0.4, -1.0, seed=1))
    before, after = (confidence_report(values, is_right) for values in (confidences, calibration(confidences)))
    assert before["calibration_error"] > 0.1
    assert after["calibration_error"] < 0.015
    assert after["cross_entropy_gain"] > max(0, before["cross_entropy_gain"])
    assert after["mean"] == approx(after["right"], abs=0.01)


@pytest.mark.parametrize("is_right", [True, False])
def test_a_set_without_errors_or_without_right_words_gives_a_finite_line(is_right):
    confidences = np.linspace(0.1, 1.0, 12)
    found = fit_calibration(confidences, np.full(12, is_right))
    assert math.isfinite(found.slope)
    assert math.isfinite(found.offset)
    assert (found(confidences).mean() > 0.5) == is_right


def test_certain_confidences_stay_finite():
    found = fit_calibration(np.array([0.0, 1.0, 1.0]), np.array([False, True, False]))
    assert np.isfinite(found(np.array([0.0, 1.0]))).all()


def test_report_of_words_counted_by_hand():
    # two bins: four words at 0.9, two of them right; one at 0.1, which is wrong
    confidences, is_right = np.array([0.9, 0.9, 0.9, 0.9, 0.1]), np.array([True, True, False, False, False])
    report = confidence_report(confidences, is_right)
    assert report["words"] == 5
    assert report["right"] == approx(0.4)
    assert report["mean"] == approx(0.74)
    assert report["calibration_error"] == approx((4 * 0.4 + 1 * 0.1) / 5)
    entropy = -5 * (0.4 * math.log(0.4) + 0.6 * math.log(0.6))
    cross = -(2 * math.log(0.9) + 2 * math.log(0.1) + math.log(0.9))
    assert report["cross_entropy_gain"] == approx(1 - cross / entropy, rel=1e-6)


def test_the_share_of_right_words_as_confidence_of_all_gains_nothing():
    report = confidence_report(np.full(10, 0.7), np.arange(10) < 7)
    assert report["calibration_error"] == approx(0, abs=1e-12)
    assert report["cross_entropy_gain"] == approx(0, abs=1e-9)


def test_nothing_to_report_or_to_fit():
    assert confidence_report(np.zeros(0), np.zeros(0, bool))["calibration_error"] is None
    assert confidence_report(np.ones(2), np.ones(2, bool))["cross_entropy_gain"] is None
    with pytest.raises(ValueError, match="no words"):
        fit_calibration(np.zeros(0), np.zeros(0, bool))

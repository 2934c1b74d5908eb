"""Bootstrap intervals: equality with the binomial distribution, coverage, and resampling of speakers."""

import numpy as np
import pytest
from scipy.stats import binom

from asr_jax.metrics import bootstrap as module
from asr_jax.metrics.bootstrap import Bootstrap, percentiles, rates, resampled, resampling_units, sums_by


def interval(errors, words, settings):
    return percentiles(rates(*resampled(np.stack([errors, words], axis=1), settings).T), settings)


@pytest.mark.parametrize(("level", "share"), [(0.95, 0.05), (0.8, 0.3)])
def test_of_words_alone_it_is_the_binomial_distribution(level, share):
    """With units of one word, resampled errors are binomial with the measured rate."""
    num, errors = 1000, round(1000 * share)
    found = interval(np.arange(num) < errors, np.ones(num, int), Bootstrap(level=level, resamples=16_000))
    expected = binom.interval(level, num, errors / num)
    # Counts are integers, and quantiles of 16,000 resamples have a standard error of up to 0.2.
    assert np.abs(np.multiply(found, num) - expected).max() <= 1 + 4 * 0.2


def test_it_holds_the_true_rate_as_often_as_it_says_over_speakers_alone():
    """Error rates differ between speakers, so an interval that resamples utterances is far too narrow."""
    random = np.random.default_rng(0)
    held = {"speakers": 0, "utterances": 0}
    num_sets, speakers, utterances, words = 200, 40, 20, 10
    for seed in range(num_sets):
        hard = np.repeat(random.beta(2, 18, speakers), utterances)  # 10 % on average
        errors = random.binomial(words, hard)
        lengths = np.full(len(errors), words)
        names = [str(number) for number in np.repeat(np.arange(speakers), utterances)]
        for over, of in (("speakers", names), ("utterances", [""] * len(names))):
            units, description = resampling_units(of)
            assert description == over
            sums = sums_by(units, np.stack([errors, lengths], axis=1))
            low, high = interval(*sums.T, Bootstrap(resamples=200, seed=seed))
            held[over] += low < 0.1 < high
    assert 0.90 <= held["speakers"] / num_sets <= 0.98
    assert held["utterances"] / num_sets < 0.75


def test_the_same_seed_gives_the_same_draws_however_many_are_in_memory(monkeypatch):
    sums = np.random.default_rng(1).integers(0, 9, (13, 2))
    whole = resampled(sums, Bootstrap(resamples=50, seed=4))
    monkeypatch.setattr(module, "AT_ONCE", 30)
    assert np.array_equal(resampled(sums, Bootstrap(resamples=50, seed=4)), whole)
    assert not np.array_equal(resampled(sums, Bootstrap(resamples=50, seed=5)), whole)
    draws = resampled(np.ones((13, 1), np.int64), Bootstrap(resamples=50))
    assert np.array_equal(draws, np.full((50, 1), 13.0))


def test_groups_are_summed():
    counts = np.arange(12).reshape(6, 2)
    groups = np.array([1, 0, 1, 2, 0, 1])
    assert np.array_equal(sums_by(groups, counts), [counts[groups == group].sum(axis=0) for group in range(3)])
    assert sums_by(np.zeros(0, np.int64), np.zeros((0, 2), np.int64)).shape == (0, 2)


def test_resamples_without_a_word_have_no_rate():
    assert rates(np.array([1.0, 2.0]), np.array([0.0, 4.0])).tolist() == [0.5]
    assert percentiles(np.array([]), Bootstrap()) is None


@pytest.mark.parametrize("settings", [{"level": 1.0}, {"level": 0.0}, {"resamples": 0}])
def test_what_cannot_be_drawn(settings):
    with pytest.raises(ValueError, match="|".join(settings)):
        Bootstrap(**settings)

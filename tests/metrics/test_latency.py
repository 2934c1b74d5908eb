"""Emission latency of words that are counted by hand."""

from asr_jax.metrics.latency import Latency, TimedWord, latencies, latency_report, num_words
from tests.support import approx, assert_close

SPOKEN = [TimedWord("One", 0.1, 0.4), TimedWord("two,", 0.5, 0.9), TimedWord("three", 1.0, 1.5)]


def test_only_right_words_count():
    recognised = [
        TimedWord("one", 0.16, 0.5),
        TimedWord("to", 0.6, 0.7),  # wrong
        TimedWord("and", 0.8, 0.9),  # inserted
        TimedWord("three", 0.9, 1.4),  # before it was spoken
    ]
    found = latencies(SPOKEN, recognised, "english.v1")
    assert_close(found, [(0.06, 0.1), (-0.1, -0.1)], atol=1e-9)
    assert latencies(SPOKEN, [], "english.v1") == []
    assert latencies([], recognised, "english.v1") == []


def test_words_that_the_normaliser_divides_have_no_times():
    spoken, recognised = [TimedWord("21", 0.0, 1.0), TimedWord("cars", 1.0, 2.0)], ["twenty", "one", "cars"]
    words = [TimedWord(text, number, number + 0.5) for number, text in enumerate(recognised)]
    assert num_words(spoken, "english.v1") == 3
    assert latencies(spoken, words, "english.v1") == [Latency(1.0, 0.5)]


def test_statistics_of_four_words():
    report = latency_report([Latency(0.2, 0.4), Latency(0.1, 0.1), Latency(0.0, 0.3), Latency(-0.1, 0.6)], frame_s=0.04)
    assert report["tail"] == approx({"mean": 0.35, "p50": 0.35, "p90": 0.6, "p99": 0.6})
    assert report["emission"] == approx({"mean": 0.33, "p50": 0.33, "p90": 0.58, "p99": 0.58})
    assert report["head"] == approx({"mean": 0.05, "p50": 0.05, "p90": 0.2, "p99": 0.2})
    assert latency_report([], frame_s=0.04) == {"emission": None, "head": None, "tail": None}

"""Buckets: edges against every possible division, shapes that hold what they must, little padding."""

from itertools import combinations

import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.data.buckets import Bucket, Buckets, assign, bucket_edges, largest_first, make_buckets, perturbed_lengths
from asr_jax.data.plan import BatchPlan

RATE, HOP = 16000, 160


def padding(lengths: np.ndarray, edges: np.ndarray) -> int:
    return int((np.asarray(edges)[np.searchsorted(edges, lengths)] - lengths).sum())


@pytest.mark.parametrize("num", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_edges_are_the_best_of_all(num: int, seed: int) -> None:
    lengths = np.random.default_rng(seed).gamma(3, 20, 60).astype(np.int32) // 8 * 8 + 1
    values = np.unique(lengths)
    least = min(padding(lengths, [*rest, values[-1]]) for rest in combinations(values[:-1], num - 1))
    edges = bucket_edges(lengths, num)
    assert len(edges) == num
    assert (np.diff(edges) > 0).all()
    assert padding(lengths, edges) == least


def test_fewer_lengths_than_buckets_need_no_padding() -> None:
    lengths = np.array([5, 9, 5, 7])
    assert bucket_edges(lengths, 8).tolist() == [5, 7, 9]
    assert bucket_edges(np.array([4]), 3).tolist() == [4]


def test_many_lengths_are_binned_and_still_near_the_best() -> None:
    lengths = np.random.default_rng(0).integers(1000, 500_000, 20_000)
    edges = bucket_edges(lengths, 4)
    assert edges[-1] == lengths.max()
    assert np.isin(edges, lengths).all()
    # Of evenly spread lengths, four equal ranges are the best.
    assert padding(lengths, edges) <= 1.002 * padding(lengths, np.linspace(1000, 500_000, 5)[1:])


def librispeech_like(num: int) -> np.ndarray:
    """Durations in samples: most between 12 and 17 s, a broad rest, 24 s at most."""
    rng = np.random.default_rng(0)
    durations_s = np.where(rng.random(num) < 0.72, rng.normal(14.3, 1.3, num), rng.uniform(1.5, 14, num))
    return np.rint(np.clip(durations_s, 1.3, 24.5) * RATE).astype(np.int32)


def test_twelve_shapes_reach_95_percent() -> None:
    samples = librispeech_like(281_241)
    labels = samples // 1200
    buckets = make_buckets(samples, labels, Buckets(num=12, batch_seconds=1600), rate_hz=RATE, hop_samples=HOP)
    plan = BatchPlan(samples, labels, buckets)
    assert len(buckets) == 12
    assert plan.padding_share <= 0.05


@pytest.mark.parametrize("multiple", [1, 4, 6])
def test_shapes_hold_their_entries(multiple: int) -> None:
    samples, speeds = librispeech_like(3000), (0.9, 1.0, 1.1)
    labels = np.random.default_rng(1).integers(1, 300, len(samples))
    settings = Buckets(num=5, batch_seconds=200.0, max_batch=40, batch_multiple=multiple)
    buckets = make_buckets(
        samples, labels, settings, rate_hz=RATE, hop_samples=HOP, speeds=speeds, num_devices=multiple
    )
    lengths = perturbed_lengths(samples, speeds)
    bucket_of = assign(lengths, np.tile(labels, 3), buckets)
    for k, bucket in enumerate(buckets):
        member = bucket_of == k
        assert lengths[member].max() == bucket.longest
        assert bucket.num_samples % HOP == 0
        assert HOP <= bucket.num_samples - bucket.longest < 2 * HOP
        assert np.tile(labels, 3)[member].max() <= bucket.num_tokens
        assert bucket.num_tokens % 8 == 0
        assert bucket.batch_size % multiple == 0
        assert bucket.batch_size <= max(40 // multiple * multiple, multiple)
        assert bucket.batch_size * bucket.num_samples <= max(200 * RATE, multiple * bucket.num_samples)


def test_rows_are_spread_over_the_batches() -> None:
    samples = np.full(65, 1600)
    (bucket,) = make_buckets(
        samples, samples // 100, Buckets(max_batch=64, batch_multiple=2), rate_hz=RATE, hop_samples=HOP
    )
    assert bucket == Bucket(num_samples=1760, num_tokens=16, batch_size=34, longest=1600)


def test_given_edges_are_kept_and_empty_ones_left_out() -> None:
    samples = np.array([1, 3, 15]) * RATE
    settings = Buckets(edges_s=(2.0, 5.0, 10.0, 20.0), slack_s=0.0, batch_multiple=1)
    buckets = make_buckets(samples, np.array([1, 9, 0]), settings, rate_hz=RATE, hop_samples=HOP)
    assert [bucket.num_samples for bucket in buckets] == [2 * RATE, 5 * RATE, 20 * RATE]
    assert [bucket.num_tokens for bucket in buckets] == [8, 16, 8]
    with pytest.raises(UserError, match=r"ends at 20.0 s but the longest record takes 25.00 s"):
        make_buckets(samples, samples, settings, rate_hz=RATE, hop_samples=HOP, speeds=(0.6, 1.0))


def test_buckets_of_two_axes_are_served() -> None:
    buckets = (Bucket(100, 8, 4, 100), Bucket(100, 24, 4, 100), Bucket(200, 8, 2, 200), Bucket(200, 32, 2, 200))
    lengths, labels = np.array([100, 100, 101, 50, 1]), np.array([8, 9, 8, 30, 1])
    assert assign(lengths, labels, buckets).tolist() == [0, 1, 2, 3, 0]
    with pytest.raises(ValueError, match="entry 1 with 201 samples and 1 labels fits no bucket"):
        assign(np.array([1, 201]), np.array([1, 1]), buckets)


def test_the_largest_shape_is_compiled_first() -> None:
    buckets = (Bucket(10, 8, 40, 10), Bucket(30, 8, 10, 30), Bucket(50, 8, 9, 50))
    assert largest_first(buckets) == [2, 0, 1]


def test_what_cannot_be_planned_is_said() -> None:
    some = np.array([RATE])
    with pytest.raises(UserError, match="batch_multiple 6 cannot be split over 4 devices"):
        make_buckets(some, some, Buckets(batch_multiple=6), rate_hz=RATE, hop_samples=HOP, num_devices=4)
    with pytest.raises(UserError, match="no records to plan"):
        make_buckets(some[:0], some[:0], Buckets(), rate_hz=RATE, hop_samples=HOP)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num": 0}, "num 0"),
        ({"batch_seconds": 0.0}, "batch_seconds 0.0"),
        ({"batch_seconds": float("nan")}, "batch_seconds nan"),
        ({"max_batch": 4, "batch_multiple": 8}, "max_batch 4: expected at least batch_multiple 8"),
        ({"edges_s": (3.0, 2.0)}, "expected rising"),
        ({"edges_s": (0.0, 2.0)}, "expected rising"),
        ({"slack_s": -0.1}, "slack_s -0.1"),
    ],
)
def test_impossible_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Buckets(**options)

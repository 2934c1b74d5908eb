"""Buckets: shapes that fit all utterances and the budget, little padding, and the number of labels as a second axis."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.bucket_files import load_buckets, write_buckets
from asr_jax.data.batching.buckets import (
    TOKEN_MULTIPLE,
    Bucket,
    Buckets,
    Entries,
    Scale,
    assign,
    largest_first,
    make_buckets,
    perturbed_lengths,
    unfit,
)
from asr_jax.data.batching.edges import equal_count, equal_duration

RATE, HOP = 16000, 160
SCALE = Scale(RATE, HOP, 80)
FEATURES = Scale(100.0, 1, 80, of_features=True)


def shapes_of(
    lengths: np.ndarray, labels: np.ndarray, settings: Batching, *, scale: Scale = SCALE,
    speeds: tuple[float, ...] = (1.0,), row_parts: int = 1,
) -> tuple[Bucket, ...]:  # fmt: skip
    return make_buckets(Entries(lengths, labels, scale, speeds), settings, row_parts=row_parts).shapes


def librispeech_like(num: int) -> np.ndarray:
    """Durations in samples: most between 12 and 17 s, a broad rest, 24 s at most."""
    rng = np.random.default_rng(0)
    durations_s = np.where(rng.random(num) < 0.72, rng.normal(14.3, 1.3, num), rng.uniform(1.5, 14, num))
    return np.rint(np.clip(durations_s, 1.3, 24.5) * RATE).astype(np.int32)


def test_twelve_shapes_reach_95_percent() -> None:
    samples = librispeech_like(281_241)
    labels = samples // 1200
    entries = Entries(samples, labels, SCALE)
    plan = BatchPlan(entries, make_buckets(entries, Batching.planned(num_buckets=12, seconds=1600.0)))
    assert len(plan.buckets) == 12
    assert plan.padding_share <= 0.05


@pytest.mark.parametrize("multiple", [1, 4, 6])
def test_shapes_hold_their_entries(multiple: int) -> None:
    samples, speeds = librispeech_like(3000), (0.9, 1.0, 1.1)
    labels = np.random.default_rng(1).integers(1, 300, len(samples))
    settings = Batching.planned(num_buckets=5, seconds=200.0, max_rows=40, row_multiple=multiple)
    buckets = shapes_of(samples, labels, settings, speeds=speeds)
    lengths = perturbed_lengths(samples, speeds)
    bucket_of = assign(lengths, np.tile(labels, 3), buckets)
    for k, bucket in enumerate(buckets):
        member = bucket_of == k
        assert lengths[member].max() == bucket.longest
        assert bucket.length % HOP == 0
        assert HOP <= bucket.length - bucket.longest < 2 * HOP
        assert np.tile(labels, 3)[member].max() <= bucket.num_tokens
        assert bucket.num_tokens % 8 == 0
        assert bucket.batch_size % multiple == 0
        assert bucket.batch_size <= max(40 // multiple * multiple, multiple)
        assert bucket.batch_size * bucket.length <= max(200 * RATE, multiple * bucket.length)


def label_room(labels: np.ndarray, edges: np.ndarray) -> int:
    return int(np.asarray(edges)[np.searchsorted(edges, labels)].sum())


@pytest.mark.parametrize("num", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_second_axis_is_the_best_division_by_labels(num: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = rng.choice([RATE, 2 * RATE, 3 * RATE], 90)
    labels = rng.integers(0, 70, 90) + samples // RATE
    settings = Batching.planned(num_buckets=3, num_by_labels=num, row_multiple=1)
    buckets = shapes_of(samples, labels, settings)
    assert len(buckets) == 3 * num
    for length in (RATE, 2 * RATE, 3 * RATE):
        member = labels[samples == length]
        most = -(-int(member.max()) // TOKEN_MULTIPLE) * TOKEN_MULTIPLE
        rooms = range(TOKEN_MULTIPLE, most, TOKEN_MULTIPLE)
        best = min(label_room(member, np.array([*rest, most])) for rest in combinations(rooms, num - 1))
        chosen = [bucket.num_tokens for bucket in buckets if bucket.longest == length]
        assert chosen == sorted(set(chosen))
        assert label_room(member, np.array(chosen)) == best
    assert (assign(samples, labels, buckets) >= 0).all()


def test_a_part_by_labels_without_records_is_left_out() -> None:
    samples, labels = np.array([RATE, RATE, 2 * RATE]), np.array([3, 30, 0])
    buckets = shapes_of(samples, labels, Batching.planned(num_buckets=2, num_by_labels=4, row_multiple=1))
    assert [(bucket.longest, bucket.num_tokens) for bucket in buckets] == [(RATE, 8), (RATE, 32), (2 * RATE, 8)]


def test_edges_by_name() -> None:
    samples = librispeech_like(2000)
    for name, edges_of in (("equal-duration", equal_duration), ("equal-count", equal_count)):
        buckets = shapes_of(samples, samples // 1200, Batching.planned(num_buckets=6, edges=name))
        assert [bucket.longest for bucket in buckets] == edges_of(samples, 6).tolist()


COSTS = {  # cost of a batch of rows of these lengths in a bucket of length `room`; frames have 80 values
    "utterances": lambda lengths, room: len(lengths),
    "frames": lambda lengths, room: lengths.sum() / HOP,
    "padded-frames": lambda lengths, room: len(lengths) * room / HOP,
    "feature-values": lambda lengths, room: len(lengths) * room / HOP * 80,
    "seconds": lambda lengths, room: lengths.sum() / RATE,
    "padded-seconds": lambda lengths, room: len(lengths) * room / RATE,
}
BUDGETS = {
    "utterances": 37, "frames": 21_000, "padded-frames": 21_000, "feature-values": 1_700_000,
    "seconds": 210, "padded-seconds": 210,
}  # fmt: skip


@pytest.mark.parametrize("max_batch", [512, 16])
@pytest.mark.parametrize("unit", COSTS)
def test_no_batch_costs_more_than_the_budget(unit: str, max_batch: int) -> None:
    """Padded units limit each batch, and other units limit the mean of a bucket's batches.

    There are no more batches than necessary.
    """
    samples, budget = librispeech_like(20_000), BUDGETS[unit]
    settings = Batching(num_buckets=5, budget=budget, unit=unit, row_multiple=1, max_rows=max_batch)
    buckets = shapes_of(samples, samples // 1200, settings)
    plan, costs = BatchPlan(Entries(samples, samples // 1200, SCALE), Buckets(buckets)), [[] for _ in buckets]
    for position in range(plan.batches_per_epoch):
        planned = plan[position]
        if (planned.rows >= 0).all():
            costs[planned.bucket].append(COSTS[unit](samples[planned.rows], buckets[planned.bucket].length))
    member = assign(samples, samples // 1200, buckets)
    for k, bucket in enumerate(buckets):
        assert np.mean(costs[k]) <= budget * 1.001
        assert bucket.batch_size <= max_batch
        if unit in ("utterances", "padded-frames", "feature-values", "padded-seconds"):
            assert max(costs[k]) <= budget
        full = min(int(budget / (np.mean(costs[k]) / bucket.batch_size)), max_batch)
        assert plan.batches_by_bucket()[k] <= -(-np.sum(member == k) // (full - 1))


def test_the_batch_multiple_may_exceed_the_budget() -> None:
    samples = np.full(40, 10 * RATE)
    settings = Batching(budget=5, unit="padded-seconds", row_multiple=4)
    (bucket,) = shapes_of(samples, samples // RATE, settings)
    assert bucket.batch_size == 4
    (bucket,) = shapes_of(samples, samples // RATE, replace(settings, row_multiple=1))
    assert bucket.batch_size == 1


def test_ready_features_are_counted_in_frames() -> None:
    frames = np.array([100, 200, 300, 300])
    for unit, budget in (("padded-frames", 602), ("feature-values", 602 * 80), ("padded-seconds", 6.02)):
        settings = Batching(num_buckets=1, budget=budget, unit=unit, row_multiple=1)
        (bucket,) = shapes_of(frames, frames // 50, settings, scale=FEATURES)
        assert bucket == Bucket(length=301, num_tokens=8, batch_size=2, longest=300)


def test_rows_are_spread_over_the_batches() -> None:
    samples = np.full(65, 1600)
    (bucket,) = shapes_of(samples, samples // 100, Batching(max_rows=64, row_multiple=2))
    assert bucket == Bucket(length=1760, num_tokens=16, batch_size=34, longest=1600)


def test_given_edges_are_kept_and_empty_ones_left_out() -> None:
    samples = np.array([1, 3, 15]) * RATE
    settings = Batching(edges_s=(2.0, 5.0, 10.0, 20.0), row_multiple=1)
    buckets = shapes_of(samples, np.array([1, 9, 0]), settings)
    assert [bucket.length for bucket in buckets] == [2 * RATE + HOP, 5 * RATE + HOP, 20 * RATE + HOP]
    assert [bucket.num_tokens for bucket in buckets] == [8, 16, 8]
    [long] = unfit(Entries(samples, samples, SCALE, (0.6, 1.0)), settings)
    assert (long.places.tolist(), long.values.tolist(), long.limit) == ([2], [25.0], 20.0)


def test_buckets_of_two_axes_are_served() -> None:
    buckets = (Bucket(100, 8, 4, 100), Bucket(100, 24, 4, 100), Bucket(200, 8, 2, 200), Bucket(200, 32, 2, 200))
    lengths, labels = np.array([100, 100, 101, 50, 1]), np.array([8, 9, 8, 30, 1])
    assert assign(lengths, labels, buckets).tolist() == [0, 1, 2, 3, 0]
    with pytest.raises(ValueError, match=r"entry 1 .*201 samples.* 1 labels"):
        assign(np.array([1, 201]), np.array([1, 1]), buckets)


def test_the_largest_shape_is_compiled_first() -> None:
    buckets = (Bucket(10, 8, 40, 10), Bucket(30, 8, 10, 30), Bucket(50, 8, 9, 50))
    assert largest_first(buckets) == [2, 0, 1]
    equal = (Bucket(10, 8, 40, 10), Bucket(10, 40, 40, 10), Bucket(10, 20, 40, 10))
    assert largest_first(equal) == [1, 2, 0]  # by labels


def test_what_cannot_be_planned_is_named() -> None:
    some = np.array([RATE])
    with pytest.raises(UserError, match="no utterances to plan"):
        shapes_of(some[:0], some[:0], Batching())


def test_rows_are_divisible_by_the_multiple_and_by_the_parts_of_the_model() -> None:
    samples = np.full(40, RATE)
    (bucket,) = shapes_of(samples, samples // RATE, Batching(row_multiple=6), row_parts=4)
    assert bucket.batch_size == 48


@pytest.mark.parametrize(
    "settings",
    [Batching.planned(num_buckets=6), Batching.planned(num_buckets=2, num_by_labels=4), Batching(edges_s=(4.0, 25.0))],
)
def test_a_written_file_is_read_back(settings: Buckets, tmp_path: Path) -> None:
    samples = librispeech_like(500)
    buckets = shapes_of(samples, samples // 1200, settings)
    write_buckets(tmp_path / "x", buckets, SCALE, target="h100", devices="1 × NVIDIA H100", margin=0.1, quick=False)
    assert load_buckets(tmp_path / "x") == (RATE, buckets, "1 × NVIDIA H100")

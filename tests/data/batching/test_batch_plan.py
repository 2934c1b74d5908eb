"""Batch plan: every entry once per epoch, epochs independent of each other, the same for any number of processes."""

import pickle
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asr_jax.core.layout import Layout
from asr_jax.data.batching.batch_plan import BatchPlan, PlannedBatch, local_rows
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Bucket, Buckets, Entries, Scale, make_buckets
from asr_jax.data.batching.mixing import Sources
from tests.support import approx

NUM = 300
SAMPLES = np.random.default_rng(0).integers(100, 5000, NUM).astype(np.int32)
LABELS = SAMPLES // 200
SCALE = Scale(1000, 10, 80)
SOURCES = np.random.default_rng(2).choice(3, NUM, p=[0.5, 0.3, 0.2]).astype(np.int32)
SOURCES[np.argsort(SAMPLES)[[0, NUM // 2, -1]]] = 3  # one utterance in each of three buckets
MIXED = Sources(SOURCES, np.array([0.3, 1.0, 0.55, 0.2]))


ORDERS = {"shuffled": {}, "sorted": {"sort_window": 37}, "unshuffled": {"is_shuffled": False}}


def make_plan(num: int = 4, num_by_labels: int = 1, speeds: tuple[float, ...] = (1.0,), **options: Any) -> BatchPlan:
    settings = Batching.planned(num_buckets=num, num_by_labels=num_by_labels, seconds=30.0, row_multiple=4)
    entries = Entries(SAMPLES, LABELS, SCALE, speeds)
    return BatchPlan(entries, make_buckets(entries, settings), **{"seed": 1} | options)


def mixed_plan(**options: Any) -> BatchPlan:
    return make_plan(sources=MIXED, **options)


def epoch_of(plan: BatchPlan, epoch: int) -> list[PlannedBatch]:
    return [plan[epoch * plan.batches_per_epoch + k] for k in range(plan.batches_per_epoch)]


def entries_of(batches: list[PlannedBatch]) -> list[tuple[int, float]]:
    """(row, speed) of all rows except padding, in order."""
    return [(r, s) for b in batches for r, s in zip(b.rows.tolist(), b.speeds.tolist(), strict=True) if r >= 0]


def same(left: PlannedBatch, right: PlannedBatch) -> bool:
    return (left.epoch, left.bucket, left.rows.tolist(), left.speeds.tolist()) == (
        right.epoch,
        right.bucket,
        right.rows.tolist(),
        right.speeds.tolist(),
    )


@pytest.mark.parametrize("order", ["shuffled", "sorted", "unshuffled"])
@pytest.mark.parametrize("num_by_labels", [1, 3])
@pytest.mark.parametrize("speeds", [(1.0,), (0.9, 1.0, 1.1)])
@pytest.mark.parametrize("epoch", [0, 3])
def test_an_epoch_holds_every_record_once_per_speed(
    order: str, num_by_labels: int, speeds: tuple[float, ...], epoch: int
) -> None:
    plan = make_plan(num_by_labels=num_by_labels, speeds=speeds, **ORDERS[order])
    batches = epoch_of(plan, epoch)
    for planned in batches:
        bucket = plan.buckets[planned.bucket]
        assert planned.epoch == epoch
        assert planned.rows.dtype == np.int32
        assert len(planned.rows) == len(planned.speeds) == bucket.batch_size
        assert (planned.speeds[planned.rows < 0] == 1).all()
        for row, speed in entries_of([planned]):
            assert round(SAMPLES[row] / speed) <= bucket.longest
            assert LABELS[row] <= bucket.num_tokens
    assert Counter(entries_of(batches)) == Counter({(row, speed): 1 for row in range(NUM) for speed in speeds})


@pytest.mark.parametrize("options", [{}, {"sources": MIXED}])
def test_padding_is_less_than_a_batch_per_bucket_and_counted(options: dict) -> None:
    plan = make_plan(speeds=(0.9, 1.0), **options)
    batches = epoch_of(plan, 0)
    assert plan.entries_by_bucket() == [len(entries_of([b for b in batches if b.bucket == k])) for k in range(4)]
    assert plan.batches_by_bucket().tolist() == [sum(b.bucket == k for b in batches) for k in range(4)]
    for k, bucket in enumerate(plan.buckets):
        empty = sum(int((planned.rows < 0).sum()) for planned in batches if planned.bucket == k)
        assert empty < bucket.batch_size
    # With mixing, the lengths of epochs differ. Their mean is that of as many epochs as contain all utterances.
    num = 1 if not options else 40
    entries = entries_of([batch for epoch in range(num) for batch in epoch_of(plan, epoch)])
    real = sum(round(SAMPLES[row] / speed) for row, speed in entries) / num
    padded = sum(len(b.rows) * plan.buckets[b.bucket].length for b in batches)
    tolerance = 1 / real if num == 1 else 0.01
    assert plan.length_per_epoch == approx(real, rel=tolerance)
    assert plan.padded_by_bucket().sum() == padded
    assert 1 - plan.padding_share == approx(real / padded, rel=tolerance)


@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_mixing_keeps_the_shares_and_gives_every_record_its_turn(order: str) -> None:
    plan = mixed_plan(**ORDERS[order])
    epochs = [[row for row, _ in entries_of(epoch_of(plan, epoch))] for epoch in range(60)]
    wanted = MIXED.shares * np.bincount(SOURCES)
    for rows in epochs:
        assert len(set(rows)) == len(rows) == plan.entries_per_epoch
        drawn = np.bincount(SOURCES[rows], minlength=4)
        assert (np.abs(drawn - wanted)[:3] <= 0.5).all()
        assert drawn[1] == wanted[1]
        assert drawn[3] == 3  # at least one in each of its buckets
    # No utterance of a bucket and source is repeated before all of them are used.
    stratum_of = np.searchsorted([bucket.longest for bucket in plan.buckets], SAMPLES) * 4 + SOURCES
    for stratum in np.unique(stratum_of):
        member = set(np.flatnonzero(stratum_of == stratum).tolist())
        turns = Counter[int]()
        for rows in epochs:
            new = [row for row in rows if row in member]
            turns.update(new)
            assert max(turns.values()) - min(turns[row] for row in member) <= 1
        assert turns.keys() == member


def test_with_mixing_epochs_of_another_share_are_drawn_from_all_of_a_source() -> None:
    first, second = (set(entries_of(epoch_of(mixed_plan(), epoch))) for epoch in (0, 1))
    rows = {row for row, _ in first & second}
    assert {row for row in range(NUM) if SOURCES[row] == 1} <= rows
    assert sum(SOURCES[row] == 0 for row in rows) < 5  # both epochs have 0.3 of it, with other utterances


@pytest.mark.parametrize("make", [make_plan, mixed_plan])
@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_an_epoch_is_drawn_without_those_before_it(make: Any, order: str) -> None:
    plan = make(**ORDERS[order])
    all_epochs = [epoch_of(plan, epoch) for epoch in range(4)]
    fresh = make(**ORDERS[order])
    for epoch in (3, 0, 2):
        assert all(map(same, epoch_of(fresh, epoch), all_epochs[epoch]))
    position = 2 * plan.batches_per_epoch + 5
    assert same(make(**ORDERS[order])[position], all_epochs[2][5])


@pytest.mark.parametrize("make", [make_plan, mixed_plan])
def test_a_far_place_is_found_as_fast_as_the_first(make: Any) -> None:
    far = 10**15

    def seconds(position: int) -> float:
        plan, start = make(), time.perf_counter()
        plan[position]
        return time.perf_counter() - start

    assert min(seconds(far) for _ in range(5)) < 20 * min(seconds(0) for _ in range(5))
    assert make()[far].epoch == far // make().batches_per_epoch


def test_epochs_and_seeds_differ_and_batches_are_mixed() -> None:
    plan = make_plan()
    first, second = epoch_of(plan, 0), epoch_of(plan, 1)
    assert [b.rows.tolist() for b in first] != [b.rows.tolist() for b in second]
    assert [b.rows.tolist() for b in first] != [b.rows.tolist() for b in epoch_of(make_plan(seed=2), 0)]
    order = [b.bucket for b in first]
    assert order != sorted(order)
    assert order != [b.bucket for b in second]
    assert {frozenset(b.rows.tolist()) for b in first} != {frozenset(b.rows.tolist()) for b in second}


def test_streams_of_random_numbers_are_apart() -> None:
    """Equal streams would permute entries and batches equally, because the only bucket has batches of one entry.

    A permutation that is applied twice is always even.
    """
    plan = BatchPlan(Entries(np.full(50, 10), np.ones(50, np.int32), SCALE), Buckets((Bucket(10, 8, 1, 10),)))
    permutations = [np.concatenate([batch.rows for batch in epoch_of(plan, epoch)]) for epoch in range(20)]
    signs = {round(np.linalg.det(np.eye(50)[rows])) for rows in permutations}
    assert signs == {-1, 1}


def test_evaluation_goes_bucket_by_bucket() -> None:
    plan = make_plan(is_shuffled=False)
    batches = epoch_of(plan, 0)
    assert [b.bucket for b in batches] == sorted(b.bucket for b in batches)
    for k in range(len(plan.buckets)):
        rows = np.concatenate([b.rows[b.rows >= 0] for b in batches if b.bucket == k])
        assert (np.diff(rows) > 0).all()
    assert all(b.rows.tolist() == a.rows.tolist() for a, b in zip(batches, epoch_of(plan, 1), strict=True))


@pytest.mark.parametrize("sort_buffer", [NUM, 64, 1])
def test_sorted_goes_window_by_window_longest_first(sort_buffer: int) -> None:
    plan = make_plan(sort_window=sort_buffer)
    batches = epoch_of(plan, 0)
    windows = [int(b.rows[0]) // sort_buffer for b in batches]
    assert windows == sorted(windows)
    for window in set(windows):
        buckets = [b.bucket for b, own in zip(batches, windows, strict=True) if own == window]
        assert buckets == sorted(buckets, reverse=True)
    for k in range(len(plan.buckets)):
        rows = [row for row, _ in entries_of([b for b in batches if b.bucket == k])]
        assert rows == sorted(rows, key=lambda row: (row // sort_buffer, -SAMPLES[row], row))
    assert all(b.rows.tolist() == a.rows.tolist() for a, b in zip(batches, epoch_of(plan, 1), strict=True))


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_processes_share_the_rows_of_a_batch(num_processes: int) -> None:
    planned = make_plan()[7]
    parts = [
        local_rows(planned, Layout(num_processes, process_index=i, num_processes=num_processes))
        for i in range(num_processes)
    ]
    assert len({len(part.rows) for part in parts}) == 1
    assert np.concatenate([part.rows for part in parts]).tolist() == planned.rows.tolist()
    assert np.concatenate([part.speeds for part in parts]).tolist() == planned.speeds.tolist()
    assert {(part.bucket, part.epoch) for part in parts} == {(planned.bucket, planned.epoch)}


def test_rows_that_cannot_be_shared_evenly_get_padding_rows() -> None:
    of_rows = {"rows": np.arange(5, 9, dtype=np.int32), "speeds": np.full(4, 0.9), "places": np.full(4, 0.5)}
    planned = PlannedBatch(epoch=0, bucket=0, **of_rows)
    parts = [local_rows(planned, Layout(3, process_index=i, num_processes=3)) for i in range(3)]
    assert [part.rows.tolist() for part in parts] == [[5, 6], [7, 8], [-1, -1]]
    assert [part.speeds.tolist() for part in parts] == [[0.9, 0.9], [0.9, 0.9], [1.0, 1.0]]
    assert [part.places.tolist() for part in parts] == [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]


def test_the_fingerprint_tells_plans_apart() -> None:
    plan = make_plan()
    assert plan.fingerprint() == make_plan().fingerprint() == pickle.loads(pickle.dumps(plan)).fingerprint()
    others = [
        make_plan(seed=2), make_plan(speeds=(1.0, 1.1)), make_plan(is_shuffled=False), make_plan(num=3),
        make_plan(sort_window=300), make_plan(sort_window=9), mixed_plan(),
        make_plan(sources=Sources(SOURCES, np.array([0.31, 1.0, 0.55, 0.2]))),
    ]  # fmt: skip
    changed = SAMPLES.copy()
    changed[5] -= 1
    others.append(BatchPlan(Entries(changed, LABELS, SCALE), Buckets(plan.buckets), seed=1))
    assert len({plan.fingerprint(), *(other.fingerprint() for other in others)}) == len(others) + 1


@pytest.mark.parametrize("make", [make_plan, mixed_plan])
def test_threads_and_copies_see_the_same_batches(make: Any) -> None:
    plan, copy = make(), pickle.loads(pickle.dumps(make()))
    positions = np.random.default_rng(0).integers(0, 6 * plan.batches_per_epoch, 200).tolist()
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(plan.__getitem__, positions))
    assert all(same(planned, copy[position]) for planned, position in zip(drawn, positions, strict=True))


def test_one_record_is_a_plan() -> None:
    plan = BatchPlan(Entries(np.array([10]), np.array([2]), SCALE), Buckets((Bucket(20, 8, 2, 10),)))
    assert plan.batches_per_epoch == 1
    assert plan[5].rows.tolist() in ([0, -1], [-1, 0])
    assert plan.padding_share == 0.75


def test_jitter_moves_every_speed_anew_in_each_epoch_and_all_fits() -> None:
    speeds, jitter = (0.9, 1.0, 1.1), 0.05
    entries = Entries(SAMPLES, LABELS, SCALE, speeds, jitter)
    buckets = make_buckets(entries, Batching.planned(num_buckets=4, seconds=60.0, row_multiple=4))
    plan, again = (BatchPlan(entries, buckets, seed=1) for _ in range(2))
    drawn: dict[int, list[tuple[int, float]]] = {0: [], 1: []}
    for position in range(2 * plan.batches_per_epoch):
        planned = plan[position]
        assert planned.speeds.tolist() == pickle.loads(pickle.dumps(again))[position].speeds.tolist()
        real = planned.rows >= 0
        assert (planned.speeds[~real] == 1).all()
        bucket = plan.buckets[planned.bucket]
        assert (np.rint(SAMPLES[planned.rows[real]] / planned.speeds[real]) <= bucket.longest).all()
        drawn[planned.epoch] += zip(planned.rows[real].tolist(), planned.speeds[real].tolist(), strict=True)
    for epoch in drawn.values():
        assert Counter(row for row, _ in epoch) == Counter(dict.fromkeys(range(NUM), 3))
    assert not {speed for _, speed in drawn[0]} & {speed for _, speed in drawn[1]}
    found = np.array([speed for _, speed in drawn[0]])
    counts = np.histogram(found, bins=6, range=(0.85, 1.15))[0]  # uniform over the range
    assert counts.sum() == len(found)
    assert np.abs(counts - len(found) / 6).max() < 4 * np.sqrt(len(found) / 6)
    without = BatchPlan(replace(entries, jitter=0.0), buckets, seed=1)
    assert plan.fingerprint() != without.fingerprint()

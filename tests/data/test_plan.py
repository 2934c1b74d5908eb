"""The plan: every entry once per epoch, each epoch by itself, the same for any number of processes."""

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from asr_jax.data.buckets import Bucket, Buckets, make_buckets
from asr_jax.data.plan import BatchPlan, PlannedBatch, local_rows

NUM = 300
SAMPLES = np.random.default_rng(0).integers(100, 5000, NUM).astype(np.int32)
LABELS = SAMPLES // 200


def make_plan(seed: int = 1, speeds: tuple[float, ...] = (1.0,), shuffle: bool = True, num: int = 4) -> BatchPlan:
    settings = Buckets(num=num, batch_seconds=30.0, batch_multiple=4)
    buckets = make_buckets(SAMPLES, LABELS, settings, rate_hz=1000, hop_samples=10, speeds=speeds)
    return BatchPlan(SAMPLES, LABELS, buckets, seed=seed, speeds=speeds, shuffle=shuffle)


def epoch_of(plan: BatchPlan, epoch: int) -> list[PlannedBatch]:
    return [plan[epoch * plan.batches_per_epoch + k] for k in range(plan.batches_per_epoch)]


def same(left: PlannedBatch, right: PlannedBatch) -> bool:
    return (left.epoch, left.bucket, left.rows.tolist(), left.speeds.tolist()) == (
        right.epoch,
        right.bucket,
        right.rows.tolist(),
        right.speeds.tolist(),
    )


@pytest.mark.parametrize("speeds", [(1.0,), (0.9, 1.0, 1.1)])
@pytest.mark.parametrize("epoch", [0, 3])
def test_an_epoch_holds_every_record_once_per_speed(speeds: tuple[float, ...], epoch: int) -> None:
    plan = make_plan(speeds=speeds)
    seen: Counter[tuple[int, float]] = Counter()
    for planned in epoch_of(plan, epoch):
        bucket = plan.buckets[planned.bucket]
        assert planned.epoch == epoch
        assert planned.rows.dtype == np.int32
        assert len(planned.rows) == len(planned.speeds) == bucket.batch_size
        for row, speed in zip(planned.rows.tolist(), planned.speeds.tolist(), strict=True):
            if row >= 0:
                seen[row, speed] += 1
                assert round(SAMPLES[row] / speed) <= bucket.num_samples
                assert LABELS[row] <= bucket.num_tokens
            else:
                assert speed == 1
    assert seen == Counter({(row, speed): 1 for row in range(NUM) for speed in speeds})


def test_padding_is_less_than_a_batch_per_bucket_and_counted() -> None:
    plan = make_plan(speeds=(0.9, 1.0))
    batches = epoch_of(plan, 0)
    for k, bucket in enumerate(plan.buckets):
        empty = sum(int((planned.rows < 0).sum()) for planned in batches if planned.bucket == k)
        assert empty < bucket.batch_size
    real = sum(round(SAMPLES[r] / s) for b in batches for r, s in zip(b.rows, b.speeds, strict=True) if r >= 0)
    padded = sum(len(b.rows) * plan.buckets[b.bucket].num_samples for b in batches)
    assert plan.samples_per_epoch == real
    assert plan.padding_share == pytest.approx(1 - real / padded)


def test_an_epoch_is_drawn_without_those_before_it() -> None:
    plan = make_plan()
    all_epochs = [epoch_of(plan, epoch) for epoch in range(4)]
    fresh = make_plan()
    for epoch in (3, 0, 2):
        assert all(map(same, epoch_of(fresh, epoch), all_epochs[epoch]))
    position = 2 * plan.batches_per_epoch + 5
    assert same(make_plan()[position], all_epochs[2][5])


def test_epochs_and_seeds_differ_and_batches_are_mixed() -> None:
    plan = make_plan()
    first, second = epoch_of(plan, 0), epoch_of(plan, 1)
    assert [b.rows.tolist() for b in first] != [b.rows.tolist() for b in second]
    assert [b.rows.tolist() for b in first] != [b.rows.tolist() for b in epoch_of(make_plan(seed=2), 0)]
    order = [b.bucket for b in first]
    assert order != sorted(order)
    assert order != [b.bucket for b in second]
    assert {frozenset(b.rows.tolist()) for b in first} != {frozenset(b.rows.tolist()) for b in second}


def test_evaluation_goes_bucket_by_bucket() -> None:
    plan = make_plan(shuffle=False)
    batches = epoch_of(plan, 0)
    assert [b.bucket for b in batches] == sorted(b.bucket for b in batches)
    for k in range(len(plan.buckets)):
        rows = np.concatenate([b.rows[b.rows >= 0] for b in batches if b.bucket == k])
        assert (np.diff(rows) > 0).all()
    assert all(b.rows.tolist() == a.rows.tolist() for a, b in zip(batches, epoch_of(plan, 1), strict=True))


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_processes_share_the_rows_of_a_batch(num_processes: int) -> None:
    planned = make_plan()[7]
    parts = [local_rows(planned, i, num_processes) for i in range(num_processes)]
    assert len({len(part.rows) for part in parts}) == 1
    assert np.concatenate([part.rows for part in parts]).tolist() == planned.rows.tolist()
    assert np.concatenate([part.speeds for part in parts]).tolist() == planned.speeds.tolist()
    assert {(part.bucket, part.epoch) for part in parts} == {(planned.bucket, planned.epoch)}


def test_rows_that_cannot_be_shared_evenly_are_refused() -> None:
    planned = PlannedBatch(epoch=0, bucket=0, rows=np.zeros(4, np.int32), speeds=np.ones(4))
    with pytest.raises(ValueError, match="4 rows cannot be split over 3 processes"):
        local_rows(planned, 0, 3)


def test_the_fingerprint_tells_plans_apart() -> None:
    plan = make_plan()
    assert plan.fingerprint() == make_plan().fingerprint() == pickle.loads(pickle.dumps(plan)).fingerprint()
    others = [make_plan(seed=2), make_plan(speeds=(1.0, 1.1)), make_plan(shuffle=False), make_plan(num=3)]
    changed = SAMPLES.copy()
    changed[5] -= 1
    others.append(BatchPlan(changed, LABELS, plan.buckets, seed=1))
    assert len({plan.fingerprint(), *(other.fingerprint() for other in others)}) == 6


def test_threads_and_copies_see_the_same_batches() -> None:
    plan, copy = make_plan(), pickle.loads(pickle.dumps(make_plan()))
    positions = np.random.default_rng(0).integers(0, 6 * plan.batches_per_epoch, 200).tolist()
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(plan.__getitem__, positions))
    assert all(same(planned, copy[position]) for planned, position in zip(drawn, positions, strict=True))


def test_one_record_is_a_plan() -> None:
    plan = BatchPlan(np.array([10]), np.array([2]), (Bucket(20, 8, 2, 10),))
    assert plan.batches_per_epoch == 1
    assert plan[5].rows.tolist() in ([0, -1], [-1, 0])
    assert plan.padding_share == 0.75

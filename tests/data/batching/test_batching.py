"""Modes of CAIMAN-ASR: the same utterances on any number of processes, few shapes, and bounds that hold."""

import math
import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.layout import Layout
from asr_jax.data.batching.batch_plan import BatchPlan, PlannedBatch, local_rows
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Entries, Scale, make_buckets, unfit
from asr_jax.data.batching.mixing import Sources
from asr_jax.data.batching.pools import Pool
from tests.support import approx

NUM, DEVICES, PER_S = 700, 4, 1000
RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(300, 4000, NUM).astype(np.int32)
LABELS = np.maximum(LENGTHS * RNG.uniform(0.5, 1.5, NUM) / 200, 1).astype(np.int32)
SCALE = Scale(PER_S, 10, 80)
BINS = ((1.2, 5), (1.2, 9), (2.5, 10), (2.5, 30), (4.5, 15), (4.5, 40))
MODES = {
    "fixed": Batching.fixed(rows=3),
    "fixed, buckets": Batching.fixed(rows=3, num_buckets=4),
    "fixed, first random": Batching.fixed(rows=3, num_buckets=4, random_epochs=2),
    "duration": Batching.duration(seconds=14.0),
    "duration, few rows": Batching.duration(seconds=14.0, rows=5, num_buckets=2),
    "1D-bucketing": Batching.bucketing_1d(seconds=13.0, edges_s=(1.0, 2.0, 3.0, 4.5)),
    "1D-bucketing-dyn": Batching.bucketing_1d_dyn(seconds=13.0, num_buckets=5),
    "2D-bucketing": Batching.bucketing_2d(BINS, rows=(7, 6, 5, 4, 3, 2)),
    "2D-bucketing, estimated": Batching.bucketing_2d(3, memory_gb=1.0),
    "2D-bucketing-fixed": Batching.bucketing_2d_fixed(BINS, rows=3),
    "2D-bucketing-singlet": Batching.bucketing_2d_singlet(seconds=4.5, labels=40, rows=3),
}


def fit_rows(buckets: Any, *, scale: Scale, unit: int, devices: int) -> list[int]:
    """As if memory held 40 s of audio on each device."""
    assert (scale, devices, unit) == (SCALE, DEVICES, DEVICES)
    return [min(max(int(40_000 // bucket.length), 1) * DEVICES, bucket.batch_size) for bucket in buckets]


def make_plan(
    settings: Batching, *, lengths: np.ndarray = LENGTHS, speeds: tuple[float, ...] = (1.0,), jitter: float = 0.0,
    sources: Sources | None = None,
) -> BatchPlan:  # fmt: skip
    entries = Entries(lengths, LABELS[: len(lengths)], SCALE, speeds, jitter)
    buckets = make_buckets(entries, settings, devices=DEVICES, seed=1, fit_rows=fit_rows)
    return BatchPlan(entries, buckets, seed=1, sources=sources, pessimistic_first=settings.pessimistic_first)


def epoch_of(plan: BatchPlan, epoch: int) -> list[PlannedBatch]:
    return [plan[epoch * plan.batches_per_epoch + k] for k in range(plan.batches_per_epoch)]


def rows_of(batches: list[PlannedBatch]) -> Counter[tuple[int, float]]:
    pairs = ((r, s) for b in batches for r, s in zip(b.rows.tolist(), b.speeds.tolist(), strict=True) if r >= 0)
    return Counter(pairs)


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("speeds", [(1.0,), (0.95, 1.0)])
def test_an_epoch_has_every_utterance_once_in_batches_of_static_shapes(name: str, speeds: tuple[float, ...]) -> None:
    plan = make_plan(MODES[name], speeds=speeds)
    assert plan.entries_per_epoch == NUM * len(speeds)
    for epoch in (0, 1, 2, 5):
        batches = epoch_of(plan, epoch)
        assert rows_of(batches) == Counter({(row, speed): 1 for row in range(NUM) for speed in speeds})
        for planned in batches:
            bucket = plan.buckets[planned.bucket]
            assert len(planned.rows) == bucket.batch_size
            assert bucket.batch_size % DEVICES == 0
            real = planned.rows >= 0
            assert real.any()
            assert (np.rint(LENGTHS[planned.rows[real]] / planned.speeds[real]) <= bucket.longest).all()
            assert (LABELS[planned.rows[real]] <= bucket.num_tokens).all()
            assert bucket.longest <= bucket.length
            assert bucket.length % SCALE.hop == 0


@pytest.mark.parametrize("name", MODES)
def test_a_mode_has_no_more_shapes_than_buckets(name: str) -> None:
    settings, num = MODES[name], len({(b.length, b.num_tokens, b.batch_size) for b in make_plan(MODES[name]).buckets})
    assert num <= (len(settings.edges_s) or settings.num_by_labels * settings.num_buckets)
    assert num > 1 or name == "2D-bucketing-singlet"


@pytest.mark.parametrize("name", MODES)
def test_processes_have_the_same_batches_together(name: str) -> None:
    plan = make_plan(MODES[name])
    for position in (0, 7, plan.batches_per_epoch - 1, 3 * plan.batches_per_epoch + 2):
        whole = plan[position]
        for num in (1, 2, 4):
            parts = [
                local_rows(plan[position], Layout(DEVICES, process_index=i, num_processes=num)) for i in range(num)
            ]
            assert {(len(part.rows), part.bucket) for part in parts} == {(len(whole.rows) // num, whole.bucket)}
            assert np.concatenate([part.rows for part in parts]).tolist() == whole.rows.tolist()


@pytest.mark.parametrize("name", MODES)
def test_any_position_is_found_without_those_before_it(name: str) -> None:
    plan, num = make_plan(MODES[name]), 3 * make_plan(MODES[name]).batches_per_epoch
    copy = pickle.loads(pickle.dumps(plan))
    for position in RNG.permutation(num)[:25].tolist():
        fresh = make_plan(MODES[name])
        for other in (fresh, copy):
            assert other[position].rows.tolist() == plan[position].rows.tolist()
            assert other[position].bucket == plan[position].bucket
    assert fresh.fingerprint() == plan.fingerprint() == copy.fingerprint()
    assert plan.fingerprint() != make_plan(replace(MODES[name], pessimistic_first=True)).fingerprint()
    assert {tuple(b.rows.tolist()) for b in epoch_of(plan, 0)} != {tuple(b.rows.tolist()) for b in epoch_of(plan, 1)}


def test_fingerprints_tell_the_modes_apart() -> None:
    assert len({make_plan(settings).fingerprint() for settings in MODES.values()}) == len(MODES)


@pytest.mark.parametrize("name", ["fixed", "fixed, buckets", "2D-bucketing-fixed", "2D-bucketing-singlet"])
def test_devices_have_the_fixed_number_of_utterances_except_in_the_last_batch(name: str) -> None:
    plan = make_plan(MODES[name])
    incomplete = Counter(b.bucket for b in epoch_of(plan, 1) if (b.rows < 0).any())
    assert {bucket.batch_size for bucket in plan.buckets} == {3 * DEVICES}
    assert sum(incomplete.values()) <= (1 if name == "fixed" else len(plan.buckets))
    assert max(incomplete.values(), default=0) <= 1


@pytest.mark.parametrize("name", ["duration", "duration, few rows"])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_duration_bounds_the_audio_of_each_device(name: str, jitter: float) -> None:
    plan, settings = make_plan(MODES[name], jitter=jitter), MODES[name]
    seconds = []
    for planned in (planned for epoch in range(4) for planned in epoch_of(plan, epoch)):
        played = np.where(planned.rows >= 0, LENGTHS[planned.rows] / planned.speeds, 0).reshape(DEVICES, -1)
        assert (played.sum(axis=1) < settings.budget * PER_S).all()
        seconds += (played.sum(axis=1) / PER_S).tolist()
    if not settings.rows and not jitter:  # otherwise the rows are a lower limit
        longest = LENGTHS.max() / PER_S
        # Parts differ by less than the longest utterance, apart from utterances that cost a row's share.
        assert np.mean(seconds) > 0.9 * (settings.budget - longest) - DEVICES / len(seconds) * 14
        assert np.ptp(seconds) < 2.2 * longest


def test_pools_hold_their_limits_for_any_lengths() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        num, parts, rows = int(rng.integers(1, 300)), int(rng.integers(1, 5)), int(rng.integers(1, 20))
        lengths = rng.integers(1, int(rng.integers(2, 1000)), num).astype(np.int32)
        longest = int(lengths.max())
        pool = Pool(parts, rows, int(rng.integers(3, 9)) * longest, longest)
        num_batches = pool.num_batches(lengths)
        filled = pool.fill(np.arange(num, dtype=np.int32), lengths, num_batches)
        assert sorted(filled[filled >= 0].tolist()) == list(range(num))
        of_parts = np.where(filled >= 0, lengths[filled], 0).reshape(-1, rows)
        assert (of_parts.sum(axis=1) < pool.limit).all()
        assert (filled.reshape(num_batches, -1) >= 0).any(axis=1).all()


@pytest.mark.parametrize("name", ["1D-bucketing", "1D-bucketing-dyn"])
@pytest.mark.parametrize("row_parts", [1, 8])
def test_one_dimensional_buckets_have_the_most_rows_within_the_seconds(name: str, row_parts: int) -> None:
    settings = replace(MODES[name], budget=40.0)
    found = make_buckets(Entries(LENGTHS, LABELS, SCALE), settings, devices=DEVICES, row_parts=row_parts)
    numbers = np.bincount(np.searchsorted([b.longest for b in found.shapes], LENGTHS))
    for bucket, number in zip(found.shapes, numbers, strict=True):
        of_device = bucket.batch_size // DEVICES
        assert bucket.batch_size % max(row_parts, DEVICES) == 0
        assert of_device * bucket.longest <= 40_000
        more = of_device + max(row_parts // DEVICES, 1)
        assert more * bucket.longest > 40_000 or bucket.batch_size >= number


def test_dynamic_edges_divide_the_audio_evenly() -> None:
    plan = make_plan(MODES["1D-bucketing-dyn"])
    assert len(plan.buckets) == 5
    assert plan.length_by_bucket == approx(np.full(5, LENGTHS.sum() / 5), rel=0.03)
    numbers = make_plan(MODES["fixed, buckets"]).entries_by_bucket()
    assert max(numbers) - min(numbers) <= 3


def test_two_dimensional_bins_are_the_first_that_an_utterance_fits() -> None:
    plan = make_plan(MODES["2D-bucketing"])
    assert [(b.longest / PER_S, b.num_tokens) for b in plan.buckets] == list(BINS)
    assert [b.batch_size for b in plan.buckets] == [rows * DEVICES for rows in (7, 6, 5, 4, 3, 2)]
    for planned in epoch_of(plan, 0):
        for row in planned.rows[planned.rows >= 0]:
            fits = [LENGTHS[row] <= seconds * PER_S and LABELS[row] <= labels for seconds, labels in BINS]
            assert planned.bucket == fits.index(True)
    lengths = LENGTHS[(LENGTHS < 1000) | (LENGTHS > 2500)]
    assert len(make_plan(replace(MODES["1D-bucketing"], edges_s=(1.0, 2.0, 4.5)), lengths=lengths).buckets) == 2


@pytest.mark.parametrize("speeds", [(1.0,), (0.8, 1.0)])
def test_utterances_that_fit_no_bin_are_reported(speeds: tuple[float, ...]) -> None:
    entries = Entries(LENGTHS, LABELS, SCALE, speeds)
    slow = np.rint(LENGTHS / min(speeds))
    [found] = unfit(entries, Batching.bucketing_1d(seconds=9.0, edges_s=(1.0, 3.0)))
    assert (found.reason, found.limit) == ("longer than the last bucket", 3.0)
    assert found.places.tolist() == np.flatnonzero(slow > 3000).tolist()
    assert found.values == approx(slow[slow > 3000] / PER_S)
    bins = ((2.0, 30), (3.0, 12))
    long, many = unfit(entries, Batching.bucketing_2d(bins, rows=(1, 1)))
    assert long.places.tolist() == found.places.tolist()
    fits = ((slow <= 2000) & (LABELS <= 30)) | ((slow <= 3000) & (LABELS <= 12))
    assert many.reason == "more labels than the buckets for its duration"
    assert many.places.tolist() == np.flatnonzero(~fits & (slow <= 3000)).tolist()
    short, long = ((1.0, 30), (3.0, 12)), (LENGTHS > 1000) & (LENGTHS <= 3000) & (LABELS > 12)
    if speeds == (1.0,):
        found = unfit(entries, Batching.bucketing_2d(short, rows=(1, 1)))
        [of_long] = [each for each in found if each.limit == 12]  # those of the bins that are long enough
        assert of_long.places.tolist() == np.flatnonzero(long).tolist()
    for name in ("fixed", "fixed, buckets", "duration", "1D-bucketing-dyn", "2D-bucketing, estimated"):
        assert unfit(entries, MODES[name]) == []


def test_first_epochs_may_be_random() -> None:
    """Their batches have utterances of all lengths, as many batches as the later epochs, and none is empty."""
    plan, later = make_plan(MODES["fixed, first random"]), make_plan(MODES["fixed, buckets"])
    assert plan.batches_per_epoch == later.batches_per_epoch

    def spread(epoch: int) -> float:
        of_batches = [LENGTHS[planned.rows[planned.rows >= 0]] for planned in epoch_of(plan, epoch)]
        return float(np.median([np.ptp(of_batch) for of_batch in of_batches]))

    assert min(spread(0), spread(1)) > 2 * max(spread(2), spread(3))
    same = [a.rows.tolist() == b.rows.tolist() for a, b in zip(epoch_of(plan, 2), epoch_of(later, 2), strict=True)]
    assert all(same)


@pytest.mark.parametrize("name", MODES)
def test_the_pessimistic_first_batch_has_the_longest_utterances_of_the_largest_shape(name: str) -> None:
    plan = make_plan(replace(MODES[name], pessimistic_first=True))
    first = plan[0]
    areas = [bucket.length * bucket.batch_size for bucket in plan.buckets]
    assert areas[first.bucket] == max(areas)
    rows = first.rows[first.rows >= 0]
    candidates = [planned for planned in epoch_of(plan, 0) if MODES[name].any_length or planned.bucket == first.bucket]
    if "random" in name:
        candidates = epoch_of(plan, 0)
    lengths = sorted(LENGTHS[row] for row, _ in rows_of(candidates))
    assert LENGTHS[rows].min() >= lengths[-len(first.rows) :][0]
    assert LENGTHS[rows].max() == lengths[-1]
    assert rows_of(epoch_of(plan, 0)) == Counter({(row, 1.0): 1 for row in range(NUM)})
    assert plan[plan.batches_per_epoch].rows.tolist() == make_plan(MODES[name])[plan.batches_per_epoch].rows.tolist()


@pytest.mark.parametrize("name", ["fixed", "duration"])
def test_figures_of_pooled_batches_are_those_of_the_first_epoch(name: str) -> None:
    plan = make_plan(MODES[name])
    batches = epoch_of(plan, 0)
    for k, bucket in enumerate(plan.buckets):
        own = [planned for planned in batches if planned.bucket == k]
        assert plan.batches_by_bucket()[k] == len(own)
        assert plan.entries_by_bucket()[k] == sum(int((planned.rows >= 0).sum()) for planned in own)
        assert plan.padded_by_bucket()[k] == len(own) * bucket.length * bucket.batch_size
        audio = sum(int(LENGTHS[planned.rows[planned.rows >= 0]].sum()) for planned in own)
        assert plan.length_by_bucket[k] == approx(audio)


def test_mixing_keeps_its_shares_in_batches_of_any_length() -> None:
    sources, shares = (np.arange(NUM) % 3 == 0).astype(np.int32), np.array([0.4, 1.0])
    for name in ("fixed", "fixed, first random", "1D-bucketing"):
        plan = make_plan(MODES[name], sources=Sources(sources, shares))
        for epoch in (0, 3):
            rows = [row for row, _ in rows_of(epoch_of(plan, epoch))]
            assert len(set(rows)) == len(rows) == plan.entries_per_epoch
            assert np.abs(np.bincount(sources[rows]) - shares * np.bincount(sources)).max() <= 0.5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_buckets": 0}, "num_buckets is 0: expected at least 1"),
        ({"sort_window": -1}, "sort_window is -1"),
        ({"budget": 0.0}, "budget is 0.0"),
        ({"budget": float("nan")}, "budget is nan"),
        ({"devices": -1}, "devices is -1"),
        ({"rows": (0,)}, r"rows is \(0,\): expected each at least 1"),
        ({"edges_s": (0.0, 2.0)}, "expected each above 0"),
        ({"edges_s": (1.0, math.inf)}, "edges_s is .*: expected each above 0"),
        ({"edges_s": (1.0,), "edges_labels": (-1,)}, "expected each at least 0"),
        ({"max_rows": 4, "row_multiple": 8}, "max_rows is 4: expected 0, or at least row_multiple 8"),
        ({"rows": (1, 2), "edges_s": (1.0,)}, "expected one number, or one for each duration"),
        ({"edges_s": (3.0, 2.0)}, "expected ascending seconds"),
        ({"edges_s": (2.0, 2.0)}, "expected ascending seconds"),
        ({"edges_s": (2.0, 2.0), "edges_labels": (8, 8)}, "expected ascending seconds, and of equal seconds"),
        ({"edges_s": (1.0,), "edges_labels": (1, 2)}, "expected a number of labels for each duration"),
        ({"edges_s": (1.0,), "edges_labels": (1,), "num_by_labels": 2}, "expected 1 with given labels"),
        ({"edges": "none"}, "edges is none and unit is padded-seconds: expected rows, or unit seconds"),
        ({"edges": "none", "rows": (2,), "sort_window": 9}, "they need buckets"),
        ({"unit": "memory-gb"}, "expected devices 0"),
        ({"rows": (2,), "random_epochs": 1, "edges": "none"}, "buckets for the later epochs"),
        ({"random_epochs": 1}, "expected one number of rows"),
        ({"rows_product": 1152}, "expected one number of rows"),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batching(**fields)


def test_seconds_and_rows_that_do_not_fit_are_refused() -> None:
    entries = Entries(LENGTHS, LABELS, SCALE)
    with pytest.raises(UserError, match="expected at least 3 times as much"):
        make_buckets(entries, Batching.duration(seconds=5.0), devices=2)
    with pytest.raises(UserError, match=r"a batch has 6 rows over all devices .* multiple of 4"):
        make_buckets(entries, MODES["fixed"], devices=2, row_parts=4)
    with pytest.raises(UserError, match="memory-gb needs the model"):
        make_buckets(entries, MODES["2D-bucketing, estimated"], devices=2)
    with pytest.raises(UserError, match="no utterances to plan"):
        make_buckets(Entries(LENGTHS[:0], LABELS[:0], SCALE), MODES["fixed"], devices=2)


def test_an_utterance_that_exceeds_the_budget_is_a_batch_of_its_own() -> None:
    found = make_buckets(Entries(LENGTHS, LABELS, SCALE), Batching.bucketing_1d(seconds=3.0, edges_s=(2.0, 4.5)))
    assert [bucket.batch_size for bucket in found.shapes] == [1, 1]
    [message] = found.warnings
    assert "batches of 4.51 s exceed the budget (3 padded-seconds)" in message

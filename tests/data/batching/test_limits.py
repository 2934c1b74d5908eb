"""Limits of the batches of inference: few shapes, of a grid, that fit the lengths of a set."""

import numpy as np
import pytest

from asr_jax.audio.features import KaldiFbank
from asr_jax.data.batching.index import scale_of
from asr_jax.data.batching.limits import BatchLimits, shapes_of, with_labels

SCALE = scale_of(KaldiFbank(), of_features=False)
LIMITS = BatchLimits(seconds=60.0)


def shapes(*seconds: float, limits: BatchLimits = LIMITS, num_devices: int = 1) -> list[tuple[float, int]]:
    """Seconds and rows of the shapes of a set."""
    lengths = np.rint(np.array(seconds, np.float64) * SCALE.per_s).astype(np.int32)
    buckets = shapes_of(lengths, limits, scale=SCALE, num_devices=num_devices)
    assert all(bucket.length % SCALE.hop == 0 and bucket.length >= bucket.longest + 800 for bucket in buckets)
    assert not len(lengths) or buckets[-1].longest >= lengths.max()
    return [(bucket.longest / SCALE.per_s, bucket.batch_size) for bucket in buckets]


def test_one_short_file_is_one_row() -> None:
    assert shapes(0.64) == [(0.75, 1)]
    assert shapes(0.1) == [(0.5, 1)]
    assert shapes(12.7) == [(16.0, 1)]
    assert shapes(90.0) == [(96.0, 1)], "a row that is longer than a batch"
    assert shapes(12.7, num_devices=4) == [(16.0, 4)]


def test_small_sets_of_similar_lengths_have_the_same_shapes() -> None:
    found = {tuple(shapes(*np.random.default_rng(seed).uniform(4.1, 6, 8))) for seed in range(20)}
    assert found == {((6.0, 8),)}


def test_a_further_shape_saves_a_batch_at_least() -> None:
    assert shapes(*[2.0] * 20, 28.0) == [(2.0, 30), (32.0, 1)]
    assert len(shapes(3.0, 4.0, 8.0)) == 1


@pytest.mark.parametrize(("num", "expected"), [(6, 1), (7, 2)])
def test_a_further_shape_saves_as_much_as_its_program_costs(num: int, expected: int) -> None:
    assert len(shapes(*[2.0] * num, 28.0)) == expected, f"{num} × 30 s of padding"


def test_a_large_set_has_four_shapes_with_little_padding() -> None:
    lengths = np.clip(np.random.default_rng(0).gamma(3.0, 2.5, 3000), 1, 35)  # as LibriSpeech's test sets
    found = shapes(*lengths)
    assert len(found) == 4
    assert all(rows * seconds <= 60 for seconds, rows in found)
    edges = np.array([seconds for seconds, _ in found])
    padded = edges[np.searchsorted(edges, lengths)].sum()
    assert 1 - lengths.sum() / padded < 0.3
    for half in (lengths[::2], lengths[1::2]):
        assert shapes(*half)[:3] == found[:3], "the shapes are those of another set of this kind"


@pytest.mark.parametrize(
    ("limits", "num_devices", "rows"),
    [
        (BatchLimits(60.0), 1, 15),
        (BatchLimits(60.0), 2, 14),
        (BatchLimits(60.0, rows=3), 1, 3),
        (BatchLimits(60.0, rows=3), 4, 4),
        (BatchLimits(1e9), 1, 64),
        (BatchLimits(1e9), 3, 96),
        (BatchLimits(60.0, multiple=8), 4, 8),
        (BatchLimits(20.0, multiple=8), 4, 4),
    ],
)
def test_rows_are_within_the_limits_and_a_multiple_of_the_devices(
    limits: BatchLimits, num_devices: int, rows: int
) -> None:
    assert limits.rows_of(4.0, 50, num_devices=num_devices) == rows


@pytest.mark.parametrize(("num", "rows"), [(1, 1), (5, 8), (14, 15), (16, 8), (17, 4), (31, 8), (48, 15), (1000, 15)])
def test_the_last_batch_is_not_mostly_empty(num: int, rows: int) -> None:
    assert LIMITS.rows_of(4.0, num, num_devices=1) == rows


def test_lengths_end_at_the_longest_audio_that_is_computed_at_once() -> None:
    assert shapes(9.3, limits=BatchLimits(60.0, longest_s=10.0)) == [(10.0, 1)]
    assert shapes(limits=BatchLimits(60.0, longest_s=10.0)) == [(0.5, 1)], "all audio is computed in windows"


def test_room_for_labels() -> None:
    lengths, num_labels = np.array([10, 20, 90]), np.array([0, 9, 130])
    buckets = shapes_of(np.array([8000] * 60 + [8000 * 8]), BatchLimits(1.0), scale=SCALE, num_devices=1)
    assert len(buckets) == 2
    room = [bucket.num_tokens for bucket in with_labels(buckets, lengths * 700, num_labels)]
    assert room == [8, 160]

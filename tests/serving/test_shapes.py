"""Shapes of the batches of a server, and which recordings a batch has."""

import pytest

from asr_jax.data.batching.buckets import Scale
from asr_jax.data.batching.limits import BatchLimits
from asr_jax.serving.shapes import Shapes

SCALE = Scale(per_s=100.0, hop=1, num_values=1)


@pytest.fixture
def shapes():
    return Shapes.of(BatchLimits(seconds=64.0), 8.0, SCALE, num_devices=1)


def test_lengths_and_rows(shapes):
    assert [[bucket.longest for bucket in buckets] for buckets in shapes.of_lengths] == [
        [141] * 4, [200] * 4, [283] * 4, [400] * 3, [566] * 3, [800] * 3
    ]  # fmt: skip
    assert [[bucket.batch_size for bucket in buckets] for buckets in shapes.of_lengths] == [
        [1, 4, 16, 45], [1, 4, 16, 32], [1, 4, 16, 22], [1, 4, 16], [1, 4, 11], [1, 4, 8]
    ]  # fmt: skip
    assert len(shapes.all) == 21
    several = Shapes.of(BatchLimits(seconds=64.0), 8.0, SCALE, num_devices=4)
    assert all(bucket.batch_size % 4 == 0 for bucket in several.all)
    short = Shapes.of(BatchLimits(seconds=64.0), 0.4, SCALE, num_devices=1)
    assert [buckets[0].longest for buckets in short.of_lengths] == [40]


def test_the_first_recording_determines_the_length(shapes):
    bucket, rows = shapes.chosen([190, 700, 90, 165, 170, 180])
    assert (bucket.longest, bucket.batch_size, rows) == (200, 4, [0, 3, 4, 5])
    bucket, rows = shapes.chosen([700, 150, 720, 90, 710])  # shorter ones in the row that is left
    assert (bucket.longest, bucket.batch_size, rows) == (800, 4, [0, 2, 4, 1])
    bucket, rows = shapes.chosen([700, 710])  # two of four rows would be empty
    assert (bucket.longest, bucket.batch_size, rows) == (800, 1, [0])
    bucket, rows = shapes.chosen([90] * 100)
    assert (bucket.batch_size, rows) == (45, list(range(45)))
    assert shapes.chosen([5000])[0].longest == 800  # the audio ends within the tolerance of its header


def test_every_recording_has_a_turn(shapes):
    waiting, taken = [(number, 50 + number * 37 % 700) for number in range(200)], []
    while waiting:
        bucket, rows = shapes.chosen([length for _, length in waiting])
        assert 0 in rows
        assert len(set(rows)) == len(rows) <= bucket.batch_size
        assert all(waiting[row][1] <= bucket.length for row in rows)
        taken += [waiting[row][0] for row in rows]
        waiting = [each for row, each in enumerate(waiting) if row not in rows]
    assert sorted(taken) == list(range(200))

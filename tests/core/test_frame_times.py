"""Hop and first frame, measured from the output lengths of convolutions."""

import numpy as np
import pytest

from asr_jax.core.frame_times import FrameTimes
from tests.support import approx, assert_close


def valid(kernel, stride):
    return lambda num: (num - kernel) // stride + 1


def same(stride):
    return lambda num: -(-num // stride)


@pytest.mark.parametrize(
    ("output_length", "hop", "shift", "first"),
    [
        (valid(400, 160), 160, 160, 120.0),  # a frame is centred on its window of 400 samples
        (same(160), 160, 160, -79.5),  # the first frame is centred on sample 0
        (lambda num: num // 160, 160, 160, 0.0),
        (lambda num: same(4)(num // 160), 160, 640, -240.0),  # frames 0, 4, 8 …: 640 long, the first from sample -240
        (lambda num: valid(5, 2)(valid(400, 160)(num)), 160, 320, 120.0 + 1.5 * 160),
        (same(4), 1, 4, -1.5),
        (valid(400, 320), 1, 320, 40.0),  # the convolutions of wav2vec 2.0
    ],
)
def test_shift_and_first(output_length, hop, shift, first):
    times = FrameTimes.of(output_length, hop=hop, rate_hz=16000)
    assert (times.shift, times.first) == (shift, first)
    assert times.shift_s == shift / 16000
    assert times.seconds(10) == approx((first + 10 * shift) / 16000)
    assert times.seconds(0) == max(first, 0) / 16000


def test_the_middle_of_a_frame_is_what_it_is_computed_from():
    """Two convolutions without padding average a ramp, so each output value is the middle of its receptive field."""
    ramp = np.arange(5000.0)
    inner = np.convolve(ramp, np.ones(40) / 40, mode="valid")[::16]
    outer = np.convolve(inner, np.ones(5) / 5, mode="valid")[::2]
    times = FrameTimes.of(lambda num: valid(5, 2)(valid(40, 16)(num)), hop=16, rate_hz=1.0)
    middles = [(times.seconds(i) + times.seconds(i + 1)) / 2 for i in range(len(outer))]
    assert_close(middles, outer + 0.5)  # sample i is the interval from i to i + 1

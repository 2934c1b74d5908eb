"""Features of streams in pieces of any size: the frames of whole recordings, for the front-end of every system."""

import tracemalloc
import weakref
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from support import assert_within, fast_jit, max_abs

from asr_jax.audio import presets
from asr_jax.audio.features import KaldiFbank, Waveform
from asr_jax.audio.logmel import LogMel
from asr_jax.audio.stages import NormaliseByDataSet, RoundUp, Stack
from asr_jax.audio.streaming import FeatureWindows, SampleBuffer
from asr_jax.core.errors import UserError

LONGEST = 12_000
BY_DATA = NormaliseByDataSet(mean=(-5.0,) * 80, deviation=(2.0,) * 80)
FRONT_ENDS = {
    "icefall": presets.icefall(),
    "rnnt": presets.rnnt(BY_DATA),
    "rust_zipformer": presets.rust_zipformer(),
    "funasr": presets.funasr(NormaliseByDataSet(mean=(0.0,) * 560, deviation=(1.0,) * 560)),
    "nemo": replace(presets.nemo(), then=()),
    "ceil": LogMel(
        framing="ceil", window_ms=20.0, window="hamming", then=(RoundUp(),)
    ),  # a window begins with the second hop
    "hop_centred": LogMel(framing="hop_centred", window_ms=20.0),
    "snipped": KaldiFbank(snip_edges=True, then=(Stack(2, 2, ends="dropped"),)),
    "waveform": Waveform(),
}


@cache
def computed(name, size, shift, before=0):
    """Windows of a front-end, and its compiled functions for windows and for whole recordings."""
    windows = FeatureWindows(FRONT_ENDS[name], size, shift, before)
    return windows, fast_jit(windows), fast_jit(FRONT_ENDS[name])


def cuts(rng, num):
    """Pieces of a recording: some empty, some of one sample, some longer than windows."""
    left = num
    while left:
        size = min(left, int(rng.choice([0, 1, 159, 160, rng.integers(1, 900), rng.integers(1, 6000)])))
        yield size
        left -= size


def streamed(name, sizes, samples, pieces):
    windows, compute, _ = computed(name, *sizes)
    buffer, found = SampleBuffer(windows), []

    def take():
        while buffer.is_ready:
            given = buffer.take()
            frames = compute(given.samples[None], np.int32([given.length]), np.int32([given.skipped]))
            found.append(np.asarray(frames.values)[0, : int(frames.lengths[0])])

    at = 0
    for piece in pieces:
        buffer.add(samples[at : at + piece])
        at += piece
        take()
        assert buffer._num == sum(map(len, buffer._pieces)) <= windows.num_samples
    buffer.end()
    take()
    return found


@pytest.mark.parametrize(
    ("name", "sizes"),
    [*((name, (7, 4)) for name in FRONT_ENDS if name != "waveform"), ("waveform", (500, 400)), ("nemo", (6, 6, 3))],
)
def test_frames_are_those_of_the_whole_recording(name, sizes):
    rng = np.random.default_rng(3)
    size, shift, before = (*sizes, 0)[:3]
    whole = computed(name, *sizes)[2]
    for num in (LONGEST, LONGEST - 1, 5 * 960, 961, 400, 80, 1, 0):
        samples = rng.integers(-9000, 9000, num).astype(np.int16)
        padded = np.zeros((1, LONGEST), np.int16)
        padded[0, :num] = samples
        expected = whole(padded, np.int32([num]))
        values = np.asarray(expected.values)[0, : int(expected.lengths[0])]
        for _ in range(3):
            found = streamed(name, sizes, samples, list(cuts(rng, num)))
            begins = range(-before, len(values), shift) if len(values) else ()
            for each, begin in zip(found, begins, strict=True):
                here = values[max(begin, 0) : begin + size]
                each = each[max(-begin, 0) :]
                assert len(here) == len(each) > 0
                assert_within(max_abs(each, here), 1e-5, scale=max(np.abs(here).max(), 1), what=f"{num} samples")


def test_samples_are_taken_as_soon_as_they_are_enough():
    """With windows that end with their hop, no sample after the last frame is waited for."""
    windows, _, _ = computed("rnnt", 4, 4)
    buffer = SampleBuffer(windows)
    buffer.add(np.zeros(4 * 480 - 1, np.int16))
    assert not buffer.is_ready
    buffer.add(np.zeros(1, np.int16))
    assert buffer.is_ready
    assert buffer.take().length == 4 * 480


def test_time_and_memory_are_linear_in_the_samples():
    """Neither a piece nor a window copies all samples that wait, and the caller's array can be freed."""

    def most_of(call):
        tracemalloc.start()
        call()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    windows, _, _ = computed("rnnt", 4, 4)
    buffer, given = SampleBuffer(windows), np.zeros(1_000_000, np.int16)
    buffer.add(given)
    freed = weakref.ref(given)
    del given
    assert freed() is None
    assert most_of(lambda: buffer.add(np.zeros(160, np.int16))) < 100_000
    assert most_of(buffer.take) < 100_000


def test_rows_without_a_window_are_empty():
    windows, compute, _ = computed("icefall", 7, 4)
    silence = np.zeros((2, windows.num_samples), np.int16)
    frames = jax.device_get(compute(silence, np.int32([0, windows.num_samples]), np.int32([0, 0])))
    assert frames.lengths.tolist() == [0, 7]


@pytest.mark.parametrize(
    ("front_end", "setting"),
    [
        (presets.nemo(), "Normalise"),
        (presets.whisper(), "LimitRange"),
        (LogMel(normalise_samples=True), "normalise_samples"),
    ],
)
def test_front_ends_that_read_whole_recordings_are_refused(front_end, setting):
    with pytest.raises(UserError, match=rf"the front-end has {setting}, .* train with NormaliseByDataSet"):
        FeatureWindows(front_end, 8, 8)

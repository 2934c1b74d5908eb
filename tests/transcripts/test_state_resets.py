"""State resets: the windows and the rule of CAIMAN-ASR."""

import numpy as np
import pytest

from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.transcripts.seams import WindowPart
from asr_jax.transcripts.state_resets import StateResets, joined_by_resets
from asr_jax.transcripts.windows import Windows, windows_of
from tests.support import approx


def part(first, num, tokens, starts, score=0.0):
    """A window with tokens at frames of its own."""
    starts = tuple(start + first for start in starts)
    ends = tuple(start + 1 for start in starts)
    return WindowPart(first, first + num, TokenSequence(tuple(tokens), starts, ends, (-0.5,) * len(starts), score))


@pytest.mark.parametrize(
    ("tokens", "starts", "kept", "times"),
    [
        # The example of CAIMAN-ASR's `get_unique_predictions`.
        ([2, 6, 5, 9, 7], [1, 3, 4, 5, 6], [9, 7], [5, 6]),
        ([5, 3, 6, 9], [2, 3, 4, 5], [3, 6, 9], [3, 4, 5]),  # 3 and 6 are before 5 in the first window
        ([3, 5, 5, 5], [2, 3, 4, 5], [5, 5], [4, 5]),  # each is dropped once
        ([8, 8, 8, 5], [2, 3, 4, 5], [8, 8, 8, 5], [2, 3, 4, 5]),  # only the first three are looked at
        ([2], [3], [2], [3]),  # 2 is not among the last three
        ([5, 6], [0, 1], [], []),
        ([], [], [], []),
    ],
)
def test_tokens_in_the_window_before_and_repeated_ones_are_dropped(tokens, starts, kept, times):
    before, after = part(0, 10, [7, 2, 3, 6, 5], [1, 2, 3, 4, 6], -4.0), part(8, 10, tokens, starts, -5.0)
    found = joined_by_resets([before, after])
    assert found.tokens == (7, 2, 3, 6, 5, *kept)
    assert found.starts == (1, 2, 3, 4, 6, *(time + 8 for time in times))
    assert found.ends == tuple(start + 1 for start in found.starts)
    assert len(found.log_probs) == len(found.tokens)
    assert found.score == approx(-4.0 - 5.0 * 8 / 10)


def test_only_the_window_directly_before_counts():
    windows = [part(0, 10, [1, 2, 3], [7, 8, 9]), part(8, 10, [], []), part(16, 10, [3, 4], [2, 3])]
    assert joined_by_resets(windows).tokens == (1, 2, 3, 3, 4)
    assert joined_by_resets([]).tokens == ()
    # What a window itself has lost does not count either.
    windows = [part(0, 10, [1, 2], [7, 8]), part(8, 10, [2, 5], [2, 3]), part(16, 10, [2, 5], [2, 3])]
    assert joined_by_resets(windows).tokens == (1, 2, 5, 2)


def test_windows_of_fifteen_seconds_begin_every_twelve():
    """The frames of CAIMAN-ASR are 60 ms. The last window begins after a step, as all others."""
    times, resets = FrameTimes(shift=960, first=0.0, rate_hz=16000), StateResets()
    sizes = [round(each * 16000) for each in (resets.window_s, resets.overlap_s)]
    windows = Windows.of(times, sizes[0], overlap=sizes[1], is_last_full=False)
    for seconds, begins in ((15.0, [0]), (15.1, [0, 12]), (39.0, [0, 12, 24]), (39.1, [0, 12, 24, 36])):
        samples = np.arange(round(seconds * 16000)).astype(np.int16)
        found = list(windows_of(np.array_split(samples, 7), windows))
        assert [window.first_frame * 0.06 for window in found] == approx(begins)
        for window, begin in zip(found, begins, strict=True):
            np.testing.assert_array_equal(window.samples, samples[begin * 16000 :][: 15 * 16000])

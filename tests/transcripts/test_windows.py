"""Long audio: windows on the frame grid, seams that neither double nor lose a label, pieces cut between words."""

import itertools

import jax
import numpy as np
import pytest

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.errors import UserError
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.quartznet import QuartzNet
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.models.zipformer import Zipformer
from asr_jax.search.ctc_greedy import greedy_search
from asr_jax.text.spelling import Spelling
from asr_jax.transcripts.seams import FrameLogProbs, FramePath, WindowPart, joined_parts, joined_windows, seam, together
from asr_jax.transcripts.windows import Windows, pause, pieces, windows_of
from tests.support import approx

BLANK = 0
ENCODERS = {
    "zipformer": Zipformer.tiny(),
    "causal": Zipformer.tiny(causal=True),
    "conformer": Conformer.tiny(),
    "fastconformer": Conformer.tiny(subsampling_factor=8, kernel_size=9),
    "squeezeformer": Squeezeformer.tiny(),
    "quartznet": QuartzNet.tiny(num_mels=80),
}


def recogniser(encoder):
    model = Model(encoder=encoder, heads={"ctc": CTC()}, front_end=KaldiFbank(), augment=())
    return model.build(vocab_size=9, blank_id=BLANK, precision="f32")


def in_blocks(samples, rng):
    while len(samples):
        num = int(rng.integers(1, 90000))
        yield samples[:num]
        samples = samples[num:]


@pytest.mark.parametrize("name", ENCODERS)
def test_windows_begin_on_the_grid_and_end_with_the_recording(name):
    model, rng = recogniser(ENCODERS[name]), np.random.default_rng(0)
    windows = Windows.of(model.frame_times(), 91776)
    per_frame = windows.per_frame
    for num in (91777, 150000, 500001, 91776 + windows.step, 91777 + windows.step, 500, 91776):
        samples = rng.integers(-9, 9, num).astype(np.int16)
        found = list(windows_of(in_blocks(samples, rng), windows))
        for window in found:
            begin = window.first_frame * per_frame
            assert begin % windows.grid == 0
            np.testing.assert_array_equal(window.samples, samples[begin : begin + len(window.samples)])
            # The last window may be shorter, by less than the grid, because it starts on the grid.
            assert len(window.samples) > min(num, windows.size) - windows.grid
            assert len(window.samples) <= windows.size
        ends = [window.first_frame + model.output_length(len(window.samples)) for window in found]
        assert ends[-1] == model.output_length(num)
        for end, after in zip(ends, found[1:], strict=False):
            assert end > after.first_frame


def test_windows_that_do_not_go_on_are_refused():
    times = recogniser(ENCODERS["conformer"]).frame_times()
    with pytest.raises(UserError, match=r"windows of 2 s that overlap by 1\.9 s: expected"):
        Windows.of(times, 32000, overlap=30400)
    with pytest.raises(UserError, match="an overlap of more than"):
        Windows.of(times, 5120 * 4, overlap=0)


def made_windows(seed, *, jitter, every, size=140, step=93, num=900):
    """The labels of a recording as spikes, and windows of it.

    Each window moves every spike by up to `jitter` frames, and has random symbols near its edges.
    """
    rng = np.random.default_rng(seed)
    places = np.arange(5, num - 5, every)
    labels = rng.integers(1, 9, len(places))
    computed = []
    for first in range(0, num - size + step, step):
        path = np.full(min(size, num - first), BLANK, np.int32)
        for place, label in zip(places + rng.integers(-jitter, jitter + 1, len(places)), labels, strict=True):
            if 0 <= place - first < len(path):
                path[place - first] = label
        if first:
            path[:8] = rng.integers(0, 9, 8)
        if first + len(path) < num:
            path[-8:] = rng.integers(0, 9, 8)
        computed.append(FrameLogProbs(first, path, np.zeros((len(path),), np.float32)))
    return labels, computed


def labels_of(path):
    return [label for label, _ in itertools.groupby(path.tolist()) if label != BLANK]


@pytest.mark.parametrize(("jitter", "every"), [(0, 7), (1, 7), (2, 7), (3, 13)])
def test_no_label_is_doubled_or_lost_at_seams(jitter, every):
    wrong_in_the_middle = 0
    for seed in range(60):
        labels, computed = made_windows(seed, jitter=jitter, every=every)
        whole = together(joined_windows(iter(computed), blank_id=BLANK))
        assert (whole.first_frame, len(whole.path)) == (0, 900)
        assert labels_of(whole.path) == labels.tolist()
        cuts = [(left.end_frame + right.first_frame) // 2 for left, right in itertools.pairwise(computed)]
        parts = zip(computed, [0, *cuts], [*cuts, 900], strict=True)
        plain = np.concatenate([each.between(first, end).path for each, first, end in parts])
        wrong_in_the_middle += labels_of(plain) != labels.tolist()
    # Seams exactly in the middle double and lose labels if windows differ, so this test would detect them.
    assert (wrong_in_the_middle > 10) == (jitter > 0)


def test_windows_that_agree_nowhere_still_give_every_frame_once():
    computed = [
        FrameLogProbs(first, np.full(50, 1 + n, np.int32), np.zeros(50, np.float32))
        for n, first in enumerate((0, 30, 41))
    ]
    whole = together(joined_windows(iter(computed), blank_id=BLANK))
    assert len(whole.path) == 91
    assert labels_of(whole.path) == [1, 2, 3]
    left, right = (FramePath(each.first_frame, each.path) for each in computed[:2])
    assert 36 <= seam(left, right, blank_id=BLANK) <= 44  # in or next to the middle third of the overlap, 30 to 50


def test_a_last_window_that_begins_before_the_seam_of_the_one_before():
    full = np.zeros(300, np.int32)
    full[::10] = np.arange(30) % 8 + 1
    computed = [
        FrameLogProbs(a, full[a:b], np.arange(a, b, dtype=np.float32)) for a, b in ((0, 120), (60, 180), (64, 184))
    ]
    whole = together(joined_windows(iter(computed), blank_id=BLANK))
    np.testing.assert_array_equal(whole.path, full[:184])
    np.testing.assert_array_equal(whole.logps, np.arange(184))


SPELLING = Spelling.of_surfaces(["", " ", "a", "b"], blank_id=0)
PIECES = Spelling.of_surfaces(["", " a", "b", " c"], blank_id=0)


def test_pauses_between_words_come_before_longer_ones_within_them():
    path = np.array([2, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 2, 3, 0, 0])
    assert pause(path, SPELLING, least=3, most=13) == 10  # with the border: frames 8 to 10
    assert pause(path, SPELLING, least=3, most=7) == 5  # no border in this range: a pause within the word
    assert pause(np.full(9, 2), SPELLING, least=3, most=8) == 8
    path = np.array([1, 0, 0, 0, 0, 2, 0, 0, 3, 0, 2])
    assert pause(path, PIECES, least=2, most=9) == 7  # before " c"
    chinese = Spelling.of_surfaces(["", " ", "a", "今"], blank_id=0)
    path = np.array([2, 1, 0, 2, 0, 0, 0, 2, 0, 0, 3, 0, 3, 0, 2, 3])
    assert pause(path, chinese, least=3, most=13) == 9  # between "a" and "今", not the longest one within "aa"


@pytest.mark.parametrize("spelling", [SPELLING, PIECES])
def test_pieces_hold_every_frame_once_and_are_cut_between_words(spelling):
    rng = np.random.default_rng(1)
    path = np.where(rng.random(3000) < 0.8, 0, rng.integers(1, 4, 3000)).astype(np.int32)
    parts = [
        FrameLogProbs(n, path[n : n + 70], rng.normal(size=(70, 4)).astype(np.float32)) for n in range(0, 2940, 70)
    ]
    found = list(pieces(iter(parts), spelling, most_frames=100))
    assert all(33 <= len(piece.path) <= 100 for piece in found[:-1])
    np.testing.assert_array_equal(together(found).path, path[:2940])
    np.testing.assert_array_equal(together(found).logps, together(parts).logps)
    assert [piece.first_frame for piece in found] == np.cumsum([0, *(len(each.path) for each in found[:-1])]).tolist()

    def words(piece):
        finished, part = spelling.words(spelling.collapse(piece.path))
        return [*finished, *([part] if part else [])]

    assert [word for piece in found for word in words(piece)] == words(together(parts))


searched = jax.jit(greedy_search, static_argnames="blank_id")


def part_of(path, first_frame):
    """Result of a greedy search in frames from `first_frame` on."""
    found = searched(np.float32(9 * np.eye(4)[path][None]), np.array([len(path)], np.int32), blank_id=BLANK)
    (sequence,) = jax.device_get(found).sequences(0)
    starts, ends = (tuple(frame + first_frame for frame in each) for each in (sequence.starts, sequence.ends))
    return WindowPart(first_frame, first_frame + len(path), sequence._replace(starts=starts, ends=ends))


@pytest.mark.parametrize("seed", range(20))
def test_tokens_are_joined_as_frames_are(seed):
    """Windows differ only in frames near their edges. Some seams are within tokens."""
    rng = np.random.default_rng(seed)
    whole = np.repeat(rng.integers(0, 4, 60), rng.integers(1, 6, 60))[:120]
    paths = []
    for first in (0, 30, 60):
        path = whole[first : first + 60].copy()
        for edge in (slice(0, 5), slice(-5, None)):
            path[edge] = np.where(rng.random(5) < 0.5, rng.integers(0, 4, 5), path[edge])
        paths.append((first, path))
    computed = [FrameLogProbs(first, path, np.zeros((60, 4), np.float32)) for first, path in paths]
    path = together(joined_windows(computed, blank_id=BLANK)).path
    (whole_part,) = [part_of(path, 0)]
    found = joined_parts(part_of(path, first) for first, path in paths)
    assert (found.tokens, found.starts, found.ends) == whole_part.tokens[:3]


def test_tokens_that_share_frames_are_each_kept_once():
    """Token times as of a transducer or an attention decoder: two tokens in a frame, equal ones, and a long gap."""
    tokens = [(1, 3, 4), (1, 3, 4), (2, 10, 10), (2, 10, 12), (3, 70, 71)]

    def window(first, end):
        rows = [each for each in tokens if first <= each[1] and each[2] <= end]
        columns = [tuple(row[place] for row in rows) for place in range(3)]
        return WindowPart(first, end, TokenSequence(*columns, (-0.5,) * len(rows), -6.0))

    found = joined_parts([window(0, 60), window(40, 100)])
    assert list(zip(*found[:3], strict=True)) == tokens
    assert found.score == approx(-10.0), "the overlap of a third counts once"
    assert joined_parts([window(20, 60)]).tokens == ()

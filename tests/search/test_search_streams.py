"""Searches of streams: over windows of any lengths, the results of whole recordings; settled tokens never change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.search.ctc_beam import CTCBeamSearch
from asr_jax.search.ctc_beam_streams import CTCBeamStreams
from asr_jax.search.ctc_greedy import BestLabels, GreedyStreams, greedy_search
from asr_jax.search.hypotheses import Search
from asr_jax.search.label_synchronous import LabelDecoding
from asr_jax.search.transducer_beam import TransducerBeamSearch, TransducerSearch
from asr_jax.search.transducer_beam_streams import TransducerBeamStreams
from asr_jax.search.transducer_greedy import (
    Carried,
    Decision,
    GreedyTransducerStreams,
    greedy_transducer_search,
)
from asr_jax.search.word_scores import Fusion
from asr_jax.text.spelling import Spelling
from tests.search import test_ctc_beam as of_ctc
from tests.search import test_transducer_beam as of_transducer
from tests.search.test_transducer_greedy import BLANK
from tests.support import approx, assert_close

SIZE = 3
"""Number of frames of a window."""
STARTS = (0, 2, 1, 0, 3, 1)
"""First window of each stream."""


def windows(lengths, starts):
    """Places and lengths of the windows of each step, and whether rows begin an utterance. Some steps wait."""
    rng, at, begun = np.random.default_rng(0), np.zeros(len(lengths), int), np.zeros(len(lengths), bool)
    step = 0
    while (at < lengths).any():
        waits = (rng.random(len(lengths)) < 0.2) | (step < np.asarray(starts))
        sizes = np.where(waits, 0, np.minimum(lengths - at, SIZE))
        yield at.copy(), sizes, ~begun & (sizes > 0)
        begun |= sizes > 0
        at += sizes
        step += 1


def cut(values, at):
    """The window of each row, with garbage beyond the lengths."""
    padded = np.pad(np.nan_to_num(values, nan=7.0), ((0, 0), (0, SIZE), *((0, 0),) * (values.ndim - 2)))
    return np.stack([row[place : place + SIZE] for row, place in zip(padded, at, strict=True)])


def followed(streams, steps, given):
    """Gives all windows to a search, and checks that settled tokens remain."""
    rows = len(STARTS)
    settled = [() for _ in range(rows)]
    for at, sizes, begins in steps:
        streams.take(given(at, sizes), sizes, begins)
        for row in np.flatnonzero(sizes).tolist():
            best = streams.hypotheses(row)[0].tokens
            assert best[: len(settled[row])] == settled[row]
            settled[row] = best[: streams.num_settled(row)]
    return settled


def assert_same(found, expected):
    assert [each[:3] for each in found] == [each[:3] for each in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(np.float64(ours.log_probs), np.float64(theirs.log_probs), rtol=0, atol=2e-5)
        assert ours.score == approx(theirs.score, abs=1e-4)


def test_greedy_ctc():
    log_probs = of_ctc.emissions(3, of_ctc.CHARACTERS)
    lengths = of_ctc.LENGTHS
    whole = jax.device_get(greedy_search(jnp.nan_to_num(log_probs), jnp.asarray(lengths), blank_id=0))
    streams = GreedyStreams(len(lengths), blank_id=0)
    settled = followed(streams, windows(lengths, STARTS), lambda at, _: BestLabels.of(jnp.asarray(cut(log_probs, at))))
    for row in np.flatnonzero(lengths).tolist():
        assert_same(streams.hypotheses(row), whole.sequences(row))
        assert settled[row] == streams.hypotheses(row)[0].tokens
    assert max(map(len, settled)) > 3


@pytest.mark.parametrize(
    ("settings", "fusion"),
    [
        (of_ctc.BEAM, Fusion(hot_words=("ab",))),
        *(
            pytest.param(settings, fusion, marks=pytest.mark.slow)
            for settings, fusion in (
                (of_ctc.BEAM, None),
                (Search(beam_width=3, alignments="max", token_min_logp=-2.5), None),
                (Search(beam_width=8, rules="pyctcdecode"), None),
                (of_ctc.FLASHLIGHT, Fusion(hot_words=("ab", "cab:3"))),
            )
        ),
    ],
)
def test_beam_of_ctc(settings, fusion):
    spelling, lengths = of_ctc.CHARACTERS, of_ctc.LENGTHS
    scores = fusion and fusion.build()
    search, longest = CTCBeamSearch(spelling, search=settings, scores=scores), 0
    for seed in range(4):
        log_probs = of_ctc.emissions(seed, spelling)
        if seed % 2:  # frames in which only the blank is a candidate are skipped, also at the edges of windows
            log_probs[:, np.random.default_rng(seed).random(log_probs.shape[1]) < 0.5] = np.log(
                [0.999, 2e-4, 3e-4, 4e-4, 1e-4]
            )
        whole = search(log_probs, lengths)
        streams = CTCBeamStreams(search, len(lengths))

        def given(at, sizes, values=log_probs):
            return Frames(jnp.asarray(cut(values, at)), jnp.asarray(sizes, jnp.int32))

        followed(streams, windows(lengths, STARTS), given)
        for row in np.flatnonzero(lengths).tolist():
            assert_same(streams.final(row), [each.sequence for each in whole[row]])
            assert [each.words for each in streams.n_best(row)] == [each.words for each in whole[row]]
            longest = max(longest, len(whole[row][0].labels))
    assert longest > 3


@pytest.mark.slow
def test_a_window_computes_only_the_last_words(monkeypatch):
    """The paths do not become longer, although two labels of an early frame remain in the beam."""
    search = CTCBeamSearch(of_ctc.CHARACTERS, search=Search(beam_width=4, beam_prune_logp=-3.0))
    probs = np.full((120, 5), 0.02)
    probs[np.arange(120), np.tile([3, 1, 2, 4, 0, 4], 20)] = 0.92
    probs[16] = [0.01, 0.01, 0.5, 0.47, 0.01]
    log_probs, sizes = np.float32(np.log(probs))[None], []
    [whole] = search(log_probs, np.array([120]))
    for name in ("collapse", "runs"):
        computed = getattr(Spelling, name)

        def of_path(self, path, *given, computed=computed):
            sizes.append(len(path))
            return computed(self, path, *given)

        monkeypatch.setattr(Spelling, name, of_path)
    streams = CTCBeamStreams(search, 1)
    for at in range(0, 120, SIZE):
        given = Frames(jnp.asarray(log_probs[:, at : at + SIZE]), jnp.full(1, SIZE))
        streams.take(given, np.array([SIZE]), np.array([at == 0]))
        found, num_settled = streams.n_best(0), streams.num_settled(0)
    assert max(sizes) <= 4 * SIZE
    assert [each.words for each in found] == [each.words for each in whole]
    first, second = (each.labels for each in found[:2])
    same = next(place for place, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)
    assert num_settled == same > 10


@pytest.mark.parametrize("durations", [pytest.param(False, marks=pytest.mark.slow), True])
def test_greedy_transducer(durations):
    """Durations lead beyond windows."""
    rng, lengths, num_rows = np.random.default_rng(1), np.array([11, 0, 1, 2, 11, 8]), len(STARTS)
    logits = rng.normal(0, 2, (num_rows, 11, 23, 4)) + np.array([0, 0, 0, 1.0])[None, None, None]
    jumps_of = rng.integers(0, 6, logits.shape[:2]) if durations else np.zeros(logits.shape[:2], int)

    @jax.jit
    def search(logits, jumps_of, lengths, carried):
        def decide(at, num_labels):
            rows = jnp.arange(num_rows)[:, None]
            values = jnp.asarray(logits, jnp.float32)[rows, at, num_labels[:, None]]
            best, labels, jumps = values.max(-1), values.argmax(-1).astype(jnp.int32), jumps_of[rows, at]
            jumps = jnp.where(labels == BLANK, jnp.maximum(jumps, 1), jumps)
            return Decision(labels, best - jax.nn.logsumexp(values, axis=-1), jumps)

        return greedy_transducer_search(
            lengths, logits.shape[1], decide=decide, start=jnp.zeros(num_rows, jnp.int32),
            advance=lambda before, labels: before + 1, blank_id=BLANK, max_symbols=2, carried=carried,
        )  # fmt: skip

    whole = jax.device_get(search(logits, jnp.int32(jumps_of), jnp.int32(lengths), None)[0])
    zeros = jnp.zeros(num_rows, jnp.int32)
    carried = Carried(zeros, zeros)

    def given(at, sizes):
        nonlocal carried
        found, carried = search(cut(logits, at), jnp.int32(cut(jumps_of, at)), jnp.int32(sizes), carried)
        return found

    streams = GreedyTransducerStreams(num_rows)
    settled = followed(streams, windows(lengths, STARTS), given)
    for row in np.flatnonzero(lengths).tolist():
        assert_same(streams.hypotheses(row), whole.sequences(row))
        assert settled[row] == streams.hypotheses(row)[0].tokens


@pytest.mark.parametrize(
    ("settings", "max_symbols", "fusion"),
    [
        (TransducerSearch(), 1, None),
        pytest.param(TransducerSearch(), 5, None, marks=pytest.mark.slow),
        pytest.param(
            TransducerSearch(same="texts", length_normalised=False, token_prune_logp=-3.0, label_prune_logp=-2.0),
            3,
            None,
            marks=pytest.mark.slow,
        ),
        pytest.param(TransducerSearch(), 3, Fusion(hot_words=("ab", "ba:4")), marks=pytest.mark.slow),
    ],
)
def test_beam_of_transducers(settings, max_symbols, fusion):
    scores = fusion and fusion.build()
    search = TransducerBeamSearch(of_transducer.PIECES, search=settings, max_symbols=max_symbols, scores=scores)
    for seed in range(2):
        frames = of_transducer.frames_of(seed)
        lengths = np.concatenate([frames.lengths, [0, 0]])
        values = np.concatenate([np.asarray(frames.values), np.zeros((2, *frames.values.shape[1:]), np.float32)])
        whole = search(frames)
        streams = TransducerBeamStreams(search, len(lengths))
        streams.variables = frames.variables

        def given(at, sizes, values=values, frames=frames):
            return frames.replace(values=jnp.asarray(cut(values, at)), lengths=jnp.asarray(sizes, jnp.int32))

        followed(streams, windows(lengths, STARTS), given)
        for row in np.flatnonzero(lengths).tolist():
            assert_same(streams.final(row), [each.sequence for each in whole[row]])
    assert max(len(each[0].labels) for each in whole) > 2


@pytest.mark.slow
def test_an_utterance_begins_without_the_one_before():
    """After an endpoint, the results are those of a stream that begins there."""
    lengths = np.array([6, 6])
    rows = of_ctc.emissions(5, of_ctc.CHARACTERS)[[0, 4], :6]
    frames = of_transducer.frames_of(2)
    values = np.nan_to_num(np.asarray(frames.values))[[0, 3], :6]
    ctc = CTCBeamSearch(of_ctc.CHARACTERS, search=of_ctc.BEAM)
    transducer = TransducerBeamSearch(of_transducer.PIECES, search=TransducerSearch(), max_symbols=1)
    of_transducers = TransducerBeamStreams(transducer, 2)
    of_transducers.variables = frames.variables
    for streams, window in (
        (CTCBeamStreams(ctc, 2), lambda at: Frames(jnp.asarray(rows[:, at : at + 3]), jnp.int32([3, 3]))),
        (GreedyStreams(2, blank_id=0), lambda at: BestLabels.of(jnp.asarray(rows[:, at : at + 3]))),
        (
            of_transducers,
            lambda at: frames.replace(values=jnp.asarray(values[:, at : at + 3]), lengths=jnp.int32([3, 3])),
        ),
    ):
        found = []
        for first in (3, 0):  # the second time, after other frames
            for at in range(first, 6, 3):
                streams.take(window(at), lengths // 2, np.full(2, at == 3))
            found.append([streams.hypotheses(row) for row in range(2)])
        assert found[0] == found[1]


def test_what_cannot_be_searched_in_streams_is_refused(tmp_path):
    path = tmp_path / "lm.arpa"
    path.write_text(of_ctc.ARPA)
    scores = Fusion(kenlm=str(path)).build()
    search = CTCBeamSearch(of_ctc.CHARACTERS, search=of_ctc.BEAM, scores=scores)
    with pytest.raises(UserError, match=r"fusion\.kenlm is set, which the beam search of streams"):
        CTCBeamStreams(search, 1)
    with pytest.raises(UserError, match="reads whole recordings: expected a CTC or a transducer head"):
        LabelDecoding().streams(None, num_rows=1, blank_id=0)
    frames = of_transducer.frames_of(0, durations=(0, 1, 2))
    streams = TransducerBeamStreams(
        TransducerBeamSearch(of_transducer.PIECES, search=TransducerSearch(), max_symbols=1), 4
    )
    with pytest.raises(UserError, match="labels with durations"):
        streams.take(frames, of_transducer.LENGTHS, np.ones(4, bool))

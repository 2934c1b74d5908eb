"""Cutting at pauses, with synthetic paths and a hop of 0.1 s."""

import math

import numpy as np
import pytest

from asr_jax.alignment.ctc_segment import LongPath
from asr_jax.alignment.cutting import ALONE, FOREIGN, LOW_SCORE, NO_PAUSE, UNHEARD, Cutting, TextWord, pieces
from tests.support import approx

SHIFT_S = 0.1


def made(spans, *, num_frames, foreign=(), log_probs=None):
    """Returns words w0, w1, … of two labels each. A span of None is a word that is not in the audio. Frames outside of
    words are quiet."""
    starts, ends, energies = [], [], np.full(num_frames, 1.0)
    words = [TextWord(f"w{i}", 2 * i, 2 * i + 2) for i in range(len(spans))]
    for span in spans:
        first, last = span or (-1, -1)
        starts += [first, last - 1 if span else -1]
        ends += [first + 1 if span else -1, last]
        energies[max(first, 0) : max(last, 0)] = 1e6
    is_foreign = np.zeros(num_frames, bool)
    is_foreign[list(foreign)] = True
    log_probs = np.full(num_frames, -0.01) if log_probs is None else log_probs
    return words, LongPath(np.array(starts), np.array(ends), log_probs, is_foreign), energies


def cut(made, **settings):
    return pieces(*made, Cutting(**({"min_words": 1} | settings)), shift_s=SHIFT_S)


def test_it_is_cut_where_the_pause_is_longest_and_quiet():
    spans = [(10, 20), (23, 33), (36, 46), (56, 66), (69, 79)]  # pauses of 3, 3, 10 and 3 frames
    found = cut(made(spans, num_frames=100), max_s=7, margin_s=0.4)
    assert [piece.text for piece in found] == ["w0 w1 w2", "w3 w4"]
    assert [(piece.start, piece.end) for piece in found] == [(6, 50), (52, 83)]
    wide = cut(made(spans, num_frames=100), max_s=7.0)
    assert [(piece.start, piece.end) for piece in wide] == [(0, 51), (51, 89)]
    assert all(piece.score == approx(-0.01) and not piece.reasons for piece in found)


def test_a_long_pause_is_always_cut():
    found = cut(made([(10, 20), (45, 55)], num_frames=80), max_pause_s=2.0)
    assert [(piece.text, piece.start, piece.end) for piece in found] == [("w0", 0, 30), ("w1", 35, 65)]


def test_words_without_a_pause_between_stay_together():
    spans = [(10, 30), (31, 50), (51, 70), (80, 90)]
    found = cut(made(spans, num_frames=100), max_s=5, margin_s=0.5)
    assert [(piece.text, piece.reasons) for piece in found] == [("w0 w1 w2", (NO_PAUSE,)), ("w3", ())]


def test_foreign_speech_and_what_no_pause_parts_from_it_are_left_out():
    spans = [(5, 10), (20, 25), (26, 30), (60, 65), (75, 80)]
    found = cut(made(spans, num_frames=90, foreign=[31, 34, 38, 42]))
    assert [(piece.text, piece.reasons) for piece in found] == [
        ("w0", ()),
        ("w1 w2", (FOREIGN,)),
        ("w3 w4", ()),
    ]
    assert 43 < found[1].end <= found[2].start < 60
    apart = cut(made(spans, num_frames=90, foreign=[40, 44, 48]))
    assert [(piece.text, piece.reasons) for piece in apart] == [("w0 w1 w2", ()), ("", (FOREIGN,)), ("w3 w4", ())]
    assert math.isnan(apart[1].score)
    assert apart[1].start <= 40
    assert apart[1].end >= 49


def test_words_that_are_not_in_the_audio():
    spans = [(5, 10), None, None, (40, 45), (46, 50), None, (51, 55)]
    found = cut(made([*spans, (70, 80)], num_frames=90))
    texts = [(piece.text, piece.reasons) for piece in found]
    assert texts == [("w0", ()), ("w1 w2 w3 w4 w5 w6", (UNHEARD,)), ("w7", ())]
    found = cut(made(spans[:5], num_frames=60))
    texts = [(piece.text, piece.reasons) for piece in found]
    assert texts == [("w0", ()), ("w1 w2", (UNHEARD,)), ("w3 w4", ())]
    words, path, energies = made([(5, 10), None, (30, 35)], num_frames=40)
    words[1] = words[1]._replace(problem="outside of the vocabulary: 'é'")
    assert [piece.reasons for piece in pieces(words, path, energies, Cutting(min_words=1), shift_s=SHIFT_S)] == [
        (),
        ("outside of the vocabulary: 'é'",),
        (),
    ]
    nothing = cut(made([None, None], num_frames=30))
    assert [(piece.text, piece.reasons) for piece in nothing] == [("w0 w1", (UNHEARD,))]


def test_few_words_beside_what_is_not_sure():
    spans = [*((at, at + 5) for at in range(5, 45, 10)), None, (60, 65), (70, 75)]
    texts = [(piece.text, piece.reasons) for piece in pieces(*made(spans, num_frames=90), Cutting(), shift_s=SHIFT_S)]
    assert texts == [("w0 w1 w2 w3", ()), ("w4 w5 w6", (UNHEARD, ALONE))]
    assert [piece.reasons for piece in cut(made([(60, 65), (70, 75)], num_frames=90))] == [()]


def test_the_score_is_of_the_worst_part():
    log_probs = np.full(100, -0.1)
    log_probs[50:60] = -4.0
    found = cut(made([(40, 70)], num_frames=100, log_probs=log_probs), score_s=2.0, min_score=-2.0)
    assert found[0].score == approx((10 * -4 + 10 * -0.1) / 20)
    assert found[0].reasons == (LOW_SCORE,)
    assert cut(made([(40, 70)], num_frames=100, log_probs=log_probs), score_s=2.0, min_score=-2.1)[0].reasons == ()


def test_settings_that_cannot_be():
    for settings, message in (({"min_pause_s": 3.0}, "min_pause_s is 3.0"), ({"max_s": 0.0}, "max_s is 0.0")):
        with pytest.raises(ValueError, match=message):
            Cutting(**settings)

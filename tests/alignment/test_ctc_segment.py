"""The search through long audio, compared with Viterbi without a band, a search of all states, and synthetic speech."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from asr_jax.alignment.ctc_segment import FORCED, LongSearch, align_long
from asr_jax.alignment.emissions import Emissions
from asr_jax.losses import ctc_align
from tests.losses import ctc_align_reference
from tests.search.unchecked import unchecked
from tests.support import approx, log_softmax

BLANK = 0
aligned = jax.jit(ctc_align.align, static_argnames="blank_id")


def emissions_of(log_probs):
    """The blank is symbol 0; column k is therefore symbol k + 1."""
    return Emissions(log_probs[:, 1:], log_probs[:, BLANK], log_probs[:, BLANK], log_probs[:, 1:].max(1))


def random_log_probs(rng, frames, symbols, sharpness=3.0):
    return log_softmax(sharpness * rng.normal(size=(frames, symbols)))


def best_score(log_probs, labels, begins_word, search):
    """Returns the score of the best of all paths, computed in float64."""
    num = len(labels)
    gaps = [*np.flatnonzero(begins_word).tolist(), num]
    blank, label = np.full(num + 1, -np.inf), np.full(num + 1, -np.inf)
    blank[gaps], blank[0] = search.jump_logp, 0
    for of_frame in log_probs.astype(np.float64):
        foreign = max(of_frame[BLANK], of_frame[1:].max() + search.foreign_logp)
        new_blank, new_label = np.full(num + 1, -np.inf), np.full(num + 1, -np.inf)
        for u in range(num + 1):
            new_blank[u] = max(blank[u], label[u]) + (foreign if u in gaps else of_frame[BLANK])
            if u:
                skips = u > 1 and labels[u - 1] != labels[u - 2]
                new_label[u] = max(label[u], blank[u - 1], label[u - 1] if skips else -np.inf) + of_frame[labels[u - 1]]
        for i, u in enumerate(gaps[1:], 1):
            new_blank[u] = max(new_blank[u], max(new_blank[gaps[:i]]) + search.jump_logp)
        blank, label = new_blank, new_label
    ends = [blank[u] + (search.jump_logp if u < num else 0) for u in gaps]
    return max([*ends, label[num]])


def score_of(path, num_labels, search):
    """Returns the path's score, including the cost of one jump per run of skipped labels."""
    left_out = np.pad((path.starts < 0).astype(int), 1)
    return path.log_probs.sum(dtype=np.float64) + search.jump_logp * (np.diff(left_out) == 1).sum()


@pytest.mark.parametrize("frames", [40, 256, 300])
def test_without_departures_it_is_forced_alignment(frames):
    rng = np.random.default_rng(frames)
    log_probs, labels = random_log_probs(rng, frames, 6), rng.integers(1, 6, 15)
    search = LongSearch(foreign_logp=-1e9, jump_logp=-1e9)
    path = align_long(emissions_of(log_probs), labels - 1, rng.random(15) < 0.4, search=search)
    with unchecked():
        score, spans = ctc_align_reference.align(log_probs, labels.tolist(), blank_id=BLANK)
    assert path.starts.tolist() == [span.start for span in spans]
    assert path.ends.tolist() == [span.end for span in spans]
    assert path.log_probs.sum() == approx(score, rel=1e-5)


@pytest.mark.parametrize("band", [64, 512])
def test_forced_alignment_of_many_labels_in_a_band(band):
    """The path equals that of the search without a band. 150 labels of the text are missing in the audio; they exceed
    the band of 64 labels, which is therefore doubled."""
    rng = np.random.default_rng(5)
    labels = rng.integers(1, 30, 450)
    symbols = np.concatenate([labels[:150], np.full(150, BLANK), labels[300:]])
    log_probs = log_softmax(rng.normal(size=(2 * len(symbols), 30)) + 6 * np.eye(30)[np.repeat(symbols, 2)])
    given = emissions_of(log_probs), labels - 1, np.zeros(len(labels), bool)
    path = align_long(*given, search=replace(FORCED, band=band, max_band=512))
    kept = align_long(*given, search=replace(FORCED, band=band, max_band=band))
    assert (kept.starts < 0).any() == (band == 64)
    row = (log_probs[None], np.array([len(log_probs)]), labels[None], np.array([len(labels)]))
    found = jax.device_get(aligned(*row, blank_id=BLANK))
    assert path.starts.tolist() == found.starts[0].tolist()
    assert path.ends.tolist() == found.ends[0].tolist()
    assert path.log_probs.sum() == approx(float(found.scores[0]), rel=1e-5)


def test_forced_alignment_leaves_nothing_out():
    """With more labels than frames there is no path, for any band."""
    rng = np.random.default_rng(0)
    log_probs = random_log_probs(rng, 90, 6)
    for num, is_possible in ((40, True), (100, False)):
        path = align_long(emissions_of(log_probs), np.arange(num) % 5, np.zeros(num, bool), search=FORCED)
        assert (path.starts >= 0).all() == is_possible


def test_is_the_best_of_all_paths():
    left_out = foreign = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        frames, num = int(rng.integers(10, 60)), 20
        log_probs, labels = random_log_probs(rng, frames, 5, sharpness=4.0), rng.integers(1, 5, num)
        begins_word = rng.random(num) < 0.4
        search = LongSearch(foreign_logp=-1.0, jump_logp=-6.0)
        path = align_long(emissions_of(log_probs), labels - 1, begins_word, search=search)
        expected = best_score(log_probs, labels, begins_word, search)
        assert score_of(path, num, search) == approx(expected, abs=1e-3)
        left_out, foreign = left_out + (path.starts < 0).sum(), foreign + path.is_foreign.sum()
    assert left_out > 20
    assert foreign > 20


def spoken(rng, labels, symbols=30, every=4):
    """Returns log-probabilities of synthetic speech with a label in about every fourth frame, and the label frames."""
    at = np.cumsum(rng.integers(2, 2 * every - 1, len(labels)))
    best = np.full(at[-1] + every, BLANK)
    best[at] = labels
    logits = rng.normal(size=(len(best), symbols)) + 9 * np.eye(symbols)[best]
    return log_softmax(logits), at


def test_a_narrow_band_finds_what_is_said_beside_what_is_not():
    """The text has 900 labels. The audio begins with foreign speech, lacks 90 labels, and has 120 foreign labels in
    between. The band has 320 labels."""
    rng = np.random.default_rng(1)
    labels, words = rng.integers(1, 30, 900), np.arange(900) % 5 == 0
    is_said = np.ones(900, bool)
    is_said[300:390] = False
    others = [rng.integers(1, 30, 150), rng.integers(1, 30, 120)]
    parts = [others[0], labels[:300], labels[390:600], others[1], labels[600:]]
    log_probs, at = spoken(rng, np.concatenate(parts))
    known = np.concatenate([np.full(len(part), part is not others[0] and part is not others[1]) for part in parts])
    narrow = align_long(emissions_of(log_probs), labels - 1, words, search=LongSearch(band=320))
    wide = align_long(emissions_of(log_probs), labels - 1, words, search=LongSearch(band=640))
    near = np.abs(narrow.starts[is_said] - at[known]) <= 1
    assert near.mean() > 0.99
    assert (narrow.starts[~is_said] < 0).mean() > 0.95
    assert narrow.is_foreign[: at[150]].sum() == approx(150, abs=10)
    np.testing.assert_array_equal(narrow.starts, wide.starts)


def test_a_band_that_is_too_narrow_becomes_wider():
    rng = np.random.default_rng(2)
    labels, words = rng.integers(1, 30, 450), np.arange(450) % 5 == 0
    log_probs, at = spoken(rng, labels[250:])
    path = align_long(emissions_of(log_probs), labels - 1, words, search=LongSearch(band=64, max_band=512))
    assert (np.abs(path.starts[250:] - at) <= 1).mean() > 0.99
    assert (path.starts[:250] < 0).all()


def test_a_text_that_is_not_in_the_audio():
    rng = np.random.default_rng(4)
    log_probs, _ = spoken(rng, rng.integers(1, 15, 100))
    path = align_long(emissions_of(log_probs), rng.integers(15, 29, 80), np.arange(80) % 4 == 0)
    assert (path.starts < 0).all()
    assert path.is_foreign.sum() > 80


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match=r"left_out is 2: expected at least 0 and at most 1"):
        LongSearch(left_out=2)
    with pytest.raises(ValueError, match=r"foreign_logp is 1\.0: expected at most 0"):
        LongSearch(foreign_logp=1.0)
    with pytest.raises(ValueError, match="band is 8: expected at least 16"):
        LongSearch(band=8)

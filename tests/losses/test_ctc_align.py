"""Forced alignment compared with the NumPy reference and with all paths of tiny cases."""

import itertools

import jax
import numpy as np
import pytest

from asr_jax.core.meshes import by_rows, data_mesh
from asr_jax.losses.ctc_align import align
from tests.losses import ctc_align_reference
from tests.search.unchecked import unchecked
from tests.support import approx, assert_close, log_softmax

program = jax.jit(align, static_argnames="blank_id")


def aligned(*row, blank_id):
    return jax.device_get(program(*map(np.asarray, row), blank_id=blank_id))


def random_log_probs(rng, *shape, sharpness=3.0):
    logits = sharpness * rng.normal(size=shape)
    return np.float32(log_softmax(logits))


def random_rows(rng, rows, *, frames, labels, symbols, blank_id):
    others = [symbol for symbol in range(symbols) if symbol != blank_id]
    return (
        random_log_probs(rng, rows, frames, symbols),
        rng.integers(0, frames + 1, rows),
        rng.choice(others, (rows, labels)),
        rng.integers(0, labels + 1, rows),
    )


def check_row(found, row, expected, num_labels):
    starts, ends, log_probs = (np.asarray(x)[row] for x in (found.starts, found.ends, found.log_probs))
    assert bool(found.is_possible[row]) == (expected is not None)
    if expected is None:
        assert found.scores[row] == -np.inf
        assert (starts == -1).all()
        assert (ends == -1).all()
        return
    score, spans = expected
    assert found.scores[row] == approx(score, abs=1e-4)
    assert starts[:num_labels].tolist() == [span.start for span in spans]
    assert ends[:num_labels].tolist() == [span.end for span in spans]
    assert_close(log_probs[:num_labels], [span.log_prob for span in spans], atol=1e-6)
    assert (starts[num_labels:] == -1).all()
    assert (log_probs[num_labels:] == 0).all()


@pytest.mark.parametrize(("blank_id", "symbols"), [(0, 3), (2, 5)])
def test_equals_the_reference(blank_id, symbols):
    rng = np.random.default_rng(symbols)
    rows, frames, labels = 64, 24, 9
    log_probs, lengths, ids, num = random_rows(
        rng, rows, frames=frames, labels=labels, symbols=symbols, blank_id=blank_id
    )
    found = aligned(log_probs, lengths, ids, num, blank_id=blank_id)
    possible = 0
    for row in range(rows):
        with unchecked():
            expected = ctc_align_reference.align(
                log_probs[row, : lengths[row]], ids[row, : num[row]].tolist(), blank_id=blank_id
            )
        possible += expected is not None
        check_row(found, row, expected, num[row])
    assert 20 < possible < rows  # rows with and without a path


def collapsed(path, blank_id):
    return [symbol for symbol, _ in itertools.groupby(path) if symbol != blank_id]


@pytest.mark.parametrize("labels", [[], [1], [1, 1], [1, 2], [2, 1, 2], [1, 1, 1], [1, 2, 2]])
def test_is_the_best_of_all_paths(labels):
    rng = np.random.default_rng(len(labels))
    for frames in range(1, 7):
        log_probs = random_log_probs(rng, frames, 3)
        paths = [path for path in itertools.product(range(3), repeat=frames) if collapsed(path, 0) == labels]
        padded, ids = np.pad(log_probs, ((0, 6 - frames), (0, 0))), (labels + [1] * 3)[:3]
        found = aligned(padded[None], [frames], [ids], [len(labels)], blank_id=0)
        assert bool(found.is_possible[0]) == bool(paths)
        if not paths:
            continue
        scores = {path: sum(log_probs[t, symbol] for t, symbol in enumerate(path)) for path in paths}
        best = max(paths, key=lambda path: scores[path])
        assert found.scores[0] == approx(scores[best], abs=1e-5)
        spans, t = [], 0
        for symbol, run in itertools.groupby(best):
            length = len(list(run))
            spans += [(t, t + length)] if symbol else []
            t += length
        n = len(labels)
        assert list(zip(found.starts[0, :n].tolist(), found.ends[0, :n].tolist(), strict=True)) == spans


def test_padding_has_no_influence():
    rng = np.random.default_rng(3)
    log_probs, lengths, ids, num = random_rows(rng, 64, frames=24, labels=9, symbols=5, blank_id=2)
    clean = aligned(log_probs, lengths, ids, num, blank_id=2)
    noisy, other = log_probs.copy(), ids.copy()
    noisy[np.arange(24) >= lengths[:, None]] = np.nan
    other[np.arange(9) >= num[:, None]] = 99
    garbage = aligned(noisy, lengths, other, num, blank_id=2)
    for value, same in zip(jax.tree.leaves(garbage), jax.tree.leaves(clean), strict=True):
        np.testing.assert_array_equal(value, same)


def test_a_path_that_no_probability_allows_is_named():
    log_probs = np.log(np.full((1, 6, 3), 1 / 3, np.float32))
    without_1 = np.where(np.arange(3) == 1, -np.inf, log_probs)
    impossible, possible = (aligned(x, [5], [[1, 2, 0]], [2], blank_id=0) for x in (without_1, log_probs))
    assert (impossible.is_possible.tolist(), possible.is_possible.tolist()) == ([False], [True])
    assert impossible.starts[0].tolist() == [-1, -1, -1]
    assert np.isfinite(possible.scores[0])


def best_score(log_probs, labels, blank_id):
    """Returns the score of the best path, computed in float64."""
    symbols = np.full(2 * len(labels) + 1, blank_id)
    symbols[1::2] = labels
    may_skip = np.r_[False, False, (symbols[2:] != blank_id) & (symbols[2:] != symbols[:-2])]
    score = np.full(len(symbols), -np.inf)
    score[:2] = log_probs[0, symbols[:2]]
    for of_frame in log_probs[1:]:
        rejected = np.where(may_skip, np.r_[-np.inf, -np.inf, score[:-2]], -np.inf)
        score = np.max([score, np.r_[-np.inf, score[:-1]], rejected], axis=0) + of_frame[symbols]
    return score[-2:].max()


def test_thousands_of_frames_stay_exact():
    """Scores are kept near zero, because float32 sums of thousands have errors larger than differences of paths."""
    rng = np.random.default_rng(5)
    log_probs, labels = random_log_probs(rng, 8000, 8, sharpness=5.0), rng.integers(1, 8, 900)
    found = aligned(log_probs[None], [8000], labels[None], [900], blank_id=0)
    path = np.zeros(8000, int)
    for label, start, end in zip(labels, found.starts[0].tolist(), found.ends[0].tolist(), strict=True):
        assert (path[start:end] == 0).all()
        path[start:end] = label
    assert collapsed(path.tolist(), 0) == labels.tolist()
    wide = log_probs.astype(np.float64)
    assert wide[np.arange(8000), path].sum() == approx(best_score(wide, labels, 0), abs=1e-3)
    assert found.scores[0] == approx(best_score(wide, labels, 0), rel=1e-6)


def test_a_sharded_batch_stays_where_it_is():
    mesh = data_mesh(4)
    rng = np.random.default_rng(1)
    inputs = random_rows(rng, 64, frames=24, labels=9, symbols=3, blank_id=0)
    sharded = jax.device_put(inputs, by_rows(mesh))
    compiled, expected = program.lower(*sharded, blank_id=0).compile(), aligned(*inputs, blank_id=0)
    for value, same in zip(jax.tree.leaves(compiled(*sharded)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(value, same)
        assert value.sharding.is_equivalent_to(by_rows(mesh), value.ndim)
    assert not [name for name in ("all-gather", "all-to-all", "collective-permute") if name in compiled.as_text()]

"""Greedy search, compared with collapsing in Python; also in jit and sharded."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.meshes import by_rows, data_mesh
from asr_jax.search.ctc_greedy import greedy_search
from tests.support import approx, assert_close

search = jax.jit(greedy_search, static_argnames="blank_id")


def scores_of(best, vocabulary):
    """Random scores with the largest at `best`."""
    return jnp.asarray(np.random.default_rng(0).normal(size=(*best.shape, vocabulary)) + 99 * np.eye(vocabulary)[best])


@pytest.mark.parametrize("blank_id", [0, 3])
def test_repeats_are_merged_and_blanks_left_out(blank_id):
    random = np.random.default_rng(blank_id)
    best, lengths = random.integers(0, 4, (40, 11)), random.integers(0, 12, 40)
    scores = scores_of(best, 4)
    found = jax.device_get(search(scores, jnp.asarray(lengths), blank_id=blank_id))
    assert (found.tokens.shape, found.tokens.dtype, found.scores.shape) == ((40, 1, 11), np.int32, (40, 1))
    for row, (path, length, score) in enumerate(zip(best, lengths, np.asarray(scores), strict=True)):
        runs, frame = [], 0
        for label, group in itertools.groupby(path[:length].tolist()):
            end = frame + len(list(group))
            if label != blank_id:
                runs.append((label, frame, end, score[frame:end, label].max()))
            frame = end
        (sequence,) = found.sequences(row)
        assert list(zip(sequence.tokens, sequence.starts, sequence.ends, strict=True)) == [run[:3] for run in runs]
        assert_close(sequence.log_probs, [run[3] for run in runs], rtol=1e-6)
        assert sequence.score == approx(score[:length].max(-1).sum(), rel=1e-5)


def test_padding_has_no_influence():
    best = np.array([[1, 2, 0, 1], [0, 0, 2, 2]])
    lengths = jnp.array([2, 3])
    padding = np.arange(4) >= np.asarray(lengths)[:, None]
    clean = search(scores_of(best, 3), lengths, blank_id=0)
    garbage = search(jnp.where(padding[..., None], jnp.nan, scores_of(best, 3)), lengths, blank_id=0)
    jax.tree.map(np.testing.assert_array_equal, garbage, clean)


def test_a_row_that_is_no_number_has_no_tokens():
    scores = jnp.stack([jnp.full((4, 3), jnp.nan), scores_of(np.array([[1, 2, 0, 1]]), 3)[0]])
    found = jax.device_get(search(scores, jnp.array([4, 4]), blank_id=0))
    assert [found.sequences(row)[0].tokens for row in (0, 1)] == [(), (1, 2, 1)]


def test_a_sharded_batch_stays_where_it_is():
    mesh = data_mesh(4)
    best, lengths = np.random.default_rng(1).integers(0, 5, (8, 9)), jnp.arange(8) + 1
    inputs = (scores_of(best, 5).astype(jnp.bfloat16), lengths)
    expected = search(*inputs, blank_id=4)
    sharded = jax.device_put(inputs, by_rows(mesh))
    compiled = search.lower(*sharded, blank_id=4).compile()
    for value, same in zip(jax.tree.leaves(compiled(*sharded)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(value, same)
        assert value.sharding.is_equivalent_to(by_rows(mesh), value.ndim)
    assert not [name for name in ("all-gather", "all-to-all", "collective-permute") if name in compiled.as_text()]

"""Greedy decoding against collapsing in Python, inside jit and sharded."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.meshes import by_rows, data_mesh
from asr_jax.search.ctc_greedy import best_path, greedy_hypothesis
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.spelling import Spelling

paths_of = jax.jit(best_path, static_argnames="blank_id")


def scores_of(best, vocabulary):
    """Random scores whose largest are at `best`."""
    return jnp.asarray(np.random.default_rng(0).normal(size=(*best.shape, vocabulary)) + 99 * np.eye(vocabulary)[best])


@pytest.mark.parametrize("blank_id", [0, 3])
def test_merges_repeats_and_leaves_out_blanks(blank_id):
    random = np.random.default_rng(blank_id)
    best, lengths = random.integers(0, 4, (40, 11)), random.integers(0, 12, 40)
    scores = scores_of(best, 4)
    paths, logps = jax.device_get(paths_of(scores, jnp.asarray(lengths), blank_id=blank_id))
    assert (paths.shape, paths.dtype, logps.shape) == ((40, 11), np.int32, (40, 11))
    symbols = ["a", "b", "c"]
    symbols.insert(blank_id, None)
    tokenizer = CharacterTokenizer(symbols=tuple(symbols), normaliser="none")
    spelling = Spelling.of(tokenizer)
    for row, length, path, logp, score in zip(best, lengths, paths, logps, np.asarray(scores), strict=True):
        expected = [label for label, _ in itertools.groupby(row[:length].tolist()) if label != blank_id]
        found = greedy_hypothesis(path, logp, spelling)
        assert list(found.labels) == expected
        assert " ".join(word.text for word in found.words) == tokenizer.decode(expected)
        assert found.score == pytest.approx(score[:length].max(-1).sum(), rel=1e-5)


def test_words_have_their_frames_and_log_probabilities():
    tokenizer = CharacterTokenizer(symbols=(" ", "a", "b", None), normaliser="none")
    path = np.array([0, 3, 1, 1, 3, 1, 2, 0, 0, 3, 2, 2, 3], np.int32)  # " aab" and " b"
    logps = -np.arange(1.0, 14.0, dtype=np.float32)
    first, second = greedy_hypothesis(path, logps, Spelling.of(tokenizer)).words
    assert (first.text, first.start_frame, first.end_frame) == ("aab", 2, 7)
    assert first.logp == pytest.approx(-(3 + 6 + 7) / 3)
    assert (second.text, second.start_frame, second.end_frame, second.logp) == ("b", 10, 12, -11)


def test_a_row_without_labels_has_no_words():
    spelling = Spelling.of(CharacterTokenizer(symbols=(" ", "a", None), normaliser="none"))
    for path in ([2, 2], [], [0, 2]):
        found = greedy_hypothesis(np.array(path, np.int32), np.zeros(len(path), np.float32), spelling)
        assert (found.text, found.words) == ("", ())


def test_padding_has_no_influence():
    best = np.array([[1, 2, 0, 1], [0, 0, 2, 2]])
    lengths = jnp.array([2, 3])
    padding = np.arange(4) >= np.asarray(lengths)[:, None]
    clean = paths_of(scores_of(best, 3), lengths, blank_id=0)
    garbage = paths_of(jnp.where(padding[..., None], jnp.nan, scores_of(best, 3)), lengths, blank_id=0)
    for value, same in zip(garbage, clean, strict=True):
        np.testing.assert_array_equal(value, same)


def test_a_sharded_batch_stays_where_it_is():
    mesh = data_mesh(4)
    best, lengths = np.random.default_rng(1).integers(0, 5, (8, 9)), jnp.arange(8) + 1
    inputs = (scores_of(best, 5).astype(jnp.bfloat16), lengths)
    expected = paths_of(*inputs, blank_id=4)
    sharded = jax.device_put(inputs, by_rows(mesh))
    compiled = paths_of.lower(*sharded, blank_id=4).compile()
    for value, same in zip(compiled(*sharded), expected, strict=True):
        np.testing.assert_array_equal(value, same)
        assert value.sharding.is_equivalent_to(by_rows(mesh), value.ndim)
    assert not [name for name in ("all-gather", "all-to-all", "collective-permute") if name in compiled.as_text()]

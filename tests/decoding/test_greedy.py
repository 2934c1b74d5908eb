"""Greedy decoding against collapsing in Python, inside jit and sharded."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.meshes import by_rows, data_mesh
from asr_jax.decoding.greedy import greedy_ids, to_texts
from asr_jax.text.characters import CharacterTokenizer

decode = jax.jit(greedy_ids, static_argnames="blank_id")


def scores_of(best, vocabulary):
    """Random scores whose largest are at `best`."""
    return jnp.asarray(np.random.default_rng(0).normal(size=(*best.shape, vocabulary)) + 99 * np.eye(vocabulary)[best])


@pytest.mark.parametrize("blank_id", [0, 3])
def test_merges_repeats_and_leaves_out_blanks(blank_id):
    random = np.random.default_rng(blank_id)
    best = random.integers(0, 4, (40, 11))
    lengths = random.integers(0, 12, 40)
    ids, num = decode(scores_of(best, 4), jnp.asarray(lengths), blank_id=blank_id)
    assert (ids.shape, ids.dtype, num.dtype) == ((40, 11), jnp.int32, jnp.int32)
    for row, length, found, count in zip(best, lengths, ids.tolist(), num.tolist(), strict=True):
        expected = [label for label, _ in itertools.groupby(row[:length].tolist()) if label != blank_id]
        assert found == expected + [-1] * (11 - len(expected))
        assert count == len(expected)


def test_a_repeat_needs_a_blank_between():
    ids, num = decode(scores_of(np.array([[1, 1, 0, 1, 2, 2]]), 3), jnp.array([6]), blank_id=0)
    assert ids.tolist() == [[1, 1, 2, -1, -1, -1]]
    assert num.tolist() == [3]


def test_padding_has_no_influence():
    best = np.array([[1, 2, 0, 1], [0, 0, 2, 2]])
    lengths = jnp.array([2, 3])
    padding = np.arange(4) >= np.asarray(lengths)[:, None]
    clean = decode(scores_of(best, 3), lengths, blank_id=0)
    garbage = decode(jnp.where(padding[..., None], jnp.nan, scores_of(best, 3)), lengths, blank_id=0)
    for value, same in zip(garbage, clean, strict=True):
        np.testing.assert_array_equal(value, same)


def test_a_sharded_batch_stays_where_it_is():
    mesh = data_mesh(4)
    best, lengths = np.random.default_rng(1).integers(0, 5, (8, 9)), jnp.arange(8) + 1
    inputs = (scores_of(best, 5).astype(jnp.bfloat16), lengths)
    expected = decode(*inputs, blank_id=4)
    sharded = jax.device_put(inputs, by_rows(mesh))
    compiled = decode.lower(*sharded, blank_id=4).compile()
    for value, same in zip(compiled(*sharded), expected, strict=True):
        np.testing.assert_array_equal(value, same)
        assert value.sharding.is_equivalent_to(by_rows(mesh), value.ndim)
    assert not [name for name in ("all-gather", "all-to-all", "collective-permute") if name in compiled.as_text()]


def test_texts_have_single_spaces():
    tokenizer = CharacterTokenizer(symbols=(" ", "a", "b", None), normaliser="none")
    ids = np.array([[0, 1, 0, 0, 2, 0], [1, 2, -1, -1, -1, -1], [-1] * 6])
    assert to_texts(ids, np.array([6, 2, 0]), tokenizer) == ["a b", "ab", ""]
    assert to_texts(jnp.asarray(ids), jnp.array([6, 2, 0]), tokenizer) == ["a b", "ab", ""]

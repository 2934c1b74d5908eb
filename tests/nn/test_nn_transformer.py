"""Layers of a Transformer: attention in one kernel beside attention by its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import relative

from asr_jax.core.batch import length_mask
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.nn.transformer import MultiHeadAttention, fused_attention


def test_attention_in_one_kernel_is_attention():
    """Values and gradients at valid frames, with padding and a row without any frame."""
    lengths = jnp.array([9, 5, 0])
    allowed, valid = length_mask(lengths, 9)[:, None], np.asarray(length_mask(lengths, 9))
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, 9, 8)), jnp.float32)
    plain, fused = (MultiHeadAttention(2, 0.0, rotary=True, fused=fused) for fused in (False, True))
    shapes = jax.eval_shape(lambda: plain.init(jax.random.key(0), x, allowed, step=None))["params"]
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes)

    def loss(module, params, x):
        y = module.apply({"params": params}, x, allowed, step=jnp.int32(0))
        return jnp.sum(jnp.where(valid[..., None], jnp.sin(y), 0)), y

    def both(params, x):
        differentiated = jax.value_and_grad(loss, (1, 2), has_aux=True)
        return [differentiated(module, params, x) for module in (plain, fused)]

    ((_, expected), gradients), ((_, found), fused_gradients) = jax.jit(both)(params, x)
    assert relative(found[valid], expected[valid]) < 1e-6
    assert np.isfinite(found).all()
    for path, leaf in jax.tree.leaves_with_path(gradients):
        other = dict(jax.tree.leaves_with_path(fused_gradients))[path]
        np.testing.assert_allclose(other, leaf, atol=2e-6 * max(1.0, float(jnp.abs(leaf).max())), err_msg=str(path))


def test_attention_in_one_kernel_has_no_dropout():
    with pytest.raises(ValueError, match=r"attention_dropout is 0\.1: expected 0"):
        Wav2Vec2(fused_attention=True)
    assert Wav2Vec2(fused_attention=True, attention_dropout=0.0).fused_attention


def test_rows_see_their_own_first_keys_alone():
    rng = np.random.default_rng(1)
    query, key, value = (jnp.asarray(rng.normal(size=(2, 4, 1, 3)), jnp.float32) for _ in range(3))
    allowed = length_mask(jnp.array([4, 2]), 4)[:, None]
    found = fused_attention(query, key, value, allowed)
    scores = np.einsum("thc,shc->ts", query[1], key[1, :2]) / 3**0.5
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found[1, :, 0], weights @ value[1, :2, 0], atol=1e-6)

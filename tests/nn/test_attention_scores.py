"""Scores of attention are summed, and stay, in float32."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.nn.attention import AttentionWeights
from asr_jax.nn.conformer import RelativeAttention
from asr_jax.nn.stochastic import Regulariser


def relative_attention(dtype: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    allowed = jnp.ones((1, 20, 20), bool)
    return RelativeAttention(2, dtype=dtype), (allowed,), {"step": None}


def attention_weights(dtype: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    module = AttentionWeights(num_heads=2, query_dim=16, position_dim=4, dtype=dtype)
    return module, (jnp.ones((1, 1, 20), bool),), {"step": None, "regularise": Regulariser(None, None)}


@pytest.mark.parametrize("made", [relative_attention, attention_weights])
def test_scores_beyond_the_range_of_float16(made: Any) -> None:
    """Weights a hundred times as large as at the beginning: scores of some hundred thousands."""
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.normal(size=(1, 20, 32)), jnp.float32)
    positions = jnp.asarray(draw.normal(size=(39, 32)), jnp.float32)
    module, more, options = made(jnp.float32)
    params = module.init(jax.random.key(0), x, positions, *more, **options)
    large = jax.tree.map(lambda leaf: 100 * leaf if leaf.ndim > 1 else leaf, params)
    half, _, _ = made(jnp.float16)
    found = half.apply(large, x.astype(jnp.float16), positions.astype(jnp.float16), *more, **options)
    assert bool(jnp.isfinite(found).all())


@pytest.mark.parametrize("made", [relative_attention, attention_weights])
def test_bfloat16_rounds_no_score(made: Any) -> None:
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.normal(size=(1, 20, 32)), jnp.bfloat16)
    positions = jnp.asarray(draw.normal(size=(39, 32)), jnp.bfloat16)
    module, more, options = made(jnp.bfloat16)
    params = module.init(jax.random.key(0), x, positions, *more, **options)
    text = str(jax.make_jaxpr(lambda p: module.apply(p, x, positions, *more, **options))(params))
    assert "bf16[1,2,20,20] = dot_general" not in text
    assert "bf16[2,1,20,20] = dot_general" not in text

"""Attention scores are summed and kept in float32."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.nn.conformer.modules import RelativeAttention
from asr_jax.nn.stochastic import Regulariser
from asr_jax.nn.zipformer.attention import AttentionWeights
from tests.support import skip_without_float16

X = np.random.default_rng(0).normal(size=(1, 20, 32))
POSITIONS = np.random.default_rng(1).normal(size=(39, 32))


def relative_attention(dtype: Any, x: Any, positions: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return RelativeAttention(2, dtype=dtype), (x, positions, jnp.ones((1, 20, 20), bool)), {"step": None}


def attention_weights(dtype: Any, x: Any, positions: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    module = AttentionWeights(num_heads=2, query_dim=16, position_dim=4, dtype=dtype)
    return module, (x, positions, jnp.ones((1, 1, 20), bool)), {"step": None, "regularise": Regulariser(None, None)}


def shapes_of(made: Any) -> Any:
    def init(x: Any, positions: Any) -> Any:
        module, given, options = made(jnp.float32, x, positions)
        return module.init(jax.random.key(0), *given, **options)

    return jax.eval_shape(init, np.float32(X), np.float32(POSITIONS))


@pytest.mark.parametrize("made", [relative_attention, attention_weights])
def test_scores_beyond_the_range_of_float16(made: Any) -> None:
    """Weights of 100 times their initial size lead to scores of some hundred thousands."""
    skip_without_float16()
    draw = np.random.default_rng(2)

    @jax.jit
    def apply(params: Any, x: Any, positions: Any) -> Any:
        module, given, options = made(jnp.float16, x, positions)
        return module.apply(params, *given, **options)

    # The initial weights are uniform in ±1/√32.
    large = jax.tree.map(lambda leaf: np.float32(100 * draw.uniform(-1, 1, leaf.shape) / 32**0.5), shapes_of(made))
    assert np.isfinite(apply(large, np.float16(X), np.float16(POSITIONS))).all()


@pytest.mark.parametrize("made", [relative_attention, attention_weights])
def test_bfloat16_rounds_no_score(made: Any) -> None:
    def apply(params: Any, x: Any, positions: Any) -> Any:
        module, given, options = made(jnp.bfloat16, x, positions)
        return module.apply(params, *given, **options)

    half = (jax.ShapeDtypeStruct(array.shape, jnp.bfloat16) for array in (X, POSITIONS))
    text = str(jax.make_jaxpr(apply)(shapes_of(made), *half))
    assert "f32[1,2,20,20] = dot_general" in text or "f32[2,1,20,20] = dot_general" in text
    assert "bf16[1,2,20,20] = dot_general" not in text
    assert "bf16[2,1,20,20] = dot_general" not in text

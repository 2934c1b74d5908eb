"""Layers of wav2vec 2.0: LayerDrop, whose skipped layers have no gradients, and fused attention against its formula."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, assert_within, fast_jit, max_abs, relative

from asr_jax.core.meshes import by_rows, data_mesh, replicated
from asr_jax.models.wav2vec2 import Transformer, Wav2Vec2
from asr_jax.nn.remat import Remat
from asr_jax.nn.wav2vec.transformer import MultiHeadAttention, fused_attention

NUM_LAYERS, RATE = 3, 0.3
X = np.random.default_rng(0).normal(size=(4, 5, 4)).astype(np.float32)
LENGTHS = np.array([5, 3, 5, 4], np.int32)
SETTINGS = Wav2Vec2(
    dim=4, num_heads=2, feedforward_dim=6, position_groups=1, dropout=0.0, attention_dropout=0.0, layer_drop=RATE,
    taps=("layer_0",),
)  # fmt: skip


def params_of() -> Any:
    """Random parameters, all of which differ from the initial ones."""
    stack, rng = Transformer(SETTINGS, NUM_LAYERS), np.random.default_rng(1)
    shapes = jax.eval_shape(lambda *given: stack.init(jax.random.key(0), *given, step=None), X, LENGTHS)["params"]
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)


def outputs(params: Any, x: Any, key: Any = None, **changes: Any) -> Any:
    """Returns the input and the outputs of all layers, [L + 1, B, T, D]; in training mode if there is a key."""
    stack = Transformer(replace(SETTINGS, **changes), len(jax.tree.leaves(params)[0]))
    step, rngs = (None, {}) if key is None else (jnp.int32(0), {"dropout": key})
    last, inner = stack.apply({"params": params}, x, jnp.asarray(LENGTHS), step=step, rngs=rngs)
    return jnp.concatenate([x[None], inner[:-1], last[None]])  # the stack's output is its last layer's


def left_out(found: Any) -> np.ndarray:
    """Whether the output of each layer (last axis) equals its input."""
    found = np.asarray(found)
    return (found[..., 1:, :, :, :] == found[..., :-1, :, :, :]).all(axis=(-3, -2, -1))


def test_left_out_layers_give_their_input_and_in_evaluation_none_is() -> None:
    params = params_of()
    trained = fast_jit(partial(outputs, layer_drop=1 - 1e-7))(params, X, jax.random.key(0))
    np.testing.assert_array_equal(trained, np.broadcast_to(X, trained.shape))
    in_evaluation = [str(jax.make_jaxpr(partial(outputs, layer_drop=rate))(params, X)) for rate in (0.9, 0.0)]
    assert in_evaluation[0] == in_evaluation[1]


def test_layers_are_left_out_at_the_rate_and_each_on_its_own() -> None:
    """Rates over 3,000 calls are within three standard errors, for each layer and for two consecutive layers."""
    num, params = 3000, params_of()
    run = fast_jit(lambda params, x, key: jax.vmap(partial(outputs, params, x))(jax.random.split(key, num)))
    found = left_out(run(params, X, jax.random.key(0)))
    together = found[:, :-1] & found[:, 1:]
    for draws, rate in ((found, RATE), (together, RATE**2)):
        assert np.abs(draws.mean(axis=0) - rate).max() < 3 * np.sqrt(rate * (1 - rate) / num)


@fast_jit
def one_layer(params: Any, x: Any) -> Any:
    """Output of one layer in evaluation."""
    return Transformer(SETTINGS, 1).apply({"params": params}, x, jnp.asarray(LENGTHS), step=None)[0]


@cache
def differentiated(remat: Remat) -> Any:
    """Returns a function of parameters, input and key: gradients of a sum over the output, and `outputs`."""

    def loss(params: Any, x: Any, key: Any) -> Any:
        found = outputs(params, x, key, layer_drop=0.5, remat=remat)
        return jnp.sum(np.cos(np.arange(X.size)).reshape(X.shape) * found[-1]), found

    return fast_jit(jax.grad(loss, has_aux=True))


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "layers"])
def test_the_others_are_a_stack_of_their_own_and_alone_have_gradients(remat: Remat) -> None:
    params, patterns = params_of(), set()
    for seed in range(8):
        grads, found = jax.device_get(differentiated(remat)(params, X, jax.random.key(seed)))
        pattern, x = left_out(found), X
        for number in np.flatnonzero(~pattern):
            x = one_layer(jax.tree.map(lambda leaf, at=number: leaf[at : at + 1], params), x)
        assert_within(max_abs(found[-1], x), 1e-5)
        for number, is_left_out in enumerate(pattern):
            largest = max(np.abs(leaf[number]).max() for leaf in jax.tree.leaves(grads))
            assert largest == 0 if is_left_out else largest > 1e-3
        patterns.add(tuple(pattern))
    assert len(patterns) > 3


@pytest.mark.slow
def test_devices_leave_out_the_same_layers() -> None:
    """Each device has a part of the rows. With different branches, they would deadlock or a skipped layer would have a
    gradient."""
    params, gradient, mesh, patterns = params_of(), differentiated("none"), data_mesh(4), set()
    for seed in range(4):
        key = jax.random.key(seed)
        alone, _ = jax.device_get(gradient(params, X, key))
        given = jax.device_put((params, X, key), (replicated(mesh), by_rows(mesh), replicated(mesh)))
        spread, _ = jax.device_get(gradient(*given))
        largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(alone))
        assert_within(max(jax.tree.leaves(jax.tree.map(max_abs, spread, alone))), 1e-5 * largest)
        patterns.add(np.any(alone["layers"]["in"]["kernel"], axis=(1, 2)).tobytes())
    assert len(patterns) > 1


def test_attention_in_one_kernel_is_attention() -> None:
    """Values and gradients are equal at valid frames, with padding and a row without frames."""
    valid = np.arange(9) < np.array([9, 5, 0])[:, None]
    allowed, rng = jnp.asarray(valid[:, None]), np.random.default_rng(0)
    x = rng.normal(size=(3, 9, 8)).astype(np.float32)
    plain, fused = (MultiHeadAttention(2, 0.0, rotary=True, fused=fused) for fused in (False, True))
    shapes = jax.eval_shape(lambda x: plain.init(jax.random.key(0), x, allowed, step=None), x)["params"]
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)

    def loss(module, params, x):
        y = module.apply({"params": params}, x, allowed, step=jnp.int32(0))
        return jnp.sum(jnp.where(valid[..., None], jnp.sin(y), 0)), y

    @fast_jit
    def both(params, x):
        differentiated = jax.value_and_grad(loss, (1, 2), has_aux=True)
        return [differentiated(module, params, x) for module in (plain, fused)]

    ((_, expected), gradients), ((_, found), fused_gradients) = jax.device_get(both(params, x))
    assert_within(relative(found[valid], expected[valid]), 1e-6)
    assert np.isfinite(found).all()
    for path, leaf in jax.tree.leaves_with_path(gradients):
        other = dict(jax.tree.leaves_with_path(fused_gradients))[path]
        assert_close(other, leaf, atol=2e-6 * max(1.0, np.abs(leaf).max()), what=str(path))


def test_attention_in_one_kernel_has_no_dropout() -> None:
    with pytest.raises(ValueError, match=r"attention_dropout .*0\.1"):
        Wav2Vec2(fused_attention=True)
    assert Wav2Vec2(fused_attention=True, attention_dropout=0.0).fused_attention


def test_rows_see_their_own_first_keys_alone() -> None:
    query, key, value = np.random.default_rng(1).normal(size=(3, 2, 4, 1, 3)).astype(np.float32)
    allowed = np.arange(4) < np.array([4, 2])[:, None, None]
    found = np.asarray(jax.jit(fused_attention)(query, key, value, allowed))
    scores = np.einsum("thc,shc->ts", query[1], key[1, :2]) / 3**0.5
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert_close(found[1, :, 0], weights @ value[1, :2, 0], atol=1e-6)

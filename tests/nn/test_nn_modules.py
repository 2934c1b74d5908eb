"""Attention, convolution, subsampling and joined stacks against simple formulas, and their receptive fields."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import approx, assert_close, assert_within, max_abs

from asr_jax.nn.positions import compact_positions
from asr_jax.nn.stochastic import Regulariser
from asr_jax.nn.zipformer.attention import AttentionWeights, SelfAttention
from asr_jax.nn.zipformer.convolution import (
    ChunkDepthwiseConv,
    ConvolutionModule,
    conv_within_chunks,
    conv_within_equal_chunks,
)
from asr_jax.nn.zipformer.stack import StackSizes, feature_masks, layer_skip_rates, to_width, widest
from asr_jax.nn.zipformer.subsampling import Downsample, embedding_length, repeat_last, upsample

OFF = Regulariser(None, None)


def draw(*shape, seed=0, deviation=1.0):
    return np.random.default_rng(seed).normal(0, deviation, shape).astype(np.float32)


def made(module, *args, **kwargs):
    """Random parameters of the module, larger than the initial ones, to which all parts of it are sensitive."""
    shapes = jax.eval_shape(lambda *args: module.init(jax.random.key(0), *args, **kwargs), *args)
    return jax.tree.map(lambda leaf: draw(*leaf.shape, seed=leaf.size, deviation=0.3), shapes)


def program(module, **options):
    """Compiles `module.apply` to a function that returns NumPy arrays."""
    run = jax.jit(lambda params, *args: module.apply(params, *args, **options))
    return lambda *args: jax.device_get(run(*args))


def test_attention_weights_by_their_formula():
    x, num_heads, query_dim, position_dim = draw(2, 5, 6), 2, 3, 2
    allowed = np.array([[[1, 1, 1, 1, 1]], [[1, 1, 1, 0, 0]]], bool)
    positions = np.asarray(compact_positions(5, 4))
    module = AttentionWeights(num_heads, query_dim, position_dim)
    params = made(module, x, positions, allowed, step=None, regularise=OFF)
    weights = program(module, step=None, regularise=OFF)(params, x, positions, allowed)

    p = params["params"]
    projected = x @ p["in"]["kernel"] + p["in"]["bias"]
    query, key, position_query = np.split(projected, [6, 12], axis=-1)
    offsets = positions @ p["positions"]["kernel"]
    for h in range(num_heads):
        q, k = (part[..., h * query_dim : (h + 1) * query_dim] for part in (query, key))
        mine = slice(h * position_dim, (h + 1) * position_dim)
        for b, last in enumerate((5, 3)):
            scores = q[b] @ k[b].T
            for t in range(5):
                for s in range(5):
                    scores[t, s] += position_query[b, t, mine] @ offsets[4 + s - t, mine]
            exponentials = np.exp(scores[:, :last] - scores[:, :last].max(-1, keepdims=True))
            expected = exponentials / exponentials.sum(-1, keepdims=True)
            assert_within(max_abs(weights[h, b, :, :last], expected), 1e-5)
            assert (weights[h, b, :, last:] == 0).all()


def test_self_attention_averages_values():
    x, weights = draw(2, 5, 6), np.exp(draw(3, 2, 5, 5))
    weights /= weights.sum(axis=-1, keepdims=True)
    module = SelfAttention(4)
    params = made(module, x, weights, regularise=OFF)
    p = params["params"]
    values = (x @ p["in"]["kernel"] + p["in"]["bias"]).reshape(2, 5, 3, 4)
    mixed = np.einsum("hbts,bshc->bthc", weights, values).reshape(2, 5, 12)
    expected = mixed @ p["out"]["kernel"] + p["out"]["bias"]
    assert_within(max_abs(program(module, regularise=OFF)(params, x, weights), expected), 1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_does_not_reach_valid_frames_through_the_convolution(causal):
    module = ConvolutionModule(5, causal=causal, chunks=(4 if causal else None,))
    x, lengths = draw(2, 10, 4), np.array([10, 6])
    params = made(module, x, lengths, regularise=OFF)
    apply, changed = program(module, regularise=OFF), x.copy()
    changed[1, 6:] = 50
    y, noisy = apply(params, x, lengths), apply(params, changed, lengths)
    alone = apply(params, x[1:, :6], lengths[1:])
    assert max_abs(noisy[0], y[0]) == 0
    assert max_abs(noisy[1, :6], y[1, :6]) == 0
    assert_within(max_abs(alone[0], y[1, :6]), 1e-5)


@pytest.mark.parametrize("chunk", [3, 20, None])
def test_a_chunk_sees_itself_and_what_was_before(chunk):
    module = ChunkDepthwiseConv(7, (chunk,))
    x, lengths = draw(1, 11, 2), np.array([11])
    params = made(module, x, lengths)
    differentiate = jax.jit(jax.jacobian(lambda x, params: module.apply(params, x, jnp.asarray(lengths)).sum(-1)))
    influence = np.asarray(differentiate(x, params))[0, :, 0].any(-1)
    for t in range(11):
        end = 11 if chunk is None else min((t // chunk + 1) * chunk, 11)
        assert influence[t].any()
        assert not influence[t, end:].any()


@pytest.mark.parametrize("chunk", [4, 20, None])
def test_a_row_of_chunks_is_the_same_alone_and_in_a_bucket(chunk):
    module = ChunkDepthwiseConv(7, (chunk,))
    x, lengths = np.pad(draw(2, 9, 2), ((0, 0), (0, 5), (0, 0))), np.array([14, 9])
    params = made(module, x, lengths)
    apply = program(module)
    y, alone = apply(params, x, lengths), apply(params, x[1:, :9], lengths[1:])
    assert_within(max_abs(alone[0], y[1, :9]), 1e-5)


@pytest.mark.parametrize("chunk", [2, 5, 6, 30])
def test_chunks_of_a_length_known_at_run_time_are_convolved_alone(chunk):
    """The shortest chunk, 2, is shorter than half of the filter, so that more than two groups of chunks are needed."""
    x, kernel = draw(2, 23, 3), draw(9, 3)
    at_run_time = jax.jit(partial(conv_within_chunks, shortest=2))(x, kernel, jnp.asarray(chunk))
    expected = jax.jit(partial(conv_within_equal_chunks, chunk=chunk))(x, kernel)
    assert_within(max_abs(at_run_time, expected), 1e-5)


@pytest.mark.parametrize("context", [0, 1, 2])
def test_a_drawn_context_has_its_own_chunks(context):
    chunks, x, lengths = (4, None, 6), draw(2, 14, 2), np.array([14, 9])
    module, drawn = ChunkDepthwiseConv(7, chunks), jnp.asarray(context)
    params = made(module, x, lengths)
    apply = jax.jit(lambda params, x, lengths, context: module.apply(params, x, lengths, context=context))
    found = np.asarray(apply(params, x, lengths, drawn))
    expected = program(ChunkDepthwiseConv(7, chunks[context : context + 1]))(params, x, lengths)
    for row, length in enumerate(lengths):
        assert_within(max_abs(found[row, :length], expected[row, :length]), 1e-5)


@pytest.mark.parametrize("factor", [2, 3])
def test_downsample_repeats_each_rows_last_frame(factor):
    x, lengths = draw(2, 8, 3), np.array([8, 5])
    params = made(Downsample(factor), x, lengths)
    shares = np.exp(params["params"]["logits"]) / np.exp(params["params"]["logits"]).sum()
    padded = x.copy()
    padded[1, 5:] = np.nan
    y = program(Downsample(factor))(params, padded, lengths)
    for row, length in enumerate((8, 5)):
        valid = x[row, :length]
        valid = np.concatenate([valid, np.repeat(valid[-1:], -length % factor, axis=0)])
        expected = np.einsum("sfd,f->sd", valid.reshape(-1, factor, 3), shares)
        assert_within(max_abs(y[row, : len(expected)], expected), 1e-6)


def test_downsample_of_rows_without_a_frame_is_finite():
    assert np.isfinite(jax.jit(repeat_last)(draw(2, 3, 2), np.array([0, 3]))).all()


def test_upsample_repeats_frames_in_place():
    x = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
    found = jax.jit(partial(upsample, factor=2, num_frames=5))(x)
    np.testing.assert_array_equal(np.asarray(found)[0, :, 0], [0, 0, 1, 1, 2])


def test_embedding_length():
    expected = [0] * 9 + [1, 1, 2, 2, 3]
    assert [embedding_length(n) for n in range(14)] == expected
    np.testing.assert_array_equal(embedding_length(np.arange(14)), expected)
    np.testing.assert_array_equal(jax.jit(embedding_length)(np.arange(14)), expected)


def test_skip_rates_warm_up_one_layer_after_the_other():
    sizes = StackSizes(8, 2, 4, 1, 2, 2, 2, 8, 3, None, None)

    @jax.jit
    def rates(step):
        return layer_skip_rates(1, 3, sizes, step=step)

    assert_close(rates(2000.0), [0.5, 0.5])  # the second of three stacks begins at 2/4 of 4000
    assert_close(rates(2250.0), [0.285, 0.5], atol=1e-6)  # half-way from 0.5 to 0.035 √4
    assert_close(rates(3000.0), [0.07, 0.07], atol=1e-6)
    np.testing.assert_array_equal(jax.jit(lambda: layer_skip_rates(1, 3, sizes, step=None))(), [0, 0])


def test_feature_masks_agree_between_stacks():
    options = {"widths": (4, 8), "unmasked": (4, 2), "dtype": jnp.float32}
    draw_masks = jax.jit(lambda key: feature_masks(key, 4000, **options))
    narrow, wide = jax.device_get(draw_masks(jax.random.key(0)))
    assert (narrow == 1).all()
    rows = wide[:, 0]
    assert (rows[:, :2] == 1).all()
    np.testing.assert_array_equal(rows[:, 2], rows[:, 4])
    np.testing.assert_array_equal(rows[:, 5], rows[:, 7])
    assert (rows[:, 5] <= rows[:, 2]).all()
    assert float(rows[:, 2].mean()) == approx(7 / 8, abs=0.02)
    assert float(rows[:, 5].mean()) == approx((7 / 8) ** 2, abs=0.02)


def test_widths_are_joined_from_the_latest_output_that_has_them():
    outputs = [np.full((1, 1, width), value, np.float32) for width, value in ((2, 1), (5, 2), (3, 3))]
    joined, *changed = jax.jit(lambda outputs: [widest(outputs), to_width(outputs[0], 3), to_width(outputs[1], 3)])(
        [*map(jnp.asarray, outputs)]
    )
    np.testing.assert_array_equal(joined, [[[3, 3, 3, 2, 2]]])
    np.testing.assert_array_equal(changed, [[[[1, 1, 0]]], [[[2, 2, 2]]]])

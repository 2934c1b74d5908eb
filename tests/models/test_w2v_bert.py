"""W2V-BERT: the suite of all encoders, sizes, and effects of the settings."""

from dataclasses import replace
from functools import cache, partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_suite import EncoderSuite, Made, asks_for_dropout, assert_refused
from support import assert_within, fast_jit, max_abs, relative

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import flatten, num_elements
from asr_jax.models.w2v_bert import EMBED, RATES, Positions, W2VBert
from asr_jax.nn.conformer.striding import GatedConv, gated_length
from asr_jax.nn.remat import Remat
from asr_jax.nn.wav2vec.span_masks import SpanMask

NO_DROPOUT: dict[str, Any] = dict.fromkeys(RATES, 0.0)
TINY = W2VBert(
    num_mels=16, dim=12, num_layers=2, num_heads=2, feedforward_dim=20, kernel_size=5, left_distance=4,
    right_distance=2, masks=False, **NO_DROPOUT,
)  # fmt: skip
FULL = replace(
    TINY, num_layers=1, num_adapters=1, adapter_dim=8, intermediate=True, taps=("layer_0", EMBED),
    time_mask=SpanMask(0.0),
)  # fmt: skip
MASKS = replace(
    TINY, num_layers=1, masks=True, time_mask=replace(TINY.time_mask, length=2, min_spans=1),
    channel_mask=replace(TINY.channel_mask, length=1, min_spans=1, probability=0.01), taps=(EMBED,),
)  # fmt: skip


@pytest.mark.slow  # tests/goldens/test_hf_w2vbert.py compares outputs, losses and gradients
class TestW2VBert(EncoderSuite):
    """The settings have an adapter and the modules before it."""

    settings = FULL
    num_features = FULL.num_mels

    def test_depths_of_parameters(self, made: Made) -> None:
        depths = {path: FULL.depths(path) for path in flatten(made.params)}
        assert depths["embed/kernel"] == depths["embed_norm/scale"] == (0,)
        assert depths["layers/norm/scale"] == (1,)
        assert TINY.depths("layers/norm/scale") == (1, 2)
        assert depths["intermediate/in/kernel"] == depths["adapter_embed/kernel"] == (2,)
        assert depths["adapter_0/feed_forward/in/kernel"] == (2,)
        assert {depth for found in depths.values() for depth in found} == set(range(FULL.num_depths()))


@cache
def shapes_of(settings: W2VBert) -> Any:
    """Shapes of all parameters."""
    encoder = settings.build(dtype=jnp.float32)
    frames = Frames(np.zeros((1, 20, settings.num_mels), np.float32), np.array([20]))
    return jax.eval_shape(partial(encoder.init, step=None), jax.random.key(0), frames)["params"]


@cache
def params_of(settings: W2VBert) -> Any:
    rng = np.random.default_rng(0)
    drawn = jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), shapes_of(settings))
    return jax.device_put(drawn)


VALUES = np.random.default_rng(1).normal(size=(2, 20, TINY.num_mels)).astype(np.float32)
LENGTHS = np.array([20, 11])
FRAMES = jax.device_put(Frames(VALUES, LENGTHS))
PADDING = np.arange(20) >= LENGTHS[:, None]


@cache
def gradient_of(settings: W2VBert) -> Any:
    """Returns a function of parameters and a key: output frames, and gradients of the second row's output."""
    encoder = settings.build(dtype=jnp.float32)

    def loss(params: Any, frames: Frames, key: Any) -> Any:
        encoded = encoder.apply({"params": params}, frames, step=jnp.int32(0), rngs={"dropout": key}).frames
        return jnp.sum(encoded.values[1, :6] ** 2), encoded.values

    return fast_jit(jax.value_and_grad(loss, has_aux=True))


def test_masks_hide_frames_and_channels_in_training_alone() -> None:
    encoder, params = MASKS.build(dtype=jnp.float32), params_of(MASKS)

    def training(params: Any) -> Any:
        rngs = {"dropout": jax.random.key(0)}
        embedded = encoder.apply({"params": params}, FRAMES, step=jnp.int32(0), rngs=rngs).taps[EMBED].values
        return jnp.sum(embedded), embedded

    def both(params: Any) -> Any:
        served = encoder.apply({"params": params}, FRAMES, step=None).taps[EMBED].values
        return *jax.value_and_grad(training, has_aux=True)(params), served

    (_, trained), grads, served = jax.device_get(fast_jit(both)(params))
    params, num_learned = jax.device_get(params), 0
    for row, length in enumerate(LENGTHS):
        zero = (trained[row, :length] == 0).all(axis=0)
        assert zero.sum() == 1
        learned = (trained[row] == params["mask"][None])[:, ~zero].all(axis=1)
        assert 1 <= learned.sum() <= 2
        num_learned += int(learned.sum())
        np.testing.assert_array_equal((trained[row] == served[row])[:, ~zero].all(axis=1), ~learned)
    assert grads["mask"].max() == num_learned


@pytest.mark.slow
@pytest.mark.parametrize("positions", sorted({*get_args(Positions)} - {"relative_key"}))
def test_other_positions(positions: Positions) -> None:
    """Padding has no influence, and parameters have gradients. tests/goldens/test_hf_w2vbert.py compares values."""
    settings = replace(TINY, positions=positions, num_layers=1)
    run, params = gradient_of(settings), params_of(settings)
    noisy = FRAMES.replace(values=VALUES + np.float32(3) * PADDING[..., None])
    (_, values), grads = jax.device_get(run(params, FRAMES, jax.random.key(0)))
    (_, again), more = jax.device_get(run(params, noisy, jax.random.key(0)))
    assert_within(max_abs(values[1, :11], again[1, :11]), 1e-6)
    assert_within(
        max(relative(other, leaf) for other, leaf in zip(*map(jax.tree.leaves, (more, grads)), strict=True)), 1e-4
    )
    assert [path for path, leaf in flatten(grads).items() if not leaf.any()] == ["mask"]  # nothing is masked


def test_dropout_is_of_training() -> None:
    """Training with a dropout rate above 0 requests a random stream. Evaluation and training without it do not."""
    shapes = {"params": shapes_of(TINY)}
    assert all(asks_for_dropout(replace(TINY, **{rate: 0.5}), shapes, step=0) for rate in RATES)
    assert not asks_for_dropout(TINY, shapes, step=0)
    assert not asks_for_dropout(replace(TINY, **dict.fromkeys(RATES, 0.5)), shapes, step=None)


@pytest.mark.slow
def test_layers_are_left_out_while_training() -> None:
    settings = replace(TINY, layer_drop=0.5, taps=(EMBED, "layer_0"))
    encoder, params = settings.build(dtype=jnp.float32), params_of(TINY)
    run = fast_jit(lambda key: encoder.apply({"params": params}, FRAMES, step=jnp.int32(0), rngs={"dropout": key}))
    found = [jax.device_get(run(jax.random.key(number))) for number in range(24)]
    kept = [
        (bool((each.taps["layer_0"].values != each.taps[EMBED].values).any()),
         bool((each.frames.values != each.taps["layer_0"].values).any()))
        for each in found
    ]  # fmt: skip
    assert len({*kept}) == 4  # each layer by itself
    whole = fast_jit(lambda: encoder.apply({"params": params}, FRAMES, step=None))()
    assert_within(max_abs(found[kept.index((True, True))].frames.values, whole.frames.values), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["elementwise", "products", "layers"])
def test_remat_gives_the_same_gradients(remat: Remat) -> None:
    settings, key = replace(TINY, layer_drop=0.3, attention_dropout=0.2, dropout=0.1), jax.random.key(0)
    plain, again = (
        flatten(gradient_of(replace(settings, remat=each))(params_of(TINY), FRAMES, key)[1]) for each in ("none", remat)
    )
    # The gradient of the keys' bias is rounding noise, because softmax cancels the bias.
    assert_within(max(relative(again[path], plain[path]) for path in plain if not path.endswith("key/bias")), 1e-4)


@pytest.mark.parametrize(("kernel_size", "stride"), [(3, 2), (1, 2), (4, 3), (5, 2), (3, 1), (2, 5)])
def test_adapters_give_as_many_frames_as_they_say(kernel_size: int, stride: int) -> None:
    conv = GatedConv(kernel_size, stride)
    params = {
        "kernel": jax.ShapeDtypeStruct((kernel_size, 3, 6), jnp.float32),
        "bias": jax.ShapeDtypeStruct((6,), jnp.float32),
    }
    for num_frames in (5, 6, 20, 21):
        x = jax.ShapeDtypeStruct((1, num_frames, 3), jnp.float32)
        found = jax.eval_shape(lambda params, x: conv.apply({"params": params}, x), params, x)
        assert found.shape == (1, (num_frames + 2 * (stride // 2) - kernel_size) // stride + 1, 3)  # as in PyTorch
        length = gated_length(num_frames, kernel_size, stride)
        assert length == min(found.shape[1], gated_length(num_frames, kernel_size, stride, of_peer=True))
        assert kernel_size // 2 != stride // 2 or length == found.shape[1]
    assert gated_length(np.arange(3), kernel_size, stride)[0] == gated_length(0, kernel_size, stride) == 0


def test_batches_that_are_too_short_for_an_adapter() -> None:
    with pytest.raises(ValueError, match="an adapter needs batches of at least 5 frames, got 2"):
        jax.eval_shape(GatedConv(5, 3).init, jax.random.key(0), np.zeros((1, 2, 3), np.float32))


@pytest.mark.slow
def test_padding_enters_adapters_where_it_may() -> None:
    params = params_of(replace(TINY, num_adapters=1))
    encoders = {
        each: replace(TINY, num_adapters=1, mask_padding=each).build(dtype=jnp.float32) for each in (True, False)
    }
    encode = fast_jit(
        lambda frames, mask_padding: encoders[mask_padding].apply({"params": params}, frames, step=None),
        static_argnums=1,
    )
    noisy = FRAMES.replace(values=np.where(PADDING[..., None], 0, VALUES))

    def last(mask_padding: bool, frames: Frames) -> Any:
        return np.asarray(encode(frames, mask_padding).frames.values)[1, 5]

    alone = Frames(VALUES[:, :11], np.array([11, 11]))
    assert_within(max_abs(last(True, noisy), last(True, alone)), 1e-5)
    assert max_abs(last(False, noisy), last(False, alone)) > 1e-3
    assert_within(max_abs(last(False, noisy), last(False, FRAMES)), 1e-5)  # the adapters see layer outputs for 0


# The first size is that of transformers' Wav2Vec2BertModel with default settings, those of the released model.
@pytest.mark.parametrize(
    ("settings", "number"), [(W2VBert(), 580_493_120), (W2VBert.rust(), 580_493_120), (W2VBert.tiny(), 886_496)]
)
def test_sizes(settings: W2VBert, number: int) -> None:
    assert num_elements(shapes_of(settings)) == number


def test_a_model_that_masks_nothing_has_no_learned_frame() -> None:
    assert "mask" in shapes_of(TINY)
    assert "mask" not in shapes_of(replace(TINY, time_mask=SpanMask(0.0)))


@pytest.mark.parametrize(
    "changes",
    [
        {"dim": 13},
        {"positions": "rotary", "dim": 6},
        {"positions": "relative", "dim": 9, "num_heads": 3},
        {"num_heads": 0},
        {"kernel_size": 4},
        {"left_distance": -1},
        {"adapter_dim": 8},
        {"intermediate": True},
        {"num_adapters": 1, "adapter_dim": 9},
        {"adapter_stride": 0},
        {"norm_eps": 0.0},
        {"taps": ("layer_2",)},
        {"layer_drop": 1.0},
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any]) -> None:
    assert_refused(TINY, **changes)


def test_frames_of_another_width() -> None:
    frames = Frames(np.zeros((1, 20, 80), np.float32), np.array([20]))
    with pytest.raises(ValueError, match=r"80 .*num_mels.* 16"):
        jax.eval_shape(partial(TINY.build(dtype=jnp.float32).init, step=None), jax.random.key(0), frames)

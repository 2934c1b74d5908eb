"""wav2vec 2.0: the suite of all encoders, published sizes, the hourglass, and masked frames."""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_suite import EncoderSuite, assert_refused
from flax import linen as nn
from support import assert_within, fast_jit, max_abs, relative

from asr_jax.audio.presets import nemo, wav2vec2
from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import flatten, num_elements, unflatten
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Hourglass, Wav2Vec2
from asr_jax.nn.wav2vec.span_masks import SpanMask
from asr_jax.nn.wav2vec.waveform_convs import WaveformConv, extracted, strided_conv

TINY = Wav2Vec2(
    extractor=(WaveformConv(8, 5, 3), WaveformConv(8, 3, 2), WaveformConv(12, 2, 2)),
    dim=16,
    num_heads=2,
    feedforward_dim=24,
    position_kernel=6,
    position_groups=2,
    num_layers=2,
    time_mask=SpanMask(0.5, 3),
    dropout=0.0,
    attention_dropout=0.0,
    input_dropout=0.0,
    feature_dropout=0.0,
    layer_drop=0.0,
)
WITHOUT_EXTRACTOR = replace(TINY, extractor=(), num_features=6)


@pytest.mark.slow  # tests/goldens/test_hf_wav2vec2.py and test_dle_w2v2_ctc.py compare outputs, losses and gradients
class TestWav2Vec2(EncoderSuite):
    """The hourglass pads the last group of frames, also in shorter rows."""

    settings = replace(
        TINY,
        extractor=TINY.extractor[:2],
        hourglass=Hourglass(0, 1, 3, 1, "linear"),
        taps=("extractor", "features", "layer_1"),
        time_mask=SpanMask(0.05, 2, min_spans=1, same_count=False),
        channel_mask=SpanMask(0.05, 1, min_spans=0),
        extractor_gradient=0.5,
    )
    gradient_factors: ClassVar[dict[str, float]] = {"extractor": 0.5}
    num_features = 1
    bucket, bigger_bucket = 72, 85
    lengths = (72, 50, 9, 62)


def shapes_of(settings: Wav2Vec2) -> Any:
    """Shapes of all parameters."""
    encoder = settings.build(dtype=jnp.float32)
    frames = Frames(jax.ShapeDtypeStruct((1, 800, settings.num_features), jnp.float32), np.array([800]))
    return jax.eval_shape(lambda frames: encoder.init(jax.random.key(0), frames, step=None), frames)["params"]


def params_of(settings: Wav2Vec2) -> Any:
    """Random parameters. Scales of norms are around 1."""
    rng, shapes = np.random.default_rng(1), flatten(shapes_of(settings))
    drawn = {path: rng.normal(path.endswith("scale"), 0.2, leaf.shape) for path, leaf in shapes.items()}
    return jax.device_put(unflatten({path: array.astype(np.float32) for path, array in drawn.items()}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"norm_first": True, "extractor_norm": "layer", "extractor_bias": True, "rotary": True},
        {"hourglass": Hourglass(0, 1, 2, 0)},
    ],
)
def test_padding_does_not_matter_elsewhere(changes: dict[str, Any]) -> None:
    settings, rng = replace(TINY, num_layers=1, **changes), np.random.default_rng(0)
    encoder, params, length = settings.build(dtype=jnp.float32), params_of(settings), 211
    samples = rng.normal(size=(2, 300, 1)).astype(np.float32)
    encode = fast_jit(lambda params, frames: encoder.apply({"params": params}, frames, step=None).frames.values)
    together = encode(params, Frames(samples, np.array([300, length])))
    alone = np.asarray(encode(params, Frames(samples[1:, :length], np.array([length]))))[0]
    assert_within(max_abs(np.asarray(together)[1, : len(alone)], alone), 1e-5)


@pytest.mark.parametrize(
    ("settings", "millions"),
    [(Wav2Vec2.base(), 94.37), (Wav2Vec2.large(), 315.44), (Wav2Vec2.base_hourglass(4), 94.37)],
)
def test_published_numbers_of_parameters(settings: Wav2Vec2, millions: float) -> None:
    assert round(num_elements(shapes_of(settings)) / 1e6, 2) == millions


def test_frames_of_published_sizes() -> None:
    """Frames have a hop of 20 ms and a length of 25 ms."""
    layers = Wav2Vec2.base().extractor
    assert [extracted(number, layers) for number in (399, 400, 719, 720, 16000)] == [0, 1, 1, 2, 49]


@pytest.mark.parametrize("width", [1, 40])
def test_strided_conv_is_xlas(width: int) -> None:
    """Values and gradients of convolutions with few and many values per frame, for all remainders of frames."""
    rng = np.random.default_rng(0)
    cases = [(10, 5, 52), (3, 2, 17), (3, 2, 18), (2, 2, 9), (2, 3, 11), (1, 1, 4)]  # taps, stride, frames

    def xlas(x: Any, kernel: Any, stride: int) -> Any:
        return jax.lax.conv_general_dilated(x, kernel, (stride,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))

    @fast_jit
    def both(given: Any) -> Any:
        found = []
        for (_, stride, _), (x, kernel) in zip(cases, given, strict=True):
            for conv in (strided_conv, xlas):
                y, backward = jax.vjp(lambda *given, conv=conv, stride=stride: conv(*given, stride), x, kernel)
                found.append((y, *backward(jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape))))
        return found

    shapes = [((2, frames, width), (size, width, 4)) for size, _, frames in cases]
    found = both([[np.float32(rng.normal(size=shape)) for shape in each] for each in shapes])
    for ours, expected in zip(found[::2], found[1::2], strict=True):
        for mine, xla in zip(ours, expected, strict=True):
            assert_within(relative(mine, xla), 1e-5)


def test_hidden_frames_are_one_vector_and_the_targets_are_not_hidden() -> None:
    settings = replace(TINY, taps=("features",), position_kernel=1, num_layers=1)
    encoder, rng = settings.build(dtype=jnp.float32), np.random.default_rng(0)
    samples = rng.normal(size=(2, 1, 300, 1)).astype(np.float32)
    lengths, num = jax.device_put(np.array([300])), encoder.output_length(300)
    params = params_of(settings)
    encode = fast_jit(lambda x, mask: encoder.apply({"params": params}, Frames(x, lengths), step=None, mask=mask))
    everything, nothing = np.ones((1, num), bool), np.zeros((1, num), bool)
    first, second = (encode(each, everything) for each in samples)
    assert_within(max_abs(first.frames.values, second.frames.values), 1e-6)
    np.testing.assert_array_equal(first.mask, everything)
    open_ = encode(samples[0], nothing)
    assert max_abs(first.taps["features"].values, open_.taps["features"].values) == 0
    assert max_abs(first.frames.values, open_.frames.values) > 0.1


def test_layers_are_left_out_of_all_stacks() -> None:
    """At a rate that is 1 in float32, training does not depend on the weights of the layers."""
    settings = replace(WITHOUT_EXTRACTOR, hourglass=Hourglass(1, 1, 3, 1), layer_drop=1 - 1e-12)
    encoder, params = settings.build(dtype=jnp.float32), flatten(jax.device_get(params_of(settings)))
    x, lengths, rngs = np.ones((1, 50, 6), np.float32), jax.device_put(np.array([50])), {"dropout": jax.random.key(0)}

    @fast_jit
    def encode(params: Any, x: Any) -> Frames:
        return encoder.apply({"params": params}, Frames(x, lengths), step=jnp.int32(0), rngs=rngs).frames

    changed = {}
    for start in ("before/", "middle/", "after/", "project/"):
        others = {path: np.float32(2) * leaf if path.startswith(start) else leaf for path, leaf in params.items()}
        changed[start] = max_abs(encode(unflatten(others), x).values, encode(unflatten(params), x).values)
    assert changed.pop("project/") > 0.1
    assert not any(changed.values())


def before_positions(settings: Wav2Vec2, frames: Frames, mask: Any, *, training: bool) -> Any:
    """Projected features before and after masking, that is, the input of the positional convolution. The layers do not
    run."""
    encoder, params, seen = settings.build(dtype=jnp.float32), params_of(settings), {}
    step, rngs = (jnp.int32(0), {"mask": jax.random.key(0)}) if training else (None, {})

    def watch(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
        found = (args[0], None) if context.module.name == "transformer" else method(*args, **kwargs)
        if context.method_name == "__call__":
            seen[context.module.name] = (args, found)
        return found

    with nn.intercept_methods(watch):
        encoder.apply({"params": params}, frames, step=step, mask=mask, rngs=rngs)
    return seen["project"][1], seen["positions"][0][0]


def apply_mask(x: np.ndarray, mask: np.ndarray, silent: np.ndarray, hidden: np.ndarray, *, before: bool) -> np.ndarray:
    """Source: `apply_mask` in fairseq's wav2vec2.py at commit 3d262bb2; `before`: its `mask_channel_before`."""
    x, channels = x.copy(), np.broadcast_to(silent[:, None], x.shape)
    if before:
        x[channels] = 0
    x[mask] = hidden
    if not before:
        x[channels] = 0
    return x


def test_channels_are_silenced_before_or_after_frames_are_hidden() -> None:
    """Masked frames have all channels of the learned vector, or some channels are 0 as in other frames."""
    settings = replace(WITHOUT_EXTRACTOR, channel_mask=SpanMask(0.4, 2, min_spans=1, same_count=False))
    lengths, num = np.array([50, 33], np.int32), 50
    frames = Frames(np.cos(np.arange(600), dtype=np.float32).reshape(2, num, 6), lengths)
    mask, valid = np.arange(num) % 3 == np.array([[0], [1]]), np.arange(num) < lengths[:, None]
    hidden, drawn = np.asarray(params_of(settings)["mask"]), []
    cases = [
        (replace(settings, channel_mask_first=first), training)
        for first, training in ((True, True), (False, True), (True, False))
    ]

    @fast_jit
    def all_cases(frames: Frames, mask: Any) -> Any:
        return [before_positions(each, frames, mask, training=training) for each, training in cases]

    for (each, _), (projected, found) in zip(cases, jax.device_get(all_cases(frames, mask)), strict=True):
        silent = np.stack([(row[open_] == 0).all(axis=0) for row, open_ in zip(found, valid & ~mask, strict=True)])
        expected = apply_mask(projected, mask, silent, hidden, before=each.channel_mask_first) * valid[..., None]
        np.testing.assert_array_equal(found, expected)
        drawn.append(silent)
    before, after, evaluated = drawn
    np.testing.assert_array_equal(before, after)
    assert (before[0] != before[1]).any()
    assert before.any(axis=1).all()
    assert not before.all(axis=1).any()
    assert not evaluated.any()
    assert hidden.all()


def test_masks_lie_within_rows_and_are_as_many_in_each_row_of_a_sub_batch() -> None:
    encoder = replace(TINY, time_mask=SpanMask(0.5, 3)).build(dtype=jnp.float32)
    lengths = np.array([600, 480, 300, 0, 600, 150, 150, 600], np.int32)
    frames = encoder.output_length(lengths)
    draw = fast_jit(partial(encoder.draw_mask, size=600, sub_batches=4))
    mask = np.asarray(draw(jax.random.key(1), lengths))
    assert not mask[np.arange(mask.shape[1]) >= frames[:, None]].any()
    numbers = [{int(mask[row].sum()) for row in part if frames[row]} for part in np.split(np.arange(8), 4)]
    assert [len(each) for each in numbers] == [1] * 4
    assert len(set.union(*numbers)) > 1


def test_parameters_have_depths() -> None:
    for settings in (TINY, replace(TINY, hourglass=Hourglass(1, 2, 2, 1, "linear")), replace(TINY, norm_first=True)):
        shapes = flatten(shapes_of(settings))
        found = {path: settings.depths(path) for path in shapes}
        assert all(len(found[path]) == shape.shape[0] for path, shape in shapes.items() if "/layers/" in path)
        assert {depth for depths in found.values() for depth in depths} == set(range(settings.num_depths()))


@pytest.mark.parametrize(
    "changes",
    [
        {"dim": 18, "num_heads": 12},
        {"num_heads": 5},
        {"hourglass": Hourglass(1, 1), "norm_first": True},
        {"taps": ("layer_7",)},
        {"projected": False},
        {"dropout": 1.0},
    ],
)
def test_wrong_settings(changes: dict[str, Any]) -> None:
    assert_refused(TINY, **changes)


def test_features_instead_of_samples() -> None:
    """A front-end of mel bins replaces the convolutions, as NVIDIA's spectrogram features."""
    settings = replace(TINY, extractor=(), num_features=80, taps=("features",))
    Model(encoder=settings, front_end=nemo(), augment=())
    with pytest.raises(ValueError, match=r" 80, .* have 1 values"):
        Model(encoder=settings, front_end=wav2vec2(), augment=())
    with pytest.raises(ValueError, match="Waveform"):
        Model(encoder=TINY, front_end=nemo(), augment=())
    encoder, frames = settings.build(dtype=jnp.float32), Frames(np.ones((1, 20, 80), np.float32), np.array([20]))
    found, _ = jax.eval_shape(lambda frames: encoder.init_with_output(jax.random.key(0), frames, step=None), frames)
    assert found.frames.values.shape == (1, 20, 16)

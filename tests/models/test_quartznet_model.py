"""QuartzNet: the suite of all encoders, published sizes, kinds of blocks, and effects of the settings."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_suite import EncoderSuite, Made, assert_refused
from support import assert_within, fast_jit, max_abs

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import flatten, num_elements
from asr_jax.models.encoder import Encoder
from asr_jax.models.quartznet import QuartzNet, odd_size
from asr_jax.nn.quartznet.block import ConvBlock

TINY = QuartzNet(
    num_mels=16,
    blocks=(
        ConvBlock(16, 5, stride=2, residual="none"),
        ConvBlock(16, 3, repeat=3),
        ConvBlock(24, 5, dilation=2, residual="none"),
        ConvBlock(32, 1, separable=False, residual="none"),
    ),
    activation="selu",
    remat="layers",
    taps=("block_0",),
)
# All other kinds of blocks.
OTHERS = QuartzNet(
    num_mels=16,
    blocks=(
        ConvBlock(16, 3, residual="none", squeeze=2, squeeze_frames=8, future_frames=0),
        ConvBlock(16, 5, repeat=2, stride=2, stride_last=True, groups=2, heads=4, residual="max", squeeze=4),
        ConvBlock(24, 3, residual="dense", copies=2, separable=False),
    ),
    activation="silu",
    norm="group",
    norm_groups=4,
)


class TestQuartzNet(EncoderSuite):
    settings = replace(TINY, blocks=(TINY.blocks[0], ConvBlock(24, 5, dilation=2, repeat=3), TINY.blocks[-1]))
    num_features = TINY.num_mels

    def test_taps_are_what_a_block_gives(self, made: Made) -> None:
        found = self.shapes(made).taps
        assert {name: tap.values.shape for name, tap in found.items()} == {"block_0": (4, 24, 16)}

    def test_statistics_are_of_valid_frames_alone(self, made: Made) -> None:
        @fast_jit
        def stats(params: Any, frames: Frames) -> Any:
            variables = {"params": params, **made.stats}
            return made.encoder.apply(variables, frames, step=jnp.int32(0), mutable=["batch_stats"])[1]

        plain, noisy = (flatten(stats(made.params, self.frames(tail=tail))) for tail in (0.0, 5.0))
        assert max(max_abs(plain[path], flatten(made.stats)[path]) for path in plain) > 0.01
        assert_within(max(max_abs(noisy[path], plain[path]) for path in plain), 1e-5)


@pytest.mark.slow
class TestOtherBlocks(EncoderSuite):
    settings = OTHERS
    num_features = OTHERS.num_mels


def init(encoder: Encoder, frames: Frames) -> Any:
    return jax.eval_shape(partial(encoder.init, step=None), jax.random.key(0), frames)


@pytest.mark.parametrize(
    ("settings", "published"),
    [
        pytest.param(QuartzNet.of_5x5(), 6_713_181, id="5x5"),
        pytest.param(QuartzNet.of_10x5(), 12_818_781, id="10x5", marks=pytest.mark.slow),
        pytest.param(QuartzNet.of_15x5(), 18_924_381, id="15x5", marks=pytest.mark.slow),
        pytest.param(QuartzNet.tiny(), 897_181, id="tiny", marks=pytest.mark.slow),
    ],
)
def test_published_sizes(settings: QuartzNet, published: int) -> None:
    """The paper's table 3 has 6.7, 12.8 and 18.9 million parameters with a CTC head of 29 labels."""
    frames = Frames(np.zeros((1, 100, 64), np.float32), np.array([100]))
    params = init(settings.build(dtype=jnp.float32), frames)["params"]
    assert num_elements(params) + 29 * (settings.blocks[-1].width + 1) == published


def test_weights_begin_as_published() -> None:
    """Xavier's bounds have PyTorch's fans: 33 taps of 256 filters, 256 to 256 channels, 16 · 3 to 16 · 3."""
    blocks = (ConvBlock(256, 33, repeat=2), ConvBlock(16, 3, separable=False))
    encoder = QuartzNet(num_mels=256, blocks=blocks).build(dtype=jnp.float32)
    frames = Frames(np.zeros((1, 8, 256), np.float32), np.array([8]))
    run = fast_jit(lambda key, frames: encoder.init(key, frames, step=None)["params"])
    params = jax.device_get(run(jax.random.key(0), frames))
    for (number, name, kind), fans in {
        (0, "layers", "depthwise"): 33 + 33 * 256,
        (0, "layers", "pointwise"): 256 + 256,
        (1, "first", "conv"): 3 * 256 + 3 * 16,
    }.items():
        bound = (6 / fans) ** 0.5
        assert 0.99 * bound < np.abs(params[f"block_{number}"][name][kind]["kernel"]).max() <= bound


def test_the_program_does_not_grow_with_layers() -> None:
    def size(repeat: int) -> int:
        encoder = replace(TINY, repeat=repeat).build(dtype=jnp.float32)
        frames = Frames(np.zeros((1, 20, 16), np.float32), np.array([20]))
        program = jax.jit(partial(encoder.init_with_output, step=None)).lower(jax.random.key(0), frames)
        return len(program.as_text().splitlines())

    assert size(9) == size(3)


def test_what_changes_all_blocks() -> None:
    assert QuartzNet.of_15x5(copies=1).every_block() == QuartzNet.of_5x5().every_block()
    settings = replace(TINY, copies=2, repeat=4, dropout=0.2, width_factor=1.5, kernel_factor=2.0)
    blocks = settings.every_block()
    assert [block.width for block in blocks] == [24, 24, 24, 40, 48]
    assert [block.kernel_size for block in blocks] == [11, 7, 7, 11, 3]
    assert [block.repeat for block in blocks] == [1, 4, 4, 1, 1]
    assert {block.dropout for block in blocks} == {0.2}
    assert settings.num_depths() == 5
    assert settings.depths("block_3/first/norm/gain") == (3,)
    assert [odd_size(size, factor) for size, factor in ((33, 0.5), (33, 1.0), (8, 1.0), (3, 0.1))] == [17, 33, 9, 1]


@pytest.mark.parametrize("norm", ["batch_padded", "layer", "instance", "layer_padded"])
def test_norms_count_padding_where_that_is_asked_for(norm: Any) -> None:
    encoder = QuartzNet(num_mels=16, blocks=(ConvBlock(16, 5, stride=2, residual="none"),), norm=norm).build(
        dtype=jnp.float32
    )
    lengths, values = (
        jax.device_put(np.array([20, 11])),
        np.random.default_rng(0).normal(size=(2, 20, 16)).astype(np.float32),
    )
    shapes = init(encoder, Frames(values, lengths))
    variables = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes)

    @fast_jit
    def train(variables: Any, *both: Any) -> Any:
        given = [(variables, Frames(values, lengths)) for values in both]
        return [encoder.apply(*each, step=jnp.int32(0), mutable=["batch_stats"])[0].frames.values for each in given]

    wider = np.pad(values, ((0, 0), (0, 12), (0, 0)))
    difference = max_abs(*(np.asarray(found)[:, :5] for found in train(variables, wider, values)))
    if norm.endswith("_padded"):
        assert difference > 1e-2
    else:
        assert_within(difference, 1e-5)


def test_frames_of_the_future() -> None:
    """The output of convolutions without right context does not depend on later frames."""
    settings = replace(TINY, blocks=(ConvBlock(16, 5, repeat=2, future_frames=0), ConvBlock(16, 3, future_frames=1)))
    encoder, lengths = replace(settings, taps=()).build(dtype=jnp.float32), jax.device_put(np.array([20]))
    values = np.random.default_rng(0).normal(size=(1, 20, 16)).astype(np.float32)
    shapes = init(encoder, Frames(values, lengths))
    variables = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.1, np.float32), shapes)
    forward = fast_jit(lambda given, values: encoder.apply(given, Frames(values, lengths), step=None).frames.values)
    later = np.arange(20)[None, :, None] >= 12
    changed = np.asarray(forward(variables, values + np.float32(later))) - np.asarray(forward(variables, values))
    assert not changed[:, :11].any()
    assert changed[:, 11].any()


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel_size": 4},
        {"dropout": 1.0},
        {"stride": 2, "dilation": 2},
        {"residual": "dense", "stride": 2},
        {"groups": 5},
        {"heads": 2, "separable": False},
        {"squeeze": 17},
        {"future_frames": 3},
        {"width": 0},
        {"repeat": 0},
    ],
)
def test_blocks_that_cannot_be(changes: dict[str, Any]) -> None:
    assert_refused(ConvBlock(16, 3), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": ()},
        {"num_mels": 0},
        {"width_factor": 0.0},
        {"taps": ("block_9",)},
        {"norm": "group", "norm_groups": 7},
        {"repeat": 0},
        {"copies": 0},
        {"dropout": 1.0},
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any]) -> None:
    assert_refused(replace(TINY, taps=()), **changes)


def test_blocks_whose_channels_are_in_no_groups() -> None:
    with pytest.raises(ValueError, match=r"block_1 .*groups 3"):
        replace(TINY, taps=(), blocks=(ConvBlock(16, 3, groups=16), ConvBlock(24, 3, groups=3)))
    with pytest.raises(ValueError, match=r"block_0 .*heads 12"):
        replace(TINY, taps=(), blocks=(ConvBlock(24, 3, heads=12, repeat=2),))


def test_frames_of_another_width() -> None:
    with pytest.raises(ValueError, match=r"80 .*num_mels.* 16"):
        init(TINY.build(dtype=jnp.float32), Frames(np.zeros((1, 20, 80), np.float32), np.array([20])))

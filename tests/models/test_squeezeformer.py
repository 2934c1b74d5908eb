"""Squeezeformer: the suite of all encoders, published sizes, and effects of the settings."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_suite import EncoderSuite, Made, asks_for_dropout, assert_refused
from support import assert_close, assert_within, fast_jit, max_abs

from asr_jax.audio.presets import preset
from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import flatten, num_elements
from asr_jax.models.encoder import Encoder
from asr_jax.models.squeezeformer import PUBLISHED, Squeezeformer
from asr_jax.nn.conformer.squeezeformer import RecoverTime, Variant
from asr_jax.nn.remat import Remat

TINY = Squeezeformer(
    num_mels=16,
    dim=16,
    num_layers=3,
    num_heads=2,
    kernel_size=5,
    subsampling_channels=4,
    dropout=0.0,
    taps=("embed", "layer_1", "layer_2"),
)


@pytest.mark.slow  # tests/goldens/test_nemo_squeezeformer.py compares outputs and gradients
class TestSqueezeformer(EncoderSuite):
    """One layer at half the frame rate and one after the recovery."""

    settings = replace(TINY, num_layers=2, taps=("embed", "layer_0", "layer_1"))
    num_features = TINY.num_mels

    def test_taps_are_inner_frames_at_the_rate_of_their_layer(self, made: Made) -> None:
        shapes = {name: tap.values.shape for name, tap in self.shapes(made).taps.items()}
        assert shapes == {"embed": (4, 12, 16), "layer_0": (4, 6, 16), "layer_1": (4, 12, 16)}

    def test_the_last_tap_is_the_output(self, made: Made) -> None:
        encoded = made.encode(made.params, self.frames())
        np.testing.assert_array_equal(encoded.taps["layer_1"].values, encoded.frames.values)

    def test_every_parameter_has_a_depth(self, made: Made) -> None:
        for path, leaf in flatten(made.params).items():
            depths = self.settings.depths(path)
            assert all(0 <= depth < self.settings.num_depths() for depth in depths)
            assert len(depths) == (len(leaf) if path.startswith("stack_") else 1)
        assert TINY.depths("stack_2/layers/attention/query/kernel") == (3,)
        assert TINY.depths("stack_1/layers/attention/query/kernel") == (1, 2)
        assert TINY.depths("reduce/kernel") == (0,)
        assert TINY.depths("recover/project/kernel") == (2,)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "length"), [("nemo", 27), ("rust", 30)])
def test_an_utterance_is_the_same_alone_and_in_a_batch_in_any_variant(variant: Variant, length: int) -> None:
    """The number of frames before the reduction is odd."""
    encoder = replace(TINY, variant=variant, num_layers=1, taps=()).build(dtype=jnp.float32)
    assert encoder.output_length(length) % 2 == 1
    values = np.random.default_rng(0).normal(size=(2, 44, 16)).astype(np.float32)
    together = Frames(values, np.array([44, length]))
    variables, run = drawn(encoder, together), fast_jit(lambda v, f: encoder.apply(v, f, step=None).frames.values)
    assert len(variables["params"]["reduce"]["kernel"]) == {"nemo": 5, "rust": 3}[variant]
    alone = run(variables, Frames(values[1:, :length], np.array([length])))
    assert_within(max_abs(np.asarray(run(variables, together))[1, : alone.shape[1]], np.asarray(alone)[0]), 1e-5)


def test_recovered_frames_are_each_twice_in_order() -> None:
    """Each frame is duplicated, except the last of an odd number. The Rust trainer repeats the whole sequence."""
    x, before = np.arange(6, dtype=np.float32).reshape(1, 3, 2), np.zeros((1, 5, 2), np.float32)
    params = {"params": {"project": {"kernel": np.eye(2, dtype=np.float32), "bias": np.zeros(2, np.float32)}}}
    recovered = jax.jit(RecoverTime().apply)(params, x, before)
    np.testing.assert_array_equal(recovered[0, :, 0], [0, 0, 2, 2, 4])


def test_layers_in_the_middle_work_at_half_the_rate() -> None:
    assert Squeezeformer.xs().stack_sizes == (7, 8, 1)
    assert Squeezeformer.l().reduced == (10, 21)
    assert replace(TINY, reduce_time=False).stack_sizes == (3, 0, 0)
    custom = Squeezeformer(dim=128, num_layers=12)
    assert custom.reduced == (5, 11)
    assert Squeezeformer(num_layers=1).stack_sizes == (0, 0, 1)


def drawn(encoder: Encoder, frames: Frames) -> Any:
    shapes = jax.eval_shape(partial(encoder.init, step=None), jax.random.key(0), frames)
    rng = np.random.default_rng(0)
    values = jax.tree.map(lambda leaf: np.abs(rng.normal(0, 0.2, leaf.shape)).astype(np.float32), shapes)
    return jax.device_put(values)


def variables_of(settings: Squeezeformer) -> Any:
    encoder = settings.build(dtype=jnp.float32)
    frames = Frames(np.zeros((1, 100, settings.num_mels), np.float32), np.array([100]))
    return jax.eval_shape(partial(encoder.init, step=None), jax.random.key(0), frames)


@pytest.mark.parametrize(
    ("size", "millions"),
    [
        ("xs", 9.0),
        *(
            pytest.param(size, millions, marks=pytest.mark.slow)
            for size, millions in (("s", 18.6), ("sm", 28.2), ("m", 55.6), ("ml", 125.1), ("l", 236.3))
        ),
    ],
)
def test_published_sizes(size: str, millions: float) -> None:
    """The paper's table 2 counts as Keras does: with running statistics and a CTC head of 128 labels."""
    settings = getattr(Squeezeformer, size)()
    assert (settings.dim, settings.num_layers, settings.num_heads) == PUBLISHED[size]
    assert round((num_elements(variables_of(settings)) + 128 * (settings.dim + 1)) / 1e6, 1) == millions


@pytest.mark.slow
def test_tiny_has_about_a_million_parameters() -> None:
    assert 0.9e6 < num_elements(variables_of(Squeezeformer.tiny())["params"]) < 1.2e6


def test_the_rust_trainers() -> None:
    settings = Squeezeformer.rust("m", dropout=0.2)
    assert (settings.dim, settings.reduced, settings.dropout, settings.attention_dropout) == (324, (9, 19), 0.2, 0.1)
    settings.check(preset("rust_squeezeformer"))


def test_the_program_does_not_grow_with_depth() -> None:
    def size(num_layers: int) -> int:
        settings = replace(TINY, num_layers=num_layers, reduce_time=False, taps=())
        encoder, frames = settings.build(dtype=jnp.float32), Frames(np.zeros((1, 20, 16), np.float32), np.array([20]))
        program = jax.jit(partial(encoder.init_with_output, step=None)).lower(jax.random.key(0), frames)
        return len(program.as_text().splitlines())

    assert size(12) == size(6)


def test_dropout_is_of_training() -> None:
    """Training with a dropout rate above 0 requests a random stream. Evaluation and training without it do not."""
    settings = replace(TINY, num_layers=1, taps=())
    shapes, rates = variables_of(settings), {"dropout": 0.3, "attention_dropout": 0.3}
    assert all(asks_for_dropout(replace(settings, **{name: rate}), shapes, step=0) for name, rate in rates.items())
    assert not asks_for_dropout(settings, shapes, step=0)
    assert not asks_for_dropout(replace(settings, **rates), shapes, step=None)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["elementwise", "products", "layers"])
def test_remat_gives_the_same_gradients(remat: Remat) -> None:
    values = np.random.default_rng(0).normal(size=(2, 20, 16)).astype(np.float32)
    frames = jax.device_put(Frames(values, np.array([20, 13])))
    gradients = []
    for policy in ("none", remat):
        encoder = replace(TINY, num_layers=1, taps=(), dropout=0.1, remat=policy).build(dtype=jnp.float32)
        variables = drawn(encoder, frames)

        def loss(params: Any, encoder: Encoder = encoder, stats: Any = variables["batch_stats"]) -> Any:
            out, _ = encoder.apply(
                {"params": params, "batch_stats": stats},
                frames,
                step=jnp.int32(0),
                rngs={"dropout": jax.random.key(0)},
                mutable=["batch_stats"],
            )
            return jnp.sum(out.frames.values[..., 0] ** 2)

        gradients.append(flatten(fast_jit(jax.grad(loss))(variables["params"])))
    plain, again = gradients
    largest = max(float(jnp.abs(leaf).max()) for leaf in plain.values())
    for path, leaf in plain.items():
        assert_close(again[path], leaf, rtol=0, atol=max(1e-4 * np.abs(leaf).max(), 1e-6 * largest), what=path)


@pytest.mark.parametrize(
    "changes",
    [
        {"dim": 15},
        {"kernel_size": 4},
        {"num_layers": 0},
        {"subsampling_factor": 6},
        {"subsampling_channels": 0},
        {"num_mels": 3},
        {"reduce_at": 2, "recover_at": 1},
        {"recover_at": 3},
        {"reduce_time": False, "reduce_at": 1},
        {"dropout": 1.0},
        {"positions": "abs_pos", "tied_biases": True},
        {"taps": ("layer_3",)},
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any]) -> None:
    assert_refused(TINY, **changes)


def test_frames_of_another_width() -> None:
    frames = Frames(np.zeros((1, 20, 80), np.float32), np.array([20]))
    with pytest.raises(ValueError, match=r"80 .*num_mels.* 16"):
        jax.eval_shape(partial(TINY.build(dtype=jnp.float32).init, step=None), jax.random.key(0), frames)


def test_batches_that_are_too_short_for_a_frame() -> None:
    encoder = TINY.build(dtype=jnp.float32)
    frames = Frames(np.zeros((1, 3, 16), np.float32), np.array([3]))
    with pytest.raises(ValueError, match=r"4 .* 3"):
        jax.eval_shape(partial(encoder.init, step=None), jax.random.key(0), frames)

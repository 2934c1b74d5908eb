"""Conformer and FastConformer: the suite of all encoders, sizes, and effects of the settings."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_suite import EncoderSuite, Made, asks_for_dropout, assert_refused
from support import assert_close, assert_within, fast_jit, max_abs, relative

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import flatten, num_elements
from asr_jax.models.conformer import Conformer
from asr_jax.nn.remat import Remat

RATES = ("dropout", "input_dropout", "position_dropout", "attention_dropout")
NO_DROPOUT = dict.fromkeys(RATES, 0.0)
TINY = Conformer(
    num_mels=16, dim=12, num_layers=2, num_heads=2, feedforward_dim=20, kernel_size=5, subsampling_channels=4,
    taps=("layer_0",), **NO_DROPOUT,
)  # fmt: skip
FAST = replace(TINY, subsampling="dw_striding", subsampling_factor=8, use_bias=False, convolution_bias=False, taps=())


class TestConformer(EncoderSuite):
    settings = TINY
    num_features = TINY.num_mels

    def test_taps_are_inner_frames(self, made: Made) -> None:
        whole = made.encode(made.params, self.frames())
        tap, last = whole.taps["layer_0"], whole.frames
        one = replace(TINY, num_layers=1, taps=("layer_0",)).build(dtype=jnp.float32)
        first = {"params": made.params, **made.stats}
        first = {
            name: {**tree, "layers": jax.tree.map(lambda x: np.asarray(x)[:1], tree["layers"])}
            for name, tree in first.items()
        }
        encoded = fast_jit(lambda given, frames: one.apply(given, frames, step=None))(first, self.frames())
        np.testing.assert_array_equal(tap.lengths, last.lengths)
        for row in range(len(self.lengths)):
            assert_within(max_abs(self.valid(tap, row), self.valid(encoded.frames, row)), 1e-5)
        assert max_abs(encoded.taps["layer_0"].values, encoded.frames.values) == 0

    def test_depths_of_parameters(self, made: Made) -> None:
        depths = {path: TINY.depths(path) for path in flatten(made.params)}
        assert depths["embed/kernel"] == depths["subsample/conv_0/kernel"] == (0,)
        assert depths["layers/norm/scale"] == (1, 2)
        assert {depth for found in depths.values() for depth in found} == set(range(TINY.num_depths()))


@pytest.mark.slow
class TestFastConformer(EncoderSuite):
    """Separable convolutions, no biases: tests/goldens/test_nemo_conformer.py compares both kinds with NeMo's."""

    settings = FAST
    num_features = FAST.num_mels


@cache
def shapes_of(settings: Conformer) -> Any:
    """Shapes of all variables."""
    encoder = settings.build(dtype=jnp.float32)
    frames = Frames(np.zeros((1, 80, settings.num_mels), np.float32), np.array([80]))
    return jax.eval_shape(partial(encoder.init, step=None), jax.random.key(0), frames)


@cache
def made_of(settings: Conformer) -> tuple[Any, Any]:
    """Returns random variables, and a function to loss, frames and gradients of two rows for a dropout key."""
    encoder = settings.build(dtype=jnp.float32)
    rng = np.random.default_rng(0)
    frames = Frames(rng.normal(size=(2, 32, settings.num_mels)).astype(np.float32), np.array([32, 19]))
    variables = jax.tree.map(lambda leaf: rng.uniform(0.1, 0.4, leaf.shape).astype(np.float32), shapes_of(settings))
    frames, variables = jax.device_put((frames, variables))
    stats = [name for name in variables if name != "params"]

    def loss(params: Any, key: Any, step: Any) -> Any:
        given = {**variables, "params": params}
        encoded, _ = encoder.apply(given, frames, step=step, rngs={"dropout": key}, mutable=stats)
        return jnp.sum(encoded.frames.values[0] ** 2), encoded.frames.values

    return variables["params"], fast_jit(jax.value_and_grad(loss, has_aux=True))


def test_dropout_is_of_training() -> None:
    """Training with a dropout rate above 0 requests a random stream. Evaluation and training without it do not."""
    shapes = shapes_of(TINY)
    assert all(asks_for_dropout(replace(TINY, **{rate: 0.5}), shapes, step=0) for rate in RATES)
    assert not asks_for_dropout(TINY, shapes, step=0)
    assert not asks_for_dropout(replace(TINY, **dict.fromkeys(RATES, 0.5)), shapes, step=None)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["elementwise", "products", "layers"])
def test_remat_gives_the_same_gradients(remat: Remat) -> None:
    settings, key = replace(FAST, num_layers=1, attention_dropout=0.2, dropout=0.1), jax.random.key(0)
    plain, again = (
        flatten(run(params, key, jnp.int32(0))[1])
        for params, run in (made_of(replace(settings, remat=each)) for each in ("none", remat))
    )
    assert_within(max(relative(again[path], plain[path]) for path in plain), 1e-4)


@pytest.mark.slow
def test_attention_without_scores_in_memory_gives_the_same_gradients() -> None:
    key, settings = jax.random.key(0), replace(TINY, taps=(), num_layers=1)
    (plain, grads), (other, others) = (
        run(params, key, jnp.int32(0))
        for params, run in (made_of(replace(settings, attention=each)) for each in ("auto", "xla"))
    )
    assert_close(other[1][0], plain[1][0], rtol=1e-5, atol=1e-5)
    grads, others = flatten(grads), flatten(others)
    largest = max(float(jnp.abs(each).max()) for each in grads.values())
    for path, grad in grads.items():  # gradients of biases before a norm are 0 up to rounding
        assert_close(others[path], grad, rtol=1e-4, atol=1e-7 * largest, what=path)


def test_tied_biases_are_one_pair_for_all_layers() -> None:
    tied, untied = (shapes_of(replace(TINY, taps=(), tied_biases=tied))["params"] for tied in (True, False))
    assert tied["content_bias"].shape == tied["position_bias"].shape == (2, 6)
    assert untied["layers"]["attention"]["content_bias"].shape == (2, 2, 6)
    assert num_elements(untied) - num_elements(tied) == 2 * 12


def test_the_program_does_not_grow_with_depth() -> None:
    def size(num_layers: int) -> int:
        encoder = replace(FAST, num_layers=num_layers).build(dtype=jnp.float32)
        frames = Frames(np.zeros((1, 20, 16), np.float32), np.array([20]))
        program = jax.jit(partial(encoder.init_with_output, step=None)).lower(jax.random.key(0), frames)
        return len(program.as_text().splitlines())

    assert size(6) == size(2)


def test_tiny_has_a_million_parameters() -> None:
    """tests/goldens/test_nemo_conformer.py counts the parameters of the published sizes."""
    assert round(num_elements(shapes_of(Conformer.tiny())["params"]) / 1e6, 1) == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"dim": 13},
        {"num_heads": 5},
        {"num_heads": 0},
        {"num_layers": 0, "taps": ()},
        {"feedforward_dim": 0},
        {"kernel_size": 4},
        {"subsampling_factor": 6},
        {"subsampling_factor": 1},
        {"taps": ("layer_2",)},
        {"positions": "abs_pos", "tied_biases": True},
        {"attention_dropout": 1.0},
        {"attention": "xla", "attention_dropout": 0.1},
        {"attention": "xla", "positions": "none"},
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any]) -> None:
    assert_refused(TINY, **changes)


def test_frames_of_another_width() -> None:
    frames = Frames(np.zeros((1, 20, 80), np.float32), np.array([20]))
    with pytest.raises(ValueError, match=r"80 .*num_mels.* 16"):
        jax.eval_shape(partial(TINY.build(dtype=jnp.float32).init, step=None), jax.random.key(0), frames)

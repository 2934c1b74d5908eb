"""Scores of clipped distances, rotary positions, and gated convolutions with a stride, against simple versions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, assert_within, max_abs

from asr_jax.nn.conformer.striding import GatedConv
from asr_jax.nn.positions import clipped_distances, rotated

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("num_frames", "left", "right"), [(1, 4, 2), (3, 4, 2), (7, 0, 0), (9, 4, 0), (9, 0, 3), (20, 4, 2)]
)
def test_scores_of_clipped_distances_are_those_of_a_gather(num_frames: int, left: int, right: int) -> None:
    place = np.clip(np.arange(num_frames)[None] - np.arange(num_frames)[:, None], -left, right) + left
    scores = RNG.normal(size=(2, 3, num_frames, left + 1 + right)).astype(np.float32)
    weights = RNG.normal(size=(2, 3, num_frames, num_frames)).astype(np.float32)

    def gathered(scores: Any) -> Any:
        return jnp.take_along_axis(scores, np.broadcast_to(place, weights.shape), axis=-1)

    @jax.jit
    def both(scores: Any, weights: Any) -> Any:
        found = [jax.vjp(of, scores) for of in (lambda scores: clipped_distances(scores, left), gathered)]
        return [(values, *backward(weights)) for values, backward in found]

    (values, gradient), (expected, expected_gradient) = both(scores, weights)
    np.testing.assert_array_equal(values, expected)
    assert_within(max_abs(gradient, expected_gradient), 1e-5)


def test_no_gather_of_distances_is_compiled() -> None:
    scores = jax.ShapeDtypeStruct((1, 2, 40, 7), jnp.float32)
    text = jax.jit(jax.grad(lambda scores: jnp.sum(clipped_distances(scores, 4) ** 2))).lower(scores).as_text()
    assert "gather" not in text
    assert "scatter" not in text


def test_products_of_turned_channels_depend_on_the_offset_alone() -> None:
    one = np.broadcast_to(RNG.normal(size=(2, 1, 1, 3, 8)), (2, 1, 12, 3, 8))
    turned = jax.jit(rotated, static_argnums=1)
    query, key = (np.asarray(turned(np.float32(x), 100)) for x in one)
    assert_close(query[:, 0], one[0][:, 0], atol=1e-6)  # the first frame is not rotated
    products = np.einsum("bthc,bshc->bhts", query, key)
    for offset in (-3, 0, 5):
        diagonal = np.diagonal(products, offset, axis1=2, axis2=3)
        assert_within(max_abs(diagonal, diagonal[..., :1]), 1e-5)
    assert max_abs(query[0, 1], query[0, 0]) > 0.1


@pytest.mark.parametrize(("kernel_size", "stride"), [(3, 2), (4, 3), (1, 2), (5, 2), (3, 1)])
def test_gated_convolution(kernel_size: int, stride: int) -> None:
    shapes = {"x": (2, 13, 3), "kernel": (kernel_size, 3, 6), "bias": (6,)}

    @jax.jit
    def both(x: Any, kernel: Any, bias: Any) -> Any:
        found = GatedConv(kernel_size, stride).apply({"params": {"kernel": kernel, "bias": bias}}, x)
        padding = [(stride // 2, kernel_size + stride)]
        wide = jax.lax.conv_general_dilated(x, kernel, (stride,), padding, dimension_numbers=("NWC", "WIO", "NWC"))
        return found, jax.nn.glu(wide + bias[None, None])[:, : found.shape[1]]

    assert_within(max_abs(*both(*(RNG.normal(size=shape).astype(np.float32) for shape in shapes.values()))), 1e-5)

"""Scores by learned distances, channels that are turned, and gated convolutions with a stride: against plain forms."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import max_abs

from asr_jax.nn.positions import clipped_distances, rotated
from asr_jax.nn.striding import GatedConv

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("num_frames", "left", "right"), [(1, 4, 2), (3, 4, 2), (7, 0, 0), (9, 4, 0), (9, 0, 3), (20, 4, 2)]
)
def test_scores_of_clipped_distances_are_those_of_a_gather(num_frames: int, left: int, right: int) -> None:
    place = np.clip(np.arange(num_frames)[None] - np.arange(num_frames)[:, None], -left, right) + left
    scores = jnp.asarray(RNG.normal(size=(2, 3, num_frames, left + 1 + right)), jnp.float32)
    weights = jnp.asarray(RNG.normal(size=(2, 3, num_frames, num_frames)), jnp.float32)

    def gathered(scores: Any) -> Any:
        return jnp.take_along_axis(scores, jnp.broadcast_to(jnp.asarray(place)[None, None], weights.shape), axis=-1)

    np.testing.assert_array_equal(jax.jit(clipped_distances, static_argnums=1)(scores, left), gathered(scores))
    found, expected = (
        jax.jit(jax.grad(lambda scores, of=of: jnp.sum(of(scores) * weights)))(scores)
        for of in (lambda scores: clipped_distances(scores, left), gathered)
    )
    assert max_abs(found, expected) < 1e-5


def test_no_gather_of_distances_is_compiled() -> None:
    scores = jnp.zeros((1, 2, 40, 7))
    text = jax.jit(jax.grad(lambda scores: jnp.sum(clipped_distances(scores, 4) ** 2))).lower(scores).as_text()
    assert "gather" not in text
    assert "scatter" not in text


def test_products_of_turned_channels_depend_on_the_offset_alone() -> None:
    one = np.broadcast_to(RNG.normal(size=(2, 1, 1, 3, 8)), (2, 1, 12, 3, 8))
    query, key = (np.asarray(jax.jit(rotated, static_argnums=1)(jnp.float32(x), 100)) for x in one)
    np.testing.assert_allclose(query[:, 0], one[0][:, 0], atol=1e-6)  # the first frame is not turned
    products = np.einsum("bthc,bshc->bhts", query, key)
    for offset in (-3, 0, 5):
        diagonal = np.diagonal(products, offset, axis1=2, axis2=3)
        assert max_abs(diagonal, diagonal[..., :1]) < 1e-5
    assert max_abs(query[0, 1], query[0, 0]) > 0.1


@pytest.mark.parametrize(("kernel_size", "stride"), [(3, 2), (4, 3), (1, 2), (5, 2), (3, 1)])
def test_gated_convolution(kernel_size: int, stride: int) -> None:
    x = jnp.asarray(RNG.normal(size=(2, 13, 3)), jnp.float32)
    kernel = jnp.asarray(RNG.normal(size=(kernel_size, 3, 6)), jnp.float32)
    bias = jnp.asarray(RNG.normal(size=6), jnp.float32)
    found = GatedConv(kernel_size, stride).apply({"params": {"kernel": kernel, "bias": bias}}, x)
    wide = jax.lax.conv_general_dilated(
        x, kernel, (stride,), [(stride // 2, kernel_size + stride)], dimension_numbers=("NWC", "WIO", "NWC")
    )
    expected = np.asarray(jax.nn.glu(wide + bias[None, None]))[:, : found.shape[1]]
    assert max_abs(found, expected) < 1e-5

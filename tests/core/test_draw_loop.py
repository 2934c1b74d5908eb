"""Initial parameters that are drawn in one loop equal those that are drawn one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from asr_jax.core import draw_loop
from asr_jax.core.draw_loop import GENERATOR, drawn_at_once


class Layer(nn.Module):
    """Layer of a scan with draws of several distributions."""

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        bias = self.param("bias", nn.initializers.normal(1e-4), (1, x.shape[-1]))
        return nn.Dense(x.shape[-1], name="dense")(x) + bias, None


class Stack(nn.Module):
    """Three scanned layers between two others, of which one is larger than an iteration of the loop."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dense(70, kernel_init=nn.initializers.uniform(0.3), name="in")(x)
        layers = nn.scan(nn.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        x, _ = layers(name="layers")(x, None)
        return nn.Dense(1, bias_init=nn.initializers.normal(1.0), name="out")(x)


def parameters() -> object:
    key = jax.random.key(7, impl=GENERATOR)
    return Stack().init({"params": key}, jnp.ones((2, 30))), jax.random.key_data(key)


def test_values_are_equal_bit_by_bit() -> None:
    expected, found = (jax.jit(function)() for function in (parameters, drawn_at_once(parameters)))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert max(leaf.size for leaf in jax.tree.leaves(found)) > draw_loop.FEWEST_WORDS
    assert len({float(leaf.ravel()[0]) for leaf in jax.tree.leaves(found)}) > 4


def test_there_is_one_draw_and_no_forward_pass() -> None:
    one_by_one, at_once = (
        jax.jit(function).lower().as_text() for function in (parameters, drawn_at_once(parameters))
    )  # fmt: skip
    assert at_once.count("rng_bit_generator") == 1 < one_by_one.count("rng_bit_generator")
    assert "dot_general" not in at_once


@pytest.mark.slow
def test_jax_still_compiles_each_draw_on_its_own() -> None:
    """If this fails, JAX shares the code of draws: measure a cold start without `draw_loop`, which may then go."""

    def draws(number: int) -> list[jax.Array]:
        keys = jax.random.split(jax.random.key(7, impl=GENERATOR), number)
        return [jax.random.uniform(keys[i], (100 + i,)) for i in range(number)]

    few, many = (
        jax.jit(functools.partial(draws, number)).lower().compile().as_text().count(" = ") for number in (4, 16)
    )
    assert many > 3 * few


@pytest.mark.parametrize(
    "function",
    [
        lambda: jax.random.uniform(jax.random.key(1), (5,)),
        lambda: jax.random.uniform(jax.random.key(1, impl=GENERATOR), (5,), jnp.bfloat16),
        lambda: jax.lax.cond(
            jnp.arange(3)[1] > 0, lambda: jax.random.normal(jax.random.key(1, impl=GENERATOR)), lambda: 0.0
        ),
        lambda: jax.lax.fori_loop(0, 3, lambda i, x: x + jax.random.normal(jax.random.key(i, impl=GENERATOR)), 0.0),
        lambda: jax.vmap(jax.random.normal)(jax.random.split(jax.random.key(1, impl=GENERATOR), 3)),
    ],
    ids=["another generator", "another dtype", "a branch", "a loop with a carry", "several keys"],
)
def test_draws_that_cannot_be_moved_stay_where_they_are(function) -> None:  # type: ignore[no-untyped-def]
    np.testing.assert_array_equal(jax.jit(drawn_at_once(function))(), jax.jit(function)())

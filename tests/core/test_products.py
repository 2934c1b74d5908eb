"""Products whose results are float32: values, gradients, and the dtypes of the products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core import products
from asr_jax.core.devices import TracedFor
from asr_jax.core.products import float32_product
from tests.support import assert_close

CASES = {
    "by key": ("bthc,bshc->bhts", (2, 5, 3, 4), (2, 6, 3, 4)),
    "by offset": ("bthc,rhc->bhtr", (2, 5, 3, 4), (9, 3, 4)),
    "by distance": ("bthc,rc->bhtr", (2, 5, 3, 4), (9, 4)),
}


def gradient(function, x, y, factors):
    return jax.grad(lambda x, y: jnp.sum(function(x, y) * factors), (0, 1))(x, y)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 1e-2)])
def test_values_and_gradients_are_those_of_float32(name, dtype, tolerance):
    axes, *shapes = CASES[name]
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)
    in_float32 = [each.astype(jnp.float32) for each in (x, y)]
    values, expected = float32_product(axes, x, y), jnp.einsum(axes, *in_float32)
    assert values.dtype == jnp.float32
    assert_close(values, expected, atol=1e-5)
    factors = jnp.asarray(rng.normal(size=expected.shape), jnp.float32)
    found = gradient(lambda x, y: float32_product(axes, x, y), x, y, factors)
    for one, other in zip(found, gradient(lambda x, y: jnp.einsum(axes, x, y), *in_float32, factors), strict=True):
        assert one.dtype == jnp.dtype(dtype)
        assert_close(one.astype(jnp.float32), other, atol=tolerance * float(jnp.abs(other).max()))


@pytest.mark.parametrize(
    ("platform", "dtype", "operands"),
    [
        ("gpu", "bfloat16", {"bfloat16"}),
        ("cpu", "bfloat16", {"float32", "bfloat16"}),
        ("gpu", "float16", {"float32", "float16"}),
    ],
)
def test_products_of_the_gradient_have_16_bits_in_bfloat16(platform, dtype, operands, monkeypatch):
    monkeypatch.setattr(products, "traced_for", lambda: TracedFor(platform, 1))
    x, y = jnp.ones((2, 5, 3, 4), dtype), jnp.ones((2, 6, 3, 4), dtype)
    function = lambda x, y: float32_product("bthc,bshc->bhts", x, y)  # noqa: E731
    jaxpr = jax.make_jaxpr(lambda x, y: gradient(function, x, y, 1.0))(x, y).jaxpr
    found = [each for each in jaxpr.eqns if each.primitive.name == "dot_general"]
    assert len(found) >= 2
    assert {str(operand.aval.dtype) for each in found for operand in each.invars} == operands

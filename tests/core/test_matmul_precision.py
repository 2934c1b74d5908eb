"""Products whose results are float32: values, gradients, and the dtypes of the products."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core import matmul_precision
from asr_jax.core.devices import TracedFor
from asr_jax.core.matmul_precision import float32_product
from tests.support import assert_close, skip_without_float16

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
    if dtype == "float16":
        skip_without_float16()
    axes, *shapes = CASES[name]
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=shape).astype(jnp.dtype(dtype)) for shape in shapes)
    factors = rng.normal(size=jax.eval_shape(partial(jnp.einsum, axes), x, y).shape).astype(np.float32)

    @jax.jit
    def run(x, y, in_float32):
        product, plain = partial(float32_product, axes), partial(jnp.einsum, axes)
        values = product(x, y), plain(*in_float32)
        return values, gradient(product, x, y, factors), gradient(plain, *in_float32, factors)

    (values, expected), *gradients = jax.device_get(run(x, y, [each.astype(np.float32) for each in (x, y)]))
    assert values.dtype == np.float32
    assert_close(values, expected, atol=1e-5)
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == jnp.dtype(dtype)
        assert_close(one.astype(np.float32), other, atol=tolerance * float(np.abs(other).max()))


@pytest.mark.parametrize(
    ("platform", "dtype", "operands"),
    [
        ("gpu", "bfloat16", {"bfloat16"}),
        ("cpu", "bfloat16", {"float32", "bfloat16"}),
        ("gpu", "float16", {"float32", "float16"}),
    ],
)
def test_products_of_the_gradient_have_16_bits_in_bfloat16(platform, dtype, operands, monkeypatch):
    monkeypatch.setattr(matmul_precision, "traced_for", lambda: TracedFor(platform, 1))
    x, y = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((2, 5, 3, 4), (2, 6, 3, 4)))
    function = lambda x, y: float32_product("bthc,bshc->bhts", x, y)  # noqa: E731
    jaxpr = jax.make_jaxpr(lambda x, y: gradient(function, x, y, 1.0))(x, y).jaxpr
    found = [each for each in jaxpr.eqns if each.primitive.name == "dot_general"]
    assert len(found) >= 2
    assert {str(operand.aval.dtype) for each in found for operand in each.invars} == operands

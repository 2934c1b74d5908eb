"""Values and gradients of look-ups, with the scatter of CPUs and the product of other platforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.losses import pruned_transducer
from asr_jax.nn import embedding
from asr_jax.nn.embedding import Embedding, look_up
from tests.support import assert_close

LABELS = jnp.array([[3, 0, 3, 6], [6, 6, 1, 3]], jnp.int32)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_both_gradients_are_those_of_indexing(dtype) -> None:
    rng = np.random.default_rng(0)
    table, cotangent = (jnp.asarray(rng.normal(size=size), dtype) for size in ((7, 5), (2, 4, 5)))
    expected, backward = jax.vjp(lambda table: table[LABELS], table)
    found, ours = jax.vjp(lambda table: look_up(table, LABELS), table)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(ours(cotangent)[0], backward(cotangent)[0])
    exact = jax.vjp(lambda table: table[LABELS], table.astype(jnp.float32))[1](cotangent.astype(jnp.float32))[0]
    product = embedding._by_product(table, LABELS, cotangent)
    assert product.dtype == dtype
    assert_close(product.astype(jnp.float32), exact, rtol=1e-6 if dtype == jnp.float32 else 8e-3)


def test_vectors_are_in_the_given_precision() -> None:
    module = Embedding(7, 5, jnp.bfloat16)
    found, variables = module.init_with_output(jax.random.key(0), LABELS)
    table = variables["params"]["embedding"]
    assert (table.shape, table.dtype, found.dtype) == ((7, 5), jnp.float32, jnp.bfloat16)
    np.testing.assert_array_equal(found, table.astype(jnp.bfloat16)[LABELS])


def test_pruning_selects_equal_values_with_a_product() -> None:
    values = jnp.asarray(np.random.default_rng(1).normal(size=(2, 6, 7)), jnp.float32)
    both = (pruned_transducer._gather, pruned_transducer._product)
    forms = [lambda values, form=form: form(values, LABELS) for form in both]
    (first, second), gradients = zip(*(jax.vjp(form, values) for form in forms), strict=True)
    np.testing.assert_array_equal(first, second)
    cotangent = jnp.asarray(np.random.default_rng(2).normal(size=first.shape), jnp.float32)
    expected, found = (backward(cotangent)[0] for backward in gradients)
    assert_close(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("platform", "scatters"), [("cpu", True), ("cuda", False), ("tpu", False)])
def test_only_cpus_scatter(platform, scatters) -> None:
    def gradient(table, acoustic, language):
        def loss(table, *parts):
            blank, label = pruned_transducer.simple_log_probs(*parts, LABELS, blank_id=0, language_scale=0.25)
            return look_up(table, LABELS).sum() + blank.sum() + label.sum()

        return jax.grad(loss, (0, 1, 2))(table, acoustic, language)

    shapes = [jax.ShapeDtypeStruct(size, jnp.float32) for size in ((7, 5), (2, 6, 7), (2, 5, 7))]
    text = jax.jit(gradient).trace(*shapes).lower(lowering_platforms=(platform,)).as_text()
    assert ("scatter" in text) == scatters

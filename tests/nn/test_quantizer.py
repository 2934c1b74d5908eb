"""Product quantisation: what is drawn, its gradient, its temperature and how many entries are used."""

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import GOLDENS, max_abs, relative

from asr_jax.nn.quantizer import GumbelQuantizer, Quantizer, perplexity

fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
SETTINGS = Quantizer(groups=2, entries=5, start_temperature=1.5)


def made(settings: Quantizer = SETTINGS) -> tuple[GumbelQuantizer, Any, jax.Array]:
    quantizer, rng = GumbelQuantizer(settings, 6), np.random.default_rng(0)
    x = jnp.float32(rng.normal(size=(2, 7, 4)))
    shapes = jax.eval_shape(lambda: quantizer.init(jax.random.key(0), x, step=None))
    return quantizer, jax.tree.map(lambda leaf: jnp.float32(rng.normal(size=leaf.shape)), shapes), x


@pytest.mark.parametrize("depth", [1, 3])
def test_values_are_the_entries_of_the_codes(depth: int) -> None:
    quantizer, variables, x = made(Quantizer(groups=2, entries=5, depth=depth))
    for step, rngs in ((None, {}), (jnp.int32(3), {"dropout": jax.random.key(0)})):
        found = fast_jit(lambda step=step, rngs=rngs: quantizer.apply(variables, x, step=step, rngs=rngs))()
        codebook = np.asarray(variables["params"]["codebook"])
        expected = np.concatenate([codebook[group][found.codes[..., group]] for group in range(2)], axis=-1)
        assert max_abs(found.values, expected) < 1e-5
        np.testing.assert_allclose(found.probabilities.sum(axis=-1), 1, rtol=1e-5)
        np.testing.assert_array_equal(found.best, found.probabilities.argmax(axis=-1))
        assert (step is None) == bool((found.codes == found.best).all())


def test_the_gradient_is_that_of_the_softmax_with_the_noise() -> None:
    quantizer, variables, x = made()
    noise = jax.random.gumbel(jax.random.key(1), (2, 7, 2, 5))
    weights = jnp.float32(np.random.default_rng(1).normal(size=(2, 7, 6)))

    def hard(x: Any) -> Any:
        return jnp.sum(weights * quantizer.apply(variables, x, step=jnp.int32(0), noise=noise).values)

    def soft(x: Any) -> Any:
        params = variables["params"]
        logits = (x @ params["logits"]["kernel"] + params["logits"]["bias"][None, None]).reshape(2, 7, 2, 5)
        probabilities = jax.nn.softmax((logits + noise) / SETTINGS.start_temperature)
        return jnp.sum(weights * jnp.einsum("btgv,gve->btge", probabilities, params["codebook"]).reshape(2, 7, 6))

    actual, expected = fast_jit(lambda x: (jax.grad(hard)(x), jax.grad(soft)(x)))(x)
    assert relative(actual, expected) < 1e-5


def test_entries_are_drawn_as_often_as_they_are_probable() -> None:
    quantizer, variables, _ = made()
    x = jnp.ones((1, 20_000, 4))
    rngs = {"dropout": jax.random.key(0)}
    found = fast_jit(lambda: quantizer.apply(variables, x, step=jnp.int32(0), rngs=rngs))()
    for group in range(2):
        shares = np.bincount(found.codes[0, :, group], minlength=5) / 20_000
        assert max_abs(shares, found.probabilities[0, 0, group]) < 0.02


def test_perplexity_from_one_entry_to_all() -> None:
    weights = jnp.array([[1.0, 1.0, 1.0, 0.0]])
    one = jax.nn.one_hot(jnp.zeros((1, 4, 2), jnp.int32), 3)
    all_alike = jnp.full((1, 4, 2, 3), 1 / 3)
    each = jax.nn.one_hot(jnp.array([[[0, 0], [1, 1], [2, 2], [0, 0]]]), 3)  # the last frame does not count
    for probabilities, expected in ((one, 2), (all_alike, 6), (each, 6)):
        assert abs(float(perplexity(probabilities, weights)) - expected) < 1e-4


@pytest.mark.golden
def test_temperature_is_fairseqs() -> None:
    path = GOLDENS / "fairseq_w2v2/gumbel_temperature.json"
    if not path.is_file():
        pytest.skip(f"no {path}: set ASR_JAX_GOLDENS")
    said, settings = json.loads(path.read_text()), Quantizer()  # fairseq's defaults
    for update, expected in said.items():
        assert abs(float(settings.temperature(jnp.int32(int(update)))) / expected - 1) < 1e-5

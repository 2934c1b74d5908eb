"""Product quantisation: drawn entries, gradient, temperature and perplexity."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import GOLDENS, assert_close, assert_within, fast_jit, max_abs, relative

from asr_jax.nn.wav2vec.quantizer import GumbelQuantizer, Quantizer, perplexity

SETTINGS = Quantizer(groups=2, entries=5, start_temperature=1.5)


def made(settings: Quantizer = SETTINGS) -> tuple[GumbelQuantizer, Any, np.ndarray]:
    quantizer, rng = GumbelQuantizer(settings, 6), np.random.default_rng(0)
    x = rng.normal(size=(2, 7, 4)).astype(np.float32)
    shapes = jax.eval_shape(lambda x: quantizer.init(jax.random.key(0), x, step=None), x)
    return quantizer, jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes), x


@pytest.mark.parametrize("depth", [1, 3])
def test_values_are_the_entries_of_the_codes(depth: int) -> None:
    quantizer, variables, x = made(Quantizer(groups=2, entries=5, depth=depth))

    @fast_jit
    def both(variables: Any, x: Any, key: Any) -> Any:
        rngs = {"dropout": key}
        return quantizer.apply(variables, x, step=None), quantizer.apply(variables, x, step=jnp.int32(3), rngs=rngs)

    codebook = np.asarray(variables["params"]["codebook"])
    for found, drawn in zip(jax.device_get(both(variables, x, jax.random.key(0))), (False, True), strict=True):
        expected = np.concatenate([codebook[group][found.codes[..., group]] for group in range(2)], axis=-1)
        assert_within(max_abs(found.values, expected), 1e-5)
        assert_close(found.probabilities.sum(axis=-1), 1, rtol=1e-5)
        np.testing.assert_array_equal(found.best, found.probabilities.argmax(axis=-1))
        assert drawn != (found.codes == found.best).all()


def test_the_gradient_is_that_of_the_softmax_with_the_noise() -> None:
    quantizer, variables, x = made()
    rng = np.random.default_rng(1)
    noise, weights = rng.gumbel(size=(2, 7, 2, 5)).astype(np.float32), rng.normal(size=(2, 7, 6)).astype(np.float32)

    def hard(x: Any, variables: Any, noise: Any) -> Any:
        return jnp.sum(weights * quantizer.apply(variables, x, step=jnp.int32(0), noise=noise).values)

    def soft(x: Any, variables: Any, noise: Any) -> Any:
        params = variables["params"]
        logits = (x @ params["logits"]["kernel"] + params["logits"]["bias"][None, None]).reshape(2, 7, 2, 5)
        probabilities = jax.nn.softmax((logits + noise) / SETTINGS.start_temperature)
        return jnp.sum(weights * jnp.einsum("btgv,gve->btge", probabilities, params["codebook"]).reshape(2, 7, 6))

    actual, expected = fast_jit(lambda *given: (jax.grad(hard)(*given), jax.grad(soft)(*given)))(x, variables, noise)
    assert_within(relative(actual, expected), 1e-5)


def test_entries_are_drawn_as_often_as_they_are_probable() -> None:
    quantizer, variables, _ = made()
    draw = fast_jit(lambda x, key: quantizer.apply(variables, x, step=jnp.int32(0), rngs={"dropout": key}))
    found = jax.device_get(draw(np.ones((1, 20_000, 4), np.float32), jax.random.key(0)))
    for group in range(2):
        shares = np.bincount(found.codes[0, :, group], minlength=5) / 20_000
        assert_within(max_abs(shares, found.probabilities[0, 0, group]), 0.02)


def test_perplexity_from_one_entry_to_all() -> None:
    weights, entries, compute = np.float32([[1, 1, 1, 0]]), np.eye(3, dtype=np.float32), jax.jit(perplexity)
    one, each = entries[np.zeros((1, 4, 2), int)], entries[[[[0, 0], [1, 1], [2, 2], [0, 0]]]]
    all_alike = np.full((1, 4, 2, 3), 1 / 3, np.float32)
    for probabilities, expected in ((one, 2), (all_alike, 6), (each, 6)):  # the last frame does not count
        assert_within(abs(float(compute(probabilities, weights)[0]) - expected), 1e-4)


def test_temperature_decays_to_its_end() -> None:
    settings, updates = Quantizer(start_temperature=3.0, end_temperature=0.25, decay=0.9), np.arange(40)
    found = jax.jit(jax.vmap(settings.temperature))(updates)
    assert_close(found, np.maximum(3.0 * 0.9**updates, 0.25), rtol=1e-5)
    assert found[-1] == 0.25


@pytest.mark.golden
def test_temperature_is_fairseqs() -> None:
    path = GOLDENS / "fairseq_w2v2/gumbel_temperature.json"
    if not path.is_file():
        pytest.skip(f"no {path}: set ASR_JAX_GOLDENS")
    case = json.loads(path.read_text())
    # A case has its settings beside the temperatures; the first one has fairseq's defaults.
    given = case.pop("config", {}) | {name: case.pop(name) for name in [*case] if not name.isdecimal()}
    names = ("start", "end", "decay")
    if "latent_temp" in given:
        given |= dict(zip(names, given["latent_temp"], strict=True))
    fields = zip(("start_temperature", "end_temperature", "decay"), names, strict=True)
    settings = Quantizer(**{field: given[name] for field, name in fields if name in given})
    expected = {int(step): value for step, value in case.items()}
    assert expected
    found = jax.jit(jax.vmap(settings.temperature))(np.array([*expected], np.int32))
    assert_close(found, [*expected.values()], rtol=1e-5)

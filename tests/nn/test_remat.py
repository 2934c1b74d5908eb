"""Activations of a layer that each rematerialisation policy stores for the backward pass."""

import re
from functools import cache
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals
from support import assert_within, relative

from asr_jax.core.pytrees import flatten
from asr_jax.models.quartznet import ConvLayer, QuartzNet
from asr_jax.nn.conformer.modules import ConformerConvolution
from asr_jax.nn.quartznet.block import ConvBlock
from asr_jax.nn.remat import Remat, rematerialised

COMMON = (QuartzNet(), jnp.float32)
LAYERS: dict[str, tuple[type, tuple[Any, ...], dict[Remat, int]]] = {
    # Separable: input and output of the product. The statistics of norms are small.
    "separable": (ConvLayer, (ConvBlock(8, 3, dropout=0.5), *COMMON), {"elementwise": 2, "products": 1, "layers": 0}),
    "grouped": (ConvLayer, (ConvBlock(8, 3, groups=2), *COMMON), {"elementwise": 2, "products": 1, "layers": 0}),
    "full": (ConvLayer, (ConvBlock(8, 3, separable=False), *COMMON), {"elementwise": 1, "products": 1, "layers": 0}),
    # The backward pass does not need the output of the last product.
    "conformer": (ConformerConvolution, (3,), {"elementwise": 2, "products": 1, "layers": 0}),
}


def loss_of(name: str, remat: Remat) -> Any:
    """Returns a training loss as a function of a layer's variables, its input and a random key."""
    cls, settings, _ = LAYERS[name]
    layer = rematerialised(cls, remat)(*settings)

    def loss(variables: Any, x: Any, lengths: Any, key: Any) -> jax.Array:
        given, options = ((x, lengths), jnp.int32(0)), {}
        if cls is not ConvLayer:
            given, options = (x, lengths), {"step": jnp.int32(0)}
        found, _ = layer.apply(variables, *given, **options, rngs={"dropout": key}, mutable=["batch_stats"])
        return jnp.sum((found[0][0] if cls is ConvLayer else found) ** 2)

    return loss


@cache
def given_of(name: str) -> tuple[Any, ...]:
    """Arguments of a layer's loss."""
    cls, settings, _ = LAYERS[name]

    def init(x: Any, lengths: Any) -> Any:
        given = ((x, lengths), jnp.int32(0)) if cls is ConvLayer else (x, lengths)
        options = {} if cls is ConvLayer else {"step": jnp.int32(0)}
        return cls(*settings).init({name: jax.random.key(0) for name in ("params", "dropout")}, *given, **options)

    rng = np.random.default_rng(0)
    x, lengths = rng.normal(size=(2, 12, 8)).astype(np.float32), np.array([12, 7], np.int32)
    shapes = jax.eval_shape(init, x, lengths)
    return jax.tree.map(lambda leaf: np.float32(rng.uniform(0.5, 1, leaf.shape)), shapes), x, lengths, jax.random.key(1)


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_kept_is_what_the_policy_says(name: str, capsys: Any) -> None:
    def kept(remat: Remat) -> int:
        """Number of stored arrays with frames, except inputs of the layer and arrays of the loss."""
        print_saved_residuals(loss_of(name, remat), *given_of(name))
        lines = re.findall(r"^\w+\[(?:2,12|24),[\d,]+\].*", capsys.readouterr().out, re.MULTILINE)
        inner = [line for line in lines if not re.search(r"from (the argument|a constant)", line)]
        return len([line for line in inner if __file__ not in line])

    counts = {remat: kept(remat) for remat in get_args(Remat)}
    expected = LAYERS[name][2]
    assert {remat: counts[remat] for remat in expected} == expected
    assert counts["none"] > counts["elementwise"]


def test_dropout_and_statistics_are_those_of_a_layer_that_keeps_all() -> None:
    plain, again = (loss_of("separable", remat) for remat in ("none", "elementwise"))

    @jax.jit
    def gradients(variables: Any, *given: Any) -> Any:
        def of(loss: Any) -> Any:
            return jax.grad(lambda params: loss({**variables, "params": params}, *given))(variables["params"])

        return flatten(of(plain)), flatten(of(again))

    expected, found = gradients(*given_of("separable"))
    assert_within(max(relative(found[path], expected[path]) for path in expected), 1e-5)

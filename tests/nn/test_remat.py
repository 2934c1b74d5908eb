"""What each policy keeps of a layer for the backward pass."""

import re
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals
from support import relative

from asr_jax.core.pytrees import flatten
from asr_jax.nn.conformer import ConformerConvolution
from asr_jax.nn.conv_block import ConvBlock, ConvLayer, Policy
from asr_jax.nn.remat import Remat, rematerialised

X, LENGTHS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 12, 8)), jnp.float32), jnp.array([12, 7])
POLICY = Policy(activation="relu", norm="batch", norm_groups=1, mask_padding=True, remat="none", dtype=jnp.float32)
LAYERS: dict[str, tuple[type, tuple[Any, ...], dict[Remat, int]]] = {
    # Separable: what goes into the product and what comes out of it; of the norms the statistics are small.
    "separable": (ConvLayer, (ConvBlock(8, 3, dropout=0.5), POLICY), {"elementwise": 2, "products": 1, "layers": 0}),
    "grouped": (ConvLayer, (ConvBlock(8, 3, groups=2), POLICY), {"elementwise": 2, "products": 1, "layers": 0}),
    "full": (ConvLayer, (ConvBlock(8, 3, separable=False), POLICY), {"elementwise": 1, "products": 1, "layers": 0}),
    # What comes out of its last product, nothing in it needs.
    "conformer": (ConformerConvolution, (3,), {"elementwise": 2, "products": 1, "layers": 0}),
}


def loss_of(name: str, remat: Remat) -> tuple[Any, Any]:
    """Of a layer's parameters, while training, and those parameters."""
    cls, settings, _ = LAYERS[name]
    layer = rematerialised(cls, remat)(*settings)
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}

    def call(variables: Any, method: Any, **options: Any) -> Any:
        if cls is ConvLayer:
            return method(*variables, (X, LENGTHS), jnp.int32(0), rngs=rngs, **options)
        return method(*variables, X, LENGTHS, step=jnp.int32(0), rngs=rngs, **options)

    variables = call((), lambda *args, rngs, **options: layer.init(rngs, *args, **options))

    def loss(params: Any) -> jax.Array:
        given = ({"params": params, "batch_stats": variables["batch_stats"]},)
        found, _ = call(given, layer.apply, mutable=["batch_stats"])
        return jnp.sum((found[0][0] if cls is ConvLayer else found) ** 2)

    return loss, variables["params"]


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_kept_is_what_the_policy_says(name: str, capsys: Any) -> None:
    def kept(remat: Remat) -> int:
        """Arrays with frames, but for those that the layer is given and what the loss keeps."""
        loss, params = loss_of(name, remat)
        print_saved_residuals(loss, params)
        lines = re.findall(r"^\w+\[(?:2,12|24),[\d,]+\].*", capsys.readouterr().out, re.MULTILINE)
        inner = [line for line in lines if not re.search(r"from (the argument|a constant)", line)]
        return len([line for line in inner if __file__ not in line])

    counts = {remat: kept(remat) for remat in get_args(Remat)}
    expected = LAYERS[name][2]
    assert {remat: counts[remat] for remat in expected} == expected
    assert counts["none"] > counts["elementwise"]


def test_dropout_and_statistics_are_those_of_a_layer_that_keeps_all() -> None:
    (plain, params), (again, _) = loss_of("separable", "none"), loss_of("separable", "elementwise")
    expected, found = (flatten(jax.jit(jax.grad(loss))(params)) for loss in (plain, again))
    assert max(relative(found[path], expected[path]) for path in expected) < 1e-5

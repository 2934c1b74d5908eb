"""Rules that spread parameters over a mesh, and the arrays that belong to them."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from asr_jax.core.errors import UserError
from asr_jax.core.meshes import MeshSizes, mesh_of
from asr_jax.core.pytrees import flatten
from asr_jax.core.sharding import Sharding, device_bytes

PARAMS = {
    "layers": {
        "in": {
            "kernel": jax.ShapeDtypeStruct((8, 6, 16), jnp.float32),
            "bias": jax.ShapeDtypeStruct((8, 16), jnp.float32),
        }
    },
    "out": {"kernel": jax.ShapeDtypeStruct((16, 5), jnp.float32), "bias": jax.ShapeDtypeStruct((5,), jnp.float32)},
}
RULES = ((r"layers/in/(kernel|bias)", -1),)


def specs(rules=(), *, min_sharded=1, **sizes):
    mesh = mesh_of(jax.devices()[:4], **sizes)
    found = Sharding(rules, min_sharded).specs(PARAMS, mesh)
    return {path: tuple(axis for axis in spec) for path, spec in found.items()}


def test_the_largest_dimension_that_is_divisible_is_spread_but_not_the_layers():
    assert specs(fsdp=4) == {
        "layers/in/bias": (None, "fsdp"), "layers/in/kernel": (None, None, "fsdp"),
        "out/bias": (), "out/kernel": ("fsdp",),
    }  # fmt: skip
    assert specs(fsdp=4, min_sharded=129)["layers/in/bias"] == ()
    assert set(specs().values()) == {()}


def test_rules_of_the_model_come_first():
    found = specs(RULES, fsdp=2, model=2)
    assert found["layers/in/kernel"] == (None, "fsdp", "model")
    assert found["layers/in/bias"] == (None, "model")
    assert found["out/kernel"] == ("fsdp",)


def test_arrays_of_the_optimizer_are_spread_even_if_their_parameters_are_not():
    mesh, sharding = mesh_of(jax.devices()[:4], fsdp=4), Sharding(min_sharded=200)
    state = {"mu": PARAMS, "count": jax.ShapeDtypeStruct((), jnp.int32)}
    found = {path: leaf.spec for path, leaf in flatten(sharding.of(state, PARAMS, mesh, zero=True)).items()}
    assert found.pop("count") == PartitionSpec()
    assert found["mu/layers/in/bias"] == PartitionSpec(None, "fsdp")
    assert found["mu/out/bias"] == PartitionSpec()
    of_params = sharding.of(PARAMS, PARAMS, mesh, zero=False)
    assert of_params["layers"]["in"]["bias"].spec == PartitionSpec()
    placed = jax.tree.map(lambda leaf, of: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=of), PARAMS, of_params)
    assert device_bytes(placed) == 4 * (8 * 6 * 16 // 4 + 8 * 16 + 16 * 5 + 5)


@pytest.mark.parametrize(
    ("rules", "sizes", "message"),
    [
        ((), {"model": 2}, "--mesh.model 2: the model has no rules for the axis model; expected --mesh.model 1"),
        (((r"out/kernel", -1),), {"model": 2}, "--mesh.model 2: expected a divisor of 5, dimension -1 of out/kernel"),
    ],
)
def test_what_the_axis_model_cannot_spread_is_named(rules, sizes, message):
    with pytest.raises(UserError, match=message):
        specs(rules, **sizes)


def test_the_sizes_of_a_mesh_are_checked():
    assert dict(MeshSizes(fsdp=2).mesh(jax.devices()[:4]).shape) == {"data": 2, "fsdp": 2, "model": 1}
    with pytest.raises(ValueError, match="data is 0: expected at least 1, or -1"):
        MeshSizes(data=0)
    with pytest.raises(ValueError, match="fsdp is 0: expected at least 1"):
        MeshSizes(data=0, fsdp=0)
    with pytest.raises(UserError, match=r"--mesh\.data -1 --mesh\.fsdp 3 --mesh\.model 1: expected a product of 4"):
        MeshSizes(fsdp=3).mesh(jax.devices()[:4])

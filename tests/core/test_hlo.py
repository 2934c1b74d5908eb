"""Reading of compiled programs: operations, loops, bytes and collectives."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from asr_jax.core.hlo import Module, largest
from asr_jax.core.meshes import data_mesh
from asr_jax.core.programs import products

LAYERS, ROWS, DIM = 12, 16, 64


def network(kernels, x):
    def layer(x, kernel):
        return jnp.tanh(x @ kernel), None

    return jnp.sum(jax.lax.scan(layer, x, kernels)[0] ** 2)


def compiled(function, *shapes, **shardings):
    return jax.jit(function, **shardings).lower(*shapes).compile().as_text()


def test_operations_in_loops_count_as_often_as_they_run():
    shapes = jax.ShapeDtypeStruct((LAYERS, DIM, DIM), jnp.float32), jax.ShapeDtypeStruct((ROWS, DIM), jnp.float32)
    gradient = jax.grad(network)
    module = Module(compiled(gradient, *shapes))
    counted = sum(each.times * each.flops for each in module.operations)
    assert counted == products(jax.make_jaxpr(gradient)(*shapes).jaxpr) == 3 * LAYERS * 2 * ROWS * DIM * DIM
    first = largest(module.operations, "flops", 1)[0]
    assert first.times == LAYERS
    assert "dot_general" in first.op_name


def test_bytes_of_a_fusion_are_those_that_it_reads_and_writes():
    array = jax.ShapeDtypeStruct((1000, 256), jnp.float32)
    module = Module(compiled(lambda x, y: jnp.tanh(x) * y + 1, array, array))
    assert module.bytes == 3 * 1000 * 256 * 4


def test_a_slice_of_a_large_array_counts_as_the_slice():
    array, index = jax.ShapeDtypeStruct((1000, 256), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)

    def row(x, index):
        return jnp.tanh(jax.lax.dynamic_index_in_dim(x, index, keepdims=False))

    assert 2 * 256 * 4 <= Module(compiled(row, array, index)).bytes < 6 * 256 * 4

    def updated(x, index):
        return jax.lax.dynamic_update_index_in_dim(x, jnp.zeros(256), index, 0)

    text = jax.jit(updated, donate_argnums=0).lower(array, index).compile().as_text()
    assert Module(text).bytes < 6 * 256 * 4


@pytest.mark.parametrize("devices", [1, 4])
def test_collectives_have_numbers_and_bytes(devices):
    mesh = data_mesh(devices)
    same, by_rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    kernel = jax.ShapeDtypeStruct((DIM, DIM), jnp.float32, sharding=same)
    x = jax.ShapeDtypeStruct((ROWS, DIM), jnp.float32, sharding=by_rows)
    text = compiled(jax.grad(lambda kernel, x: jnp.sum((x @ kernel) ** 2)), kernel, x, out_shardings=same)
    expected = {"all-reduce": (1, 4 * DIM * DIM)} if devices > 1 else {}
    assert Module(text).collectives() == expected


def test_a_convolution_counts_its_taps_and_channels():
    x, kernel = jax.ShapeDtypeStruct((2, 50, 8), jnp.float32), jax.ShapeDtypeStruct((5, 8, 16), jnp.float32)

    def convolution(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))

    module = Module(compiled(convolution, x, kernel))
    assert sum(each.flops for each in module.operations) == 2 * 2 * 50 * 16 * 5 * 8


def test_a_product_that_is_written_as_a_convolution_over_padding_counts_as_a_product():
    text = """ENTRY %main (a: f32[73,24,1,1], b: f32[2,99,4,24]) -> f32[73,2,99,4] {
  %a = f32[73,24,1,1] parameter(0)
  %b = f32[2,99,4,24] parameter(1)
  ROOT %c = f32[73,2,99,4] convolution(%a, %b), window={WINDOW}, dim_labels=bf01_0o1i->b0f1
}""".replace("WINDOW", "size=2x4 pad=1_1x3_3 rhs_reversal=1x1")
    (found,) = Module(text).operations
    assert found.flops == 2 * (73 * 2 * 99 * 4) * 24


def test_products_of_16_bits_are_counted_beside_all():
    product = "dot({}, {}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    text = f"""ENTRY %main (a: bf16[4,8], b: bf16[8,2], c: f32[8,2]) -> f32[4,2] {{
  %a = bf16[4,8] parameter(0)
  %b = bf16[8,2] parameter(1)
  %c = f32[8,2] parameter(2)
  %low = f32[4,2] {product.format("%a", "%b")}
  ROOT %mixed = f32[4,2] {product.format("%a", "%c")}
}}"""
    found = {each.name: (each.flops, each.flops_16bit) for each in Module(text).operations}
    assert found == {"low": (128.0, 128.0), "mixed": (128.0, 0.0)}


CONVOLUTION = "window={size=3x3 stride=2x2}, dim_labels=b01f_o01i->b01f"
OF_CUDNN = [("Forward", "%x, %kernel", "f32[2,100,40,64]"), ("BackwardInput", "%y, %kernel", "f32[2,201,81,32]"),
            ("BackwardFilter", "%x, %y", "f32[64,3,3,32]")]  # fmt: skip


@pytest.mark.parametrize(("kind", "operands", "result"), OF_CUDNN)
def test_convolutions_of_cudnn_count_without_their_scratch_memory(kind, operands, result):
    text = f"""ENTRY %main (x: f32[2,201,81,32], kernel: f32[64,3,3,32], y: f32[2,100,40,64]) -> f32[] {{
  %x = f32[2,201,81,32] parameter(0)
  %kernel = f32[64,3,3,32] parameter(1)
  %y = f32[2,100,40,64] parameter(2)
  ROOT %conv = ({result}, u8[4096]{{0}}) custom-call({operands}), {CONVOLUTION}, custom_call_target="__cudnn$conv{kind}"
}}"""
    (found,) = Module(text).operations
    assert found.flops == 2 * (2 * 100 * 40 * 64) * (3 * 3 * 32)
    sizes = {"%x": 2 * 201 * 81 * 32, "%kernel": 64 * 3 * 3 * 32, "%y": 2 * 100 * 40 * 64}
    read = sum(sizes[name] for name in operands.split(", "))
    written = (set(sizes) - set(operands.split(", "))).pop()
    assert found.bytes == 4 * (read + sizes[written])


def test_a_conditional_counts_one_branch():
    array = jax.ShapeDtypeStruct((300, 300), jnp.float32)

    def function(flag, x):
        return jax.lax.cond(flag, lambda x: jnp.tanh(x @ x) @ x, jnp.tanh, x)

    shapes = jax.ShapeDtypeStruct((), bool), array
    found = Module(compiled(function, *shapes))
    flops = sum(each.flops for each in found.operations)
    assert flops == products(jax.make_jaxpr(function)(*shapes).jaxpr) == 4 * 300**3


def test_types_and_text_that_is_no_program():
    array = jax.ShapeDtypeStruct((4, 4), jnp.bfloat16)
    assert " bf16[" in compiled(lambda x: x + 1, array)
    with pytest.raises(ValueError, match="no instruction"):
        Module("  %x = nothing")

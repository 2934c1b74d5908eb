"""Operations of JAX that are converted to ONNX, run by onnxruntime with two sizes of each symbolic dimension."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from jax import lax
from support import assert_within, fast_jit, max_abs

from asr_jax.core.errors import UserError
from asr_jax.exporting.to_onnx import to_onnx

KERNEL = np.random.default_rng(1).normal(size=(8, 3, 5)).astype(np.float32)
FILTERS = KERNEL.transpose(2, 0, 1)
WEIGHTS = np.random.default_rng(2).normal(size=(3, 8, 8)).astype(np.float32)
X = {"x": ("b, t, 8", np.float32)}
SIZES = ({"b": 2, "t": 7}, {"b": 1, "t": 12})


def integers(shape: str) -> dict[str, tuple[str, Any]]:
    return {"i": (shape, np.int32)}


def by_heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], 2, 4)


def attention(x: Any) -> Any:
    scores = jnp.einsum("bthc,bshc->bhts", by_heads(x), by_heads(x))
    return jnp.einsum("bhts,bshc->bthc", jax.nn.softmax(scores), by_heads(x))


def recurrence(x: Any, *, reverse: bool = False) -> Any:
    def step(carry: Any, value: Any) -> Any:
        return carry * 0.5 + value @ KERNEL[:, 0, :1] + jnp.arange(x.shape[0])[:, None], carry.sum(-1)

    return lax.scan(step, jnp.zeros((x.shape[0], 8)), x.swapaxes(0, 1), reverse=reverse)


def power(x: Any) -> Any:
    spectrum = jnp.fft.rfft(x)
    return jnp.square(spectrum.real) + jnp.square(spectrum.imag)


def convolution(x: Any, kernel: np.ndarray = FILTERS, **options: Any) -> Any:
    given = {"window_strides": (1,), "padding": ((1, 2),)} | options
    return lax.conv_general_dilated(x, kernel, dimension_numbers=("NTC", "TIO", "NTC"), **given)


CASES: dict[str, tuple[Callable[..., Any], dict[str, tuple[str, Any]]]] = {
    "functions of elements": (
        lambda x: (
            jnp.sign(x) * jnp.expm1(x), jnp.log1p(x**2), jnp.round(x), jnp.floor(x), lax.rsqrt(x * x + 1),
            jnp.where(x > 0, x, 0), (x * 3).astype(jnp.int32) % 3, jnp.clip(x, -1, 1), jnp.isfinite(x / 0),
            jnp.arctan(x), jax.nn.gelu(x, approximate=False), jax.nn.silu(x), jnp.logaddexp(x, 0),
            (x > 0) & (x < 1), x != 0, x**3, ~(x <= 0) | (x >= 1), jnp.abs(x) ** x, jnp.ceil(x),
            lax.clamp(jnp.float32(-1), x, jnp.float32(1)), jnp.maximum(x, 1 - x), jnp.minimum(x, -x),
        ),
        X,
    ),
    "integers": (lambda i: ((i - 2) // 2, (i - 2) % 2, jnp.tile(i, (1, 2)), jnp.stack([i, i], 1)), integers("b, t")),
    "shapes": (
        lambda x: (
            jnp.pad(x, ((0, 0), (0, 3), (0, 0)))[:, : (x.shape[1] + 3) // 2 * 2].reshape(x.shape[0], -1, 2, 8),
            jnp.arange(x.shape[1])[None] + x.shape[1],
            x[:, ::-1, 2:7:2],
            lax.pad(x, 0.0, ((0, 0, 0), (1, 2, 2), (0, -3, 0))),
            jnp.split(x, [3, 5], axis=2),
            x[:, :, 0, None] * jnp.ones((1, 1, 4)),
            sum(jnp.unstack(x, axis=2)), jnp.pad(x > 0, ((0, 0), (1, 0), (0, 0))),
        ),
        X,
    ),
    "products": (
        lambda x: (
            jnp.einsum("btd,dhc->bhtc", x, KERNEL),
            jnp.einsum("dhc,btd->hcbt", KERNEL, x),
            jnp.einsum("btd,d->bt", x, KERNEL[:, 0, 0]),
            jnp.einsum("btd,bsd->bts", x, x),
            x[0, 0] @ KERNEL[:, 0],
            attention(x),
        ),
        X,
    ),
    "convolutions": (
        lambda x: (
            convolution(x, window_strides=(2,), rhs_dilation=(2,)),
            convolution(x, KERNEL.transpose(1, 2, 0)[:, :1], feature_group_count=8),
            convolution(x, padding=((-1, 0),)),
        ),
        X,
    ),
    "reductions": (
        lambda x: (
            x.sum(1), x.min(1), x.max((1, 2), keepdims=True), (x > 0).any(-1), (x > 0).all(), jnp.argmax(x, -1),
            jnp.cumsum(x, 1), lax.cumsum(x, 1, reverse=True), x.mean(), power(x),
        ),
        X,
    ),
    "take": (
        lambda x, i: (
            jnp.take(x, i, axis=1, mode="clip"),
            jnp.take(x, i - 1, axis=2, mode="fill", fill_value=7.0),
            jnp.take(x, jnp.stack([i, i + 1]), axis=0, mode="clip"),
            jax.vmap(lambda row: row[i])(x),
            x[:, i, i],
        ),
        X | integers("3"),
    ),
    "take along an axis": (
        lambda x, i: (
            jnp.take_along_axis(x, i[:, :, None], axis=1),
            jnp.take_along_axis(x, jnp.broadcast_to(i[:, None], (i.shape[0], x.shape[1], 3)), axis=2),
            jax.vmap(lambda row, places: row[places])(x, i),
        ),
        X | integers("b, 3"),
    ),
    "truth values": (
        lambda x: (
            jnp.maximum(x > 0, x > 1), jnp.minimum(x > 0, x < 1),
            lax.reduce_max((x > 0), (1,)), lax.reduce_min((x > -1), (1,)),
        ),
        X,
    ),
    "embedding": (lambda i: jnp.asarray(KERNEL)[i], integers("b, t")),
    "indices": (
        lambda x, i: (
            lax.dynamic_update_slice(x, x[:, :2] * 2, (0, i[0], 0)),
            lax.dynamic_slice_in_dim(x, i[0], 3, axis=1),
            x.at[..., 2].add(3.0),
            x.at[..., 1].set(0.0),
            x.at[:, 1].set(5.0),
            x.at[:, i * 100 - 50].set(4.0, mode="clip"),
        ),
        X | integers("2"),
    ),
    "loop over frames": (recurrence, X),
    "loop over frames backwards": (lambda x: recurrence(x, reverse=True), X),
    "short loop": (lambda x: lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, WEIGHTS), X),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_computes_what_jax_computes(name: str) -> None:
    function, shapes = CASES[name]
    scope = jax.export.SymbolicScope(["t >= 4"])
    given = {
        key: jax.ShapeDtypeStruct(jax.export.symbolic_shape(text, scope=scope), kind)
        for key, (text, kind) in shapes.items()
    }
    leaves = jax.tree.leaves(jax.eval_shape(lambda given: function(**given), given))
    model = to_onnx(function, given, outputs=[f"out_{place}" for place in range(len(leaves))])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for sizes in SIZES:
        arrays = {}
        for key, (text, kind) in shapes.items():
            shape = [sizes.get(size.strip()) or int(size) for size in text.split(",")]
            most = min(shape[0], 4)
            arrays[key] = (
                rng.normal(size=shape).astype(kind) if kind == np.float32 else rng.integers(0, most, shape, kind)
            )
        expected = jax.tree.leaves(fast_jit(lambda given: function(**given))(arrays))
        wide = {key: array.astype(np.int64) if array.dtype == np.int32 else array for key, array in arrays.items()}
        for place, (one, other) in enumerate(zip(expected, session.run(None, wide), strict=True)):
            assert one.shape == other.shape
            assert_within(max_abs(other, one), 1e-5, scale=np.max(np.abs(one), initial=1.0), what=f"{name} {place}")


def test_operations_without_counterpart_are_named() -> None:
    given = {"x": jax.ShapeDtypeStruct((3,), np.float32)}
    with pytest.raises(UserError, match="JAX's operation lgamma has no counterpart"):
        to_onnx(lambda x: lax.lgamma(x), given, outputs=["y"])
    with pytest.raises(UserError, match="a branch that depends on inputs"):
        to_onnx(lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), given, outputs=["y"])


@pytest.mark.parametrize("place", [-1, 3])
def test_scatters_out_of_bounds_are_refused(place: int) -> None:
    """JAX drops these updates, and ONNX counts negative indices from the end."""
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))

    def function(x: Any) -> Any:
        return lax.scatter(x, np.asarray([[place]]), np.ones(1, np.float32), numbers, mode="drop")

    with pytest.raises(UserError, match="a scatter to indices that may be out of bounds"):
        to_onnx(function, {"x": jax.ShapeDtypeStruct((3,), np.float32)}, outputs=["y"])


def test_constants_are_computed_and_kept_once() -> None:
    """Operations on constants are not part of the graph, and equal constants are one."""

    def function(x: Any) -> Any:
        return x @ jnp.exp(jnp.asarray(KERNEL[:, 0])) + x @ jnp.exp(jnp.asarray(KERNEL[:, 0])) + 1.0 + x[:, :1] + 1.0

    model = to_onnx(function, {"x": jax.ShapeDtypeStruct((2, 8), np.float32)}, outputs=["y"])
    assert "Exp" not in {node.op_type for node in model.graph.node}
    sizes = [tuple(constant.dims) for constant in model.graph.initializer]
    assert sizes.count(()) == 1
    assert sizes.count((8, 5)) == 1

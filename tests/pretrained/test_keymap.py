"""Tables of names: stacking of layers, layouts, and weights that do not fit."""

import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import unflatten
from asr_jax.pretrained.keymap import (
    CONV_2D,
    DEPTHWISE,
    DEPTHWISE_2D,
    LINEAR,
    POINTWISE,
    Row,
    export_params,
    find_params,
    fused_attention,
    rows_of,
)

ROWS = [
    Row("embed.weight", "embed/kernel", LINEAR),
    Row("layers.0.bias", "layers/bias", layer=0),
    Row("layers.1.bias", "layers/bias", layer=1),
]
WEIGHTS = {
    "embed.weight": np.arange(6.0).reshape(2, 3),
    "layers.1.bias": np.full(4, 1.0),
    "layers.0.bias": np.full(4, 0.0),
    "old.thing": np.zeros(1),
}


def imported(**changes: np.ndarray) -> dict:
    weights = {**WEIGHTS, **changes}
    return unflatten(find_params(weights, ROWS).params)


def test_import_stacks_layers_and_export_takes_them_apart() -> None:
    params = imported()
    np.testing.assert_array_equal(params["embed"]["kernel"], WEIGHTS["embed.weight"].T)
    np.testing.assert_array_equal(params["layers"]["bias"], [[0] * 4, [1] * 4])
    assert params["layers"]["bias"].dtype == np.float32
    exported = export_params(params, ROWS)
    assert exported.keys() == WEIGHTS.keys() - {"old.thing"}
    for name, array in exported.items():
        np.testing.assert_array_equal(array, WEIGHTS[name])


def test_a_joint_array_of_queries_keys_and_values_is_divided_and_joined_again() -> None:
    rows = rows_of([("mha", "here", fused_attention(query=1, key_value=2))])
    rng = np.random.default_rng(0)
    shapes = {"in_proj_weight": (12, 4), "in_proj_bias": (12,), "out_proj.weight": (4, 4), "out_proj.bias": (4,)}
    theirs = {f"mha.{name}": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    found = find_params(theirs, rows)
    assert found.missing == found.left == []
    weight = theirs["mha.in_proj_weight"]
    np.testing.assert_array_equal(found.params["params/here/query/kernel"], weight[:4].T)
    np.testing.assert_array_equal(found.params["params/here/key_value/kernel"], weight[4:].T)
    back = export_params(unflatten(found.params), rows)
    assert back.keys() == theirs.keys()
    for name, array in back.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_parameters_without_a_name_there() -> None:
    with pytest.raises(UserError, match="head/kernel"):
        export_params({**imported(), "head": {"kernel": np.zeros(1)}}, ROWS)


@pytest.mark.parametrize(
    ("layout", "theirs", "ours"),
    [
        (LINEAR, (5, 4), (4, 5)),
        (CONV_2D, (5, 4, 2, 3), (2, 3, 4, 5)),
        (POINTWISE, (5, 4, 1, 1), (4, 5)),
        (DEPTHWISE, (5, 1, 3), (3, 5)),
        (DEPTHWISE_2D, (5, 1, 2, 3), (2, 3, 5)),
    ],
)
def test_layouts(layout, theirs, ours) -> None:
    array = np.random.default_rng(0).normal(size=theirs)
    assert layout.ours(array).shape == ours
    np.testing.assert_array_equal(layout.theirs(layout.ours(array)), array)


def test_what_is_not_whole_is_left_out_and_what_has_other_axes_comes_as_it_is() -> None:
    found = find_params({**WEIGHTS, "embed.weight": np.zeros((2, 3, 4))}, ROWS)
    assert found.params["embed/kernel"].shape == (2, 3, 4)
    assert found.missing == []
    assert found.left == ["old.thing"]
    found = find_params({"layers.1.bias": np.zeros(4)}, ROWS)
    assert found.params == {}
    assert found.missing == ["embed.weight", "layers.0.bias"]
    found = find_params({**WEIGHTS, "layers.1.bias": np.zeros(5)}, ROWS)
    assert found.params["layers/bias"].shape == (5,)

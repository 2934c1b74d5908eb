"""The table of icefall's names covers all parameters of the encoder, for causal and for other models."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.zipformer import Zipformer
from asr_jax.pretrained.icefall import ICEFALL
from tests.support import assert_close

CAUSAL = Zipformer(
    causal=True,
    downsampling=(2,),
    dims=(8,),
    num_layers=(1,),
    unmasked_dims=(8,),
    num_heads=(2,),
    query_dims=(2,),
    value_dims=(2,),
    position_dims=(2,),
    feedforward_dims=(8,),
    kernel_sizes=(3,),
    output_downsampling=1,
)
SETTINGS = [
    # Published sizes. tests/pretrained/test_weight_formats.py also has several stacks.
    pytest.param(Zipformer.medium(num_mels=40), id="medium", marks=pytest.mark.slow),
    pytest.param(CAUSAL, id="causal"),
]


@cache
def shapes_of(settings: Zipformer) -> dict:
    frames = Frames(jnp.zeros((1, 20, settings.num_mels)), jnp.array([20]))
    encoder = settings.build(dtype=jnp.float32)
    return jax.eval_shape(lambda: encoder.init(jax.random.key(0), frames, step=None))["params"]


@pytest.mark.parametrize("settings", SETTINGS)
def test_all_parameters_have_a_name_there_and_come_back(settings: Zipformer) -> None:
    shapes = shapes_of(settings)
    params = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), shapes)
    params["embed"]["out"]["kernel"] = np.random.default_rng(0).normal(size=shapes["embed"]["out"]["kernel"].shape)
    theirs = ICEFALL.export({"params": {"encoder": params}}, settings)
    assert len(theirs) == len(set(theirs))
    assert theirs["encoder_embed.out.weight"].shape[0] == settings.dims[0]
    found, left = ICEFALL.find(theirs, settings)
    assert left == []
    again = unflatten(found)["params"]["encoder"]
    assert {path: leaf.shape for path, leaf in flatten(again).items()} == {
        path: leaf.shape for path, leaf in flatten(shapes).items()
    }
    assert_close(again["embed"]["out"]["kernel"], params["embed"]["out"]["kernel"], rtol=1e-6)


def test_names_that_are_never_used_are_ignored_and_all_others_are_returned() -> None:
    settings = CAUSAL
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes_of(settings))
    theirs = ICEFALL.export({"params": {"encoder": params}}, settings)
    theirs["encoder.encoders.0.encoder.layers.0.bypass_scale"] = np.zeros(8)
    theirs["ctc_output.1.weight"], theirs["ctc_output.1.bias"] = np.zeros((5, 8)), np.zeros(5)
    theirs["joiner.output_linear.bias"] = np.zeros(5)
    theirs["encoder.new"] = np.zeros(1)
    found, left = ICEFALL.find(theirs, settings, {"heads_ctc": CTC()})
    assert found["params/heads_ctc/output/kernel"].shape == (8, 5)
    assert left == ["encoder.new", "joiner.output_linear.bias"]
    assert ICEFALL.export(unflatten(found), settings, {"heads_ctc": CTC()}).keys() >= {"ctc_output.1.weight"}
    assert set(ICEFALL.find(theirs, settings)[1]) == {*left, "ctc_output.1.weight", "ctc_output.1.bias"}

"""The CTC head within a model: on the output, on an inner layer, and what its loss is divided by."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from asr_jax.core.batch import OUTPUT, Encoded, Frames
from asr_jax.heads.ctc import CTC
from asr_jax.losses.ctc import ctc_loss
from asr_jax.models.base import Encoder, EncoderSettings, Model
from asr_jax.models.zipformer import Zipformer
from tests.training.toy import as_features, toy_batch

BLANK = 5


@dataclass(frozen=True)
class TwoLayers(EncoderSettings):
    """A layer at the input's rate, whose output is the tap `inner`, and one at half of it."""

    dropout: float = 0.0
    """Of the input, value by value."""

    def build(self, *, dtype):
        return TwoLayersEncoder(self)


class TwoLayersEncoder(Encoder):
    settings: TwoLayers = TwoLayers()

    @nn.compact
    def __call__(self, frames, *, step):
        values = nn.Dropout(self.settings.dropout, deterministic=step is None)(frames.values / 10)
        inner = nn.tanh(nn.Dense(8, name="first")(values))
        outer = nn.tanh(nn.Dense(8, name="second")(inner[:, 1::2]))
        return Encoded(Frames(outer, self.output_length(frames.lengths)), taps={"inner": Frames(inner, frames.lengths)})

    def output_length(self, num_frames):
        return num_frames // 2

    def tap_lengths(self, num_frames):
        return {"inner": num_frames}


def two_heads(**changes):
    heads = {"ctc": CTC(dropout=0.0, **changes), "inter": CTC(dropout=0.0, tap="inner", scale=0.3, **changes)}
    return Model(encoder=TwoLayers(), heads=heads, augment=())


@pytest.fixture(scope="module")
def made():
    """A model of two heads, its parameters, and a batch that only the inner layer has frames enough for."""
    model = two_heads().build(vocab_size=BLANK + 1, blank_id=BLANK, precision="f32")
    batch = toy_batch(seed=1, labels=12)
    lengths = jnp.array([6400, 1500, 3300, 6400], jnp.int32)  # too short for both, and for the output alone
    batch = batch.replace(lengths=lengths, token_lengths=jnp.array([5, 12, 12, 9], jnp.int32))
    params = jax.jit(lambda: model.init(jax.random.key(0), batch, step=None))()
    return model, params, batch


def test_each_head_is_ctc_on_its_own_frames(made):
    model, params, batch = made
    encoded = model.apply(params, batch, step=None, method="encode")
    sums = model.apply(params, batch, step=None)
    for name, frames in (("ctc", encoded.at(OUTPUT)), ("inter", encoded.at("inner"))):
        output = params["params"][f"heads_{name}"]["output"]
        losses, feasible = ctc_loss(
            frames.values @ output["kernel"] + output["bias"].reshape(1, 1, -1), frames.lengths, batch.tokens,
            batch.token_lengths, blank_id=BLANK,
        )  # fmt: skip
        np.testing.assert_allclose(sums[f"{name}/loss"].total, jnp.sum(losses), rtol=1e-5)
        np.testing.assert_allclose(sums[f"{name}/infeasible"].total, jnp.sum(~feasible))
    assert sums["inter/infeasible"].total < sums["ctc/infeasible"].total
    emitted = model.apply(params, batch, method="emit")
    assert emitted["inter"].values.shape[1] // 2 == emitted["ctc"].values.shape[1]
    np.testing.assert_array_equal(emitted["inter"].lengths, encoded.taps["inner"].lengths)


@pytest.mark.parametrize("weight_by", ["utterances", "labels", "frames"])
def test_weights_known_before_are_those_of_each_heads_own_frames(weight_by, made):
    _, params, batch = made
    model = two_heads(weight_by=weight_by).build(vocab_size=BLANK + 1, blank_id=BLANK, precision="f32")
    for given in (batch, as_features(batch, model)):
        known = model.apply({}, given, method="weights")
        sums = model.apply(params, given, step=None)
        assert known.keys() == {"ctc/loss", "inter/loss"}
        for name, weight in known.items():
            np.testing.assert_array_equal(weight, sums[name].weight)
        assert known["inter/loss"] > known["ctc/loss"]


def test_a_tap_that_is_not_there():
    with pytest.raises(ValueError, match=r"heads.inter: tap is 'stack_1': expected one of the encoder's taps \(embed"):
        Model(Zipformer.tiny(taps=("embed",)), heads={"ctc": CTC(), "inter": CTC(tap="stack_1")})
    with pytest.raises(ValueError, match=r"\(it has none\); name it there, encoder.taps=\('stack_1',\)"):
        Model(Zipformer.tiny(), heads={"inter": CTC(tap="stack_1")})
    with pytest.raises(ValueError, match="tap is 'other'"):
        Encoded(Frames(jnp.zeros((1, 2, 3)), jnp.array([2]))).at("other")
    Model(Zipformer.tiny(taps=("stack_1",)), heads={"ctc": CTC(), "inter": CTC(tap="stack_1")})

"""The CTC head in a model: on the output, on a tap, and its denominators."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from asr_jax.core.batch import OUTPUT, Encoded, Frames
from asr_jax.heads.ctc import CTC
from asr_jax.losses.ctc import ctc_loss
from asr_jax.models.base import Model
from asr_jax.models.encoder import Encoder, EncoderSettings
from asr_jax.models.zipformer import Zipformer
from tests.heads.drawn_params import drawn_params
from tests.support import assert_close
from tests.training.toy import toy_batch

BLANK = 5


@dataclass(frozen=True)
class TwoLayers(EncoderSettings):
    """A layer at the frame rate of the input, whose output is the tap `inner`, and a layer at half of that rate."""

    dropout: float = 0.0
    """Dropout rate of the input's values."""

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
    return Model(encoder=TwoLayers(), heads=heads, augment=(), primary="ctc")


def features_batch(*, rows=4, num_frames=40, seed=0, **options):
    """Returns a `toy_batch` with features instead of audio."""
    rng = np.random.default_rng(seed)
    values = rng.normal(12, 4, (rows, num_frames, 80)).astype(np.float32)
    lengths = rng.integers(num_frames // 2, num_frames + 1, rows).astype(np.int32)
    return toy_batch(rows=rows, seed=seed, **options).replace(audio=None, features=values, lengths=lengths)


BATCH = features_batch(seed=1, labels=12).replace(
    lengths=np.array([40, 9, 21, 40], np.int32),  # too short for: none, both heads, the head on the output, none
    token_lengths=np.array([5, 12, 12, 9], np.int32),
)


@pytest.mark.parametrize("penalty", [pytest.param(0.0, marks=pytest.mark.slow), 0.2])
def test_each_head_is_ctc_on_its_own_frames(penalty):
    model = two_heads(delay_penalty=penalty).build(vocab_size=BLANK + 1, blank_id=BLANK, precision="f32")

    @jax.jit
    def compute(params, batch):
        encoded, found = model.apply(params, batch, step=None, method="encode"), {}
        for name, frames in (("ctc", encoded.at(OUTPUT)), ("inter", encoded.at("inner"))):
            output = params["params"][f"heads_{name}"]["output"]
            logits = frames.values @ output["kernel"] + output["bias"].reshape(1, 1, -1)
            texts, options = (batch.tokens, batch.token_lengths), {"blank_id": BLANK, "delay_penalty": penalty}
            found[name] = ctc_loss(logits, frames.lengths, *texts, **options)
        emitted = model.apply(params, batch, method="emit")
        return encoded.taps["inner"].lengths, found, model.apply(params, batch, step=None), emitted

    lengths, found, sums, emitted = jax.device_get(compute({"params": drawn_params(model, BATCH)}, BATCH))
    for name, (losses, feasible) in found.items():
        assert_close(sums[f"{name}/loss"].total, losses.sum(), rtol=1e-5)
        assert_close(sums[f"{name}/infeasible"].total, (~feasible).sum())
    assert sums["inter/infeasible"].total < sums["ctc/infeasible"].total
    assert emitted["inter"].values.shape[1] // 2 == emitted["ctc"].values.shape[1]
    np.testing.assert_array_equal(emitted["inter"].lengths, lengths)


def test_weights_known_before_are_those_of_each_heads_own_frames():
    """The denominators are equal for features and for audio with the same number of frames."""
    models = [
        two_heads(weight_by=weight_by).build(vocab_size=BLANK + 1, blank_id=BLANK, precision="f32")
        for weight_by in ("utterances", "labels", "frames")
    ]
    audio = BATCH.replace(audio=np.zeros((4, 6400), np.int16), features=None, lengths=160 * BATCH.lengths)

    @jax.jit
    def compute(params, batch, audio):
        known = [[model.apply({}, each, method="denominators") for each in (batch, audio)] for model in models]
        return known, [model.apply(params, batch, step=None) for model in models]

    for known, sums in zip(*compute({"params": drawn_params(models[0], BATCH)}, BATCH, audio), strict=True):
        for weights in known:
            assert weights.keys() == {"ctc/loss", "inter/loss"}
            for name, weight in weights.items():
                np.testing.assert_array_equal(weight, sums[name].weight)
            assert weights["inter/loss"] > weights["ctc/loss"]


def test_a_tap_that_is_not_there():
    with pytest.raises(ValueError, match=r"heads\.inter: .*'stack_1'.*embed"):
        Model(Zipformer.tiny(taps=("embed",)), heads={"ctc": CTC(), "inter": CTC(tap="stack_1")}, primary="ctc")
    with pytest.raises(ValueError, match=r"encoder\.taps=\('stack_1',\)"):
        Model(Zipformer.tiny(), heads={"inter": CTC(tap="stack_1")})
    with pytest.raises(ValueError, match="'other'"):
        Encoded(Frames(np.zeros((1, 2, 3), np.float32), np.array([2]))).at("other")
    Model(Zipformer.tiny(taps=("stack_1",)), heads={"ctc": CTC(), "inter": CTC(tap="stack_1")}, primary="ctc")


@pytest.mark.parametrize(
    ("mode", "weight"),
    [
        ("add", 2.5),
        ("set", 4.0),
        pytest.param("add", -1.0, marks=pytest.mark.slow),
        pytest.param("set", 0.0, marks=pytest.mark.slow),
    ],
)
def test_the_weight_of_the_blank_as_in_fairseq(mode, weight):
    """In `Wav2VecCtc.get_logits` it is added to the blank's logit or replaces it; 0 does nothing in both modes."""
    values = np.random.default_rng(0).normal(size=(2, 9, 4)).astype(np.float32)
    head = CTC(dropout=0.0, blank_weight=weight, blank_mode=mode).build(vocab_size=5, blank_id=3, dtype=np.float32)
    rng = np.random.default_rng(1)
    output = {"kernel": rng.normal(size=(4, 5)).astype(np.float32), "bias": rng.normal(size=5).astype(np.float32)}
    tokens = np.array([[0, 1, 1], [4, 2, 0]], np.int32)
    batch = jax.device_get(toy_batch(rows=2, labels=3, vocab_size=4)).replace(tokens=tokens)
    logits = values @ output["kernel"] + output["bias"]
    if weight and mode == "set":
        logits[..., 3] = weight
    elif weight:
        logits[..., 3] += weight
    expected = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    @jax.jit
    def compute(params, values, logits, batch):
        encoded = Encoded(Frames(values, jnp.array([9, 7])))
        losses, _ = ctc_loss(logits, encoded.frames.lengths, batch.tokens, batch.token_lengths, blank_id=3)
        return head.apply(params, encoded, batch, step=None), head.apply(params, encoded, method="emit"), losses

    sums, emitted, losses = jax.device_get(compute({"params": {"output": output}}, values, logits, batch))
    assert_close(emitted.values, expected, atol=1e-5)
    assert_close(sums["loss"].total, losses.sum(), rtol=1e-5)

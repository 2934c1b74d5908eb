"""icefall's attention decoder: loss and gradients from its own weights, and its names both ways."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.pretrained.icefall import attention_of, decoder_rows
from asr_jax.pretrained.keymap import export_params, find_params
from tests.goldens.test_icefall_transducer import factors_of, labels_of, of
from tests.support import assert_gradients, assert_within, golden_cases, relative

pytestmark = pytest.mark.golden


def ours(weights: dict[str, np.ndarray], head: AttentionDecoder) -> dict[str, np.ndarray]:
    found = find_params(weights, decoder_rows("head", head))
    assert not found.missing
    return {path.removeprefix("params/head/"): array for path, array in found.params.items()}


@pytest.mark.parametrize("case", golden_cases("icefall_zipformer", "asr_model*"))
def test_loss_and_gradients(case: Any) -> None:
    arrays, info = case.arrays(), case.info["attention_decoder"]
    weights = of(arrays, "param/")
    settings = attention_of(weights, num_heads=info["heads"], ctc="")
    assert (settings.decoder.num_layers, settings.decoder.dim, settings.decoder.feedforward_dim) == (
        info["layers"], info["dim"], info["ff"]
    )  # fmt: skip
    assert (settings.begin_id, settings.end_id, settings.smoothing) == (
        info["sos"], info["eos"], info["label_smoothing"]
    )  # fmt: skip
    params, expected = unflatten(ours(weights, settings)), ours(of(arrays, "grad/"), settings)
    head = settings.build(vocab_size=case.info["config"]["vocab"], blank_id=0, dtype=jnp.float32)
    frames = Frames(jnp.asarray(arrays["out/encoder_out"]), jnp.asarray(arrays["out/encoder_lens"], jnp.int32))
    num_labels = jnp.asarray(arrays["input/y_lens"], jnp.int32)
    labels = jnp.asarray(arrays["input/y"], jnp.int32) if "input/y" in arrays else labels_of(case.info, num_labels)
    rows = len(num_labels)
    batch = Batch(None, frames.values, frames.lengths, labels, num_labels, jnp.ones(rows), jnp.arange(rows))

    def total(params: Any) -> Any:
        return head.apply({"params": params}, Encoded(frames), batch, step=None)["loss"].total

    scale = factors_of(case.info)["att"]
    loss, gradient = jax.jit(jax.value_and_grad(total))(params)
    assert_within(relative(float(loss), arrays["out/attention_decoder_loss"]), 1e-5, what="loss")
    gradients = {name: scale * each for name, each in flatten(gradient).items()}
    assert_gradients(gradients, expected, 3e-5)
    again = export_params({"params": {"head": params}}, decoder_rows("head", settings))
    theirs = {name: array for name, array in weights.items() if name.startswith("attention_decoder.")}
    assert again.keys() == theirs.keys()
    assert all(np.array_equal(again[name], theirs[name]) for name in theirs)

"""MLPerf's RNN-T: LSTM encoder with stacking, prediction network, joint network, loss, gradients and greedy search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.heads.transducer import Transducer
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.pretrained.caiman import encoder_rows
from asr_jax.pretrained.keymap import find_params
from asr_jax.pretrained.transducers import OF_CAIMAN, transducer_rows
from asr_jax.search.transducer import TransducerDecoding
from tests.support import assert_gradients, assert_outputs, assert_within, golden_cases, relative

pytestmark = pytest.mark.golden


def ours(weights, encoder, head):
    """Returns the parameters of encoder and head from MLPerf's, or from their gradients, whose names are CAIMAN's."""
    rows = [*encoder_rows(encoder), *transducer_rows(OF_CAIMAN, {"head": head})]
    found = find_params(weights, rows)
    assert found.missing == found.left == []
    return {path.removeprefix("params/"): array for path, array in found.params.items()}


@pytest.mark.parametrize("case", golden_cases("mlperf_rnnt", "model*"))
def test_equals_mlperf(case):
    arrays, sizes = case.arrays(), case.info["config"]

    def of(prefix):
        return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}

    of_encoder = LSTMEncoder(
        num_mels=sizes["in_f"], dim=sizes["enc"], layers_before=sizes["pre"], layers_after=sizes["post"],
        stack=sizes["st"], dropout=0.0, mask_padding=False,
    )  # fmt: skip
    encoder = of_encoder.build(dtype=jnp.float32)
    settings = Transducer(
        prediction=LSTMPrediction(sizes["pred"], sizes["pl"], dropout=0.0), joint_dim=sizes["joint"], dropout=0.0,
        tile_frames=4,
    )  # fmt: skip
    head = settings.build(vocab_size=sizes["ncls"], blank_id=case.info["blank"], dtype=jnp.float32)
    params = unflatten(jax.tree.map(jnp.asarray, ours(of("param/"), of_encoder, settings)))
    labels, num_labels = (arrays[f"input/{name}"].astype(np.int32) for name in ("y", "y_lens"))
    frames = Frames(jnp.asarray(arrays["input/x_TBF"].swapaxes(0, 1)), jnp.asarray(arrays["input/x_lens"], jnp.int32))
    rows = len(labels)
    batch = Batch(
        None, frames.values, frames.lengths, jnp.asarray(labels), jnp.asarray(num_labels), jnp.ones(rows),
        jnp.arange(rows),
    )  # fmt: skip

    def encode(params):
        return encoder.apply({"params": params["encoder"]}, frames, step=None)

    def loss(params):
        sums = head.apply({"params": params["head"]}, encode(params), batch, step=None)
        return sums["loss"].total / sums["loss"].weight

    expected = ours(of("grad/"), of_encoder, settings)
    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    encoded = jax.jit(encode)(params)
    valid = np.arange(arrays["out/enc"].shape[1]) < arrays["out/logit_lens"][:, None]
    assert_outputs(np.asarray(encoded.frames.values)[valid], arrays["out/enc"][valid], what="encoder")
    np.testing.assert_array_equal(encoded.frames.lengths, arrays["out/logit_lens"])
    assert_within(relative(value, arrays["out/loss"].mean()), 1e-5, what="loss")
    found = flatten(gradient)
    assert found.keys() == expected.keys()
    assert_gradients(found, expected)

    for max_symbols, texts in case.info["greedy"].items():
        decoding = TransducerDecoding(max_symbols=int(max_symbols))

        @jax.jit
        def search(params, encoded, decoding=decoding):
            found = head.apply({"params": params["head"]}, encoded, decoding, method="search")[0]
            assert isinstance(encoded, Encoded)
            return found

        result = jax.device_get(search(params, encoded))
        assert [list(result.sequences(row)[0].tokens) for row in range(rows)] == texts

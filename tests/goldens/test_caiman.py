"""RNN-T models of CAIMAN-ASR: weights by its names in both directions, the joint network, greedy search and settings.

scripts/goldens/caiman.py writes the cases: small random models, and what CAIMAN-ASR's own code computes with them.
"""

import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import assert_close, assert_outputs

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.logmel import LogMel
from asr_jax.audio.presets import rnnt
from asr_jax.audio.stages import NormaliseByDataSet, Stack
from asr_jax.core.batch import Encoded, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import unflatten
from asr_jax.heads.transducer import Transducer, TransducerHead
from asr_jax.models.base import Model
from asr_jax.pretrained.caiman import heads_of, lstm_encoder_of
from asr_jax.pretrained.formats import exported, imported, save_exported
from asr_jax.pretrained.published import SuppliedParts, read_published
from asr_jax.pretrained.torch_files import load_torch, state_dict

pytestmark = pytest.mark.golden

FOLDER, ROOT = Path(__file__).parent / "caiman", Path(__file__).parents[2]
REFERENCE, SIDE = ROOT / ".venv-reference/bin/python", ROOT / "scripts/goldens/caiman.py"
NAMES = ("base", pytest.param("batch_norm", marks=pytest.mark.slow))


def front_end() -> FrontEnd:
    return LogMel(num_mels=8, then=(Stack(3, 3),))


def model_of(name: str) -> tuple[Model, dict[str, np.ndarray]]:
    """Settings and weights of a case."""
    file = FOLDER / f"{name}.pt"
    weights = state_dict(load_torch(file))
    model = Model(lstm_encoder_of(file), heads_of(file), front_end(), augment=())
    found, left = imported(weights, model)
    assert left == []
    return model, found


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_searches_are_the_peers(name: str) -> None:
    model, weights = model_of(name)
    expected, head = load_file(FOLDER / f"{name}.safetensors"), model.heads["transducer"]
    assert isinstance(head, Transducer)
    encoder = model.encoder.build(dtype=jnp.float32)
    module = head.build(vocab_size=41, blank_id=40, dtype=jnp.float32)
    variables = jax.tree.map(jnp.asarray, unflatten(weights))

    def of(part: str) -> dict[str, Any]:
        return {kind: tree[part] for kind, tree in variables.items() if part in tree}

    def joint(module: TransducerHead, frames: Frames, labels: Any, num_labels: Any) -> Any:
        predicted = module.of_labels(module.prediction(labels, num_labels, step=None))
        logits = module.output(jnp.maximum(module.of_frames(frames.values)[:, :, None] + predicted[:, None], 0))
        return jax.nn.log_softmax(logits), module.search(Encoded(frames), head.decoding)[0]

    @jax.jit
    def compute(features: Any, lengths: Any, labels: Any, num_labels: Any) -> Any:
        frames = encoder.apply(of("encoder"), Frames(features, lengths), step=None).frames
        return module.apply(of("heads_transducer"), frames, labels, num_labels, method=joint), frames.lengths

    names = ("features", "lengths", "labels", "num_labels")
    given = [expected[name].astype(np.float32 if name == "features" else np.int32) for name in names]
    (log_probs, found), lengths = jax.device_get(compute(*given))
    np.testing.assert_array_equal(lengths, -(-expected["lengths"] // 2))
    for row, length in enumerate(lengths):
        texts = list(found.sequences(row)[0].tokens)
        assert texts == expected[f"text_{row}"].tolist()
        assert_outputs(log_probs[row, :length], expected["log_probs"][row, :length], what=f"log-probabilities {row}")


@pytest.mark.parametrize("name", NAMES)
def test_weights_go_back(name: str) -> None:
    model, weights = model_of(name)
    theirs = state_dict(load_torch(FOLDER / f"{name}.pt"))
    found = exported(unflatten(weights), model, "caiman")
    counters = {key for key in theirs if key.endswith("num_batches_tracked")}
    assert found.keys() == theirs.keys() - counters
    for key, array in found.items():
        np.testing.assert_array_equal(array, theirs[key], err_msg=key)
    other = Model(model.encoder, {"transducer": Transducer(activation="tanh")}, front_end(), augment=())
    with pytest.raises(UserError, match="activation is tanh, expected relu, that of caiman"):
        exported(unflatten(weights), other, "caiman")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_peer_loads_what_is_written(name: str, tmp_path: Path) -> None:
    if not REFERENCE.exists():
        pytest.skip("no environment of scripts/setup_reference.sh")
    model, weights = model_of(name)
    named = exported(unflatten(weights), model, "caiman")
    save_exported(named, model, "caiman", [None], tmp_path / "x.pt", like=None)
    case, original, out = FOLDER / f"{name}.safetensors", FOLDER / f"{name}.pt", tmp_path / "found.safetensors"
    given = [REFERENCE, SIDE, "--load", tmp_path / "x.pt", original, case, out]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    if "No module named" in done.stderr or "No such file or directory" in done.stderr:
        pytest.skip(f"no sources of scripts/setup_reference.sh --peers: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    arrays = load_file(out)
    assert "found log_probs" in arrays
    for key in [key for key in arrays if key.startswith("found ")]:
        np.testing.assert_array_equal(arrays[key], arrays[key.replace("found", "expected", 1)], err_msg=key)


def test_a_hardware_checkpoint_is_complete() -> None:
    found, stored = read_published(FOLDER / "base.pt"), load_torch(FOLDER / "base.pt")
    (statistics, stack) = found.model.front_end.then
    assert isinstance(statistics, NormaliseByDataSet)
    assert_close(statistics.mean, stored["melmeans"], rtol=1e-6)
    assert_close(statistics.deviation, stored["melvars"] ** 0.5, rtol=1e-6)
    assert stack == Stack(3, 3)
    assert (found.model.front_end.window_ms, found.model.front_end.framing) == (20.0, "hop_end")
    assert found.tokenizer.vocab_size == 41
    assert found.model.recognising == "transducer"


def test_a_checkpoint_of_a_training_needs_statistics() -> None:
    with pytest.raises(UserError, match="the statistics that features are normalised with: expected the hardware"):
        read_published(FOLDER / "batch_norm.pt")
    with pytest.raises(UserError, match="frames of the front-end have 240 values"):
        read_published(FOLDER / "batch_norm.pt", SuppliedParts(front_end="rnnt"))
    assert rnnt().num_features == 240

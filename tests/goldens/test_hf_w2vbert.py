"""Features, hidden states, logits, loss, gradients and ten updates of transformers' Wav2Vec2BertForCTC."""

import json
import subprocess
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file
from support import (
    GOLDENS,
    assert_gradients,
    assert_outputs,
    assert_within,
    fast_jit,
    max_abs,
    part,
    relative,
    slow_after_first,
)

from asr_jax.audio.features import FrontEnd
from asr_jax.core.batch import Batch
from asr_jax.core.pytrees import flatten, pick, unflatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model, Recogniser
from asr_jax.models.w2v_bert import EMBED, W2VBert
from asr_jax.optim.optimizers import EVERYTHING, AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.pretrained.encoders import encoder_of, front_end_of
from asr_jax.pretrained.formats import exported, imported, load_weights, save_folder
from asr_jax.text.tokenizers import Tokenizer, TokenizerSettings, given_tokenizer
from tests.goldens.test_front_ends import tolerance

pytestmark = pytest.mark.golden

REFERENCE = Path(__file__).parents[2] / ".venv-reference/bin/python"
SIDE = Path(__file__).parent / "transformers_logits.py"
FAMILY = GOLDENS / "hf_w2vbert"
FOLDERS = sorted(
    (path.parent for path in FAMILY.glob("*/expected.safetensors")),
    key=lambda folder: (not (folder / "trajectory.safetensors").is_file(), folder),
)
NONE = [pytest.param(None, id="none", marks=pytest.mark.skip(reason=f"no folders in {FAMILY}: set ASR_JAX_GOLDENS"))]
CASES = slow_after_first([pytest.param(folder, id=folder.name) for folder in FOLDERS]) or NONE
TRAJECTORIES = [
    pytest.param(folder, id=folder.name) for folder in FOLDERS if (folder / "trajectory.safetensors").is_file()
] or NONE


@dataclass(frozen=True)
class Case:
    """A folder, and our model with its weights."""

    folder: Path
    config: dict[str, Any]
    arrays: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    model: Model
    tokenizer: Tokenizer
    recogniser: Recogniser
    variables: dict[str, Any]
    batch: Batch

    @property
    def num_frames(self) -> np.ndarray:
        """Number of feature frames of each row."""
        return self.arrays["input/attention_mask"].sum(axis=1)

    def valid(self, array: Any, lengths: np.ndarray) -> np.ndarray:
        """Returns `array` with zeros after the lengths."""
        return np.asarray(array) * (np.arange(array.shape[1]) < lengths[:, None])[:, :, None]


@cache
def case_of(folder: Path) -> Case:
    arrays, config = load_file(folder / "expected.safetensors"), json.loads((folder / "config.json").read_text())
    settings = encoder_of(folder)
    assert isinstance(settings, W2VBert)
    settings = replace(settings, taps=(EMBED, *(f"layer_{number}" for number in range(settings.num_layers))))
    model = Model(encoder=settings, heads={"ctc": CTC(dropout=0.0)}, front_end=front_end_of(folder), augment=())
    weights, symbols = load_weights(folder)
    tokenizer = given_tokenizer(TokenizerSettings(path=str(folder), normaliser="none"))
    assert symbols == tokenizer.symbols
    assert (tokenizer.vocab_size, tokenizer.blank_id) == (config["vocab_size"], config["pad_token_id"])
    found, left = imported(weights, model)
    assert left == []
    labels = arrays["input/labels"]
    counts = (labels >= 0).sum(axis=1)
    # "mean" divides the loss of each row by its number of labels and averages over rows.
    mean = 1 / (np.maximum(counts, 1) * len(labels)) if config["ctc_loss_reduction"] == "mean" else np.ones(len(labels))
    batch = Batch(
        audio=None,
        features=arrays["input/input_features"],
        lengths=arrays["input/attention_mask"].sum(axis=1).astype(np.int32),
        tokens=np.maximum(labels, 0).astype(np.int32),
        token_lengths=counts.astype(np.int32),
        weights=mean.astype(np.float32),
        utterances=np.arange(len(labels), dtype=np.int32),
    )
    recogniser = model.build(vocab_size=tokenizer.vocab_size, blank_id=tokenizer.blank_id, precision="f32")
    return Case(folder, config, arrays, weights, model, tokenizer, recogniser, unflatten(found), batch)


@cache
def program(folder: Path) -> Any:
    """Returns a compiled function of parameters and a batch: loss, outputs of encoder and head, and gradients."""
    case = case_of(folder)

    def loss(params: Any, batch: Batch) -> Any:
        sums, kept = case.recogniser.apply(
            {"params": params}, batch, step=None, mutable=["intermediates"],
            capture_intermediates=lambda module, _: module.name in ("encoder", "embed_norm", "output"),
        )  # fmt: skip
        return sums["ctc/loss"].total, kept["intermediates"]

    return fast_jit(jax.value_and_grad(loss, has_aux=True))


@cache
def run_case(folder: Path) -> Any:
    """Returns loss, encoded frames, normalised features, logits, and gradients by the reference's names."""
    case = case_of(folder)
    (loss, kept), gradients = program(folder)(case.variables["params"], case.batch)
    (encoded,), (norm,) = kept["encoder"]["__call__"], kept["encoder"]["embed_norm"]["__call__"]
    (logits,) = kept["heads_ctc"]["output"]["__call__"]
    return float(loss), encoded, norm, logits, exported({"params": gradients}, case.model, "huggingface")


@cache
def features(front_end: FrontEnd) -> Any:
    """Returns a function that computes features and the allowed difference of each."""
    bare = replace(front_end, then=())
    return fast_jit(lambda *batch: (front_end(*batch), tolerance(bare(*batch), front_end)))


@pytest.mark.parametrize("folder", CASES)
def test_features(folder: Path) -> None:
    case = case_of(folder)
    waves, lengths = case.arrays["input/waveform"] * 32768, case.arrays["input/waveform_lengths"]
    frames, allowed = jax.device_get(features(case.model.front_end)(np.float32(waves), np.int32(lengths)))
    np.testing.assert_array_equal(frames.lengths, case.num_frames)
    expected = case.valid(case.arrays["input/input_features"], case.num_frames)[:, : frames.values.shape[1]]
    difference = np.abs(case.valid(frames.values, case.num_frames) - expected)
    assert_within(np.median(allowed), 3e-4, what="median of the allowed differences")
    assert_within(np.max(difference / allowed[:, : frames.values.shape[1]]), 1, what="features")


@pytest.mark.parametrize("folder", CASES)
def test_hidden_states_and_logits(folder: Path) -> None:
    case, (_, encoded, norm, logits, _) = case_of(folder), run_case(folder)
    num_layers, lengths = case.config["num_hidden_layers"], case.arrays["out/feat_lengths"]
    np.testing.assert_array_equal(encoded.frames.lengths, lengths)
    names = [EMBED, *(f"layer_{number}" for number in range(num_layers))]
    found = {f"hidden_{number}": encoded.taps[name].values for number, name in enumerate(names)}
    for name, values in {"extract_features": norm, **found}.items():
        expected = case.valid(case.arrays[f"out/{name}"], case.num_frames)
        assert_outputs(case.valid(values, case.num_frames), expected, what=name)
    for name, values in {"last_hidden_state": encoded.frames.values, "logits": logits}.items():
        expected = case.valid(case.arrays[f"out/{name}"], lengths)
        assert_outputs(case.valid(values, lengths)[:, : expected.shape[1]], expected[:, : values.shape[1]], what=name)


@pytest.mark.parametrize("folder", CASES)
def test_the_first_utterance_alone(folder: Path) -> None:
    """All rows of the batch are the first utterance, to reuse the program of the batch."""
    case = case_of(folder)
    expected, length = case.arrays["out/logits_first_alone"], int(case.arrays["out/feat_lengths"][0])
    first = jax.tree.map(lambda array: np.repeat(np.asarray(array)[:1], len(array), axis=0), case.batch)
    (_, kept), _ = program(folder)(case.variables["params"], first)
    (logits,) = kept["heads_ctc"]["output"]["__call__"]
    assert_outputs(np.asarray(logits)[:1, :length], expected[:, :length], what="logits alone")


@pytest.mark.parametrize("folder", CASES)
def test_loss_and_gradients_by_the_peers_names(folder: Path) -> None:
    case, (loss, _, _, _, gradients) = case_of(folder), run_case(folder)
    assert_within(relative(loss, case.arrays["out/loss"]), 1e-5, what="loss")
    expected = part(case.arrays, "grad/")
    # The mask embedding has no gradient if nothing is masked.
    unused = gradients.keys() - expected.keys()
    assert expected.keys() <= gradients.keys() == case.weights.keys()
    assert not any(gradients[name].any() for name in unused)
    zero = assert_gradients(gradients, expected)
    assert all(name.endswith("linear_k.bias") for name in zero), "softmax cancels the bias of keys"


@pytest.mark.slow
@pytest.mark.parametrize("folder", TRAJECTORIES)
def test_ten_updates(folder: Path) -> None:
    case, after = case_of(folder), load_file(folder / "trajectory.safetensors")
    recorded = json.loads((folder / "trajectory.json").read_text())
    prefix = f"after{len(recorded['lr_used'])}/"
    expected = {name.removeprefix(prefix): array for name, array in after.items() if name.startswith(prefix)}
    start, gradients = case.variables["params"], run_case(folder)[-1]
    # The reference does not update parameters without gradients.
    idle = {name for name in gradients if f"grad/{name}" not in case.arrays}
    marks = {name: np.full_like(array, name in idle) for name, array in case.weights.items()}
    is_idle = {name.removeprefix("params/"): array.any() for name, array in imported(marks, case.model)[0].items()}
    params, held = pick(start, lambda path: not is_idle[path]), pick(start, lambda path: bool(is_idle[path]))
    hparams, table = recorded["hparams"], jax.device_put(np.float32(recorded["lr_used"]))
    optimizer = AdamW(
        clip_at=hparams["clip_norm"], weight_decay=hparams["weight_decay"], decay_factors=EVERYTHING,
        b1=hparams["betas"][0], b2=hparams["betas"][1], eps=hparams["eps"],
    )  # fmt: skip
    updater = replace(optimizer.build(RunLength(1, 1)), rate=lambda step: table[step])

    @fast_jit
    def update(params: Any, state: Any, grads: Any, number: Any) -> Any:
        changes, state = updater.update(grads, state, params, updates=number)
        return optax.apply_updates(params, changes), state, optax.tree.norm(grads)

    state, losses, norms = fast_jit(updater.init)(params), [], []
    for number in range(len(table)):
        (loss, _), grads = program(folder)(unflatten(flatten(params) | flatten(held)), case.batch)
        grads = pick(grads, lambda path: not is_idle[path])
        params, state, norm = update(params, state, grads, np.int32(number))
        losses.append(float(loss))
        norms.append(float(norm))
    assert_within(max(map(relative, losses, recorded["loss"])), 1e-3, what="losses")
    assert_within(max(map(relative, norms, recorded["grad_norm_before_clip"])), 1e-3, what="norms")
    found = exported({"params": unflatten(flatten(params) | flatten(held))}, case.model, "huggingface")
    assert found.keys() == expected.keys()
    # Adam normalises gradients that are only rounding errors to updates of the size of the learning rate.
    zero = assert_gradients(gradients, part(case.arrays, "grad/"))
    for name in zero:
        difference = max_abs(found[name], expected[name])
        assert difference <= 2 * table.sum(), name  # each side moves by at most the sum of the learning rates
    # The same holds for single values of a tensor, so tensors are compared by their norm.
    distances = {
        name: float(np.linalg.norm(found[name] - expected[name]) / np.linalg.norm(expected[name]))
        for name in expected.keys() - zero
    }
    worst = max(distances, key=distances.__getitem__)
    assert_within(distances[worst], 1e-3, what=f"weights, worst ({worst})")
    (_, kept), _ = program(folder)(unflatten(flatten(params) | flatten(held)), case.batch)
    lengths = case.arrays["out/feat_lengths"]
    (logits,) = kept["heads_ctc"]["output"]["__call__"]
    difference = relative(case.valid(logits, lengths), case.valid(after["final_logits"], lengths))
    assert_within(difference, 1e-3, what="logits after them")


@pytest.mark.parametrize("folder", CASES)
def test_a_folder_comes_out_as_it_went_in(folder: Path, tmp_path: Path) -> None:
    case = case_of(folder)
    save_folder(case.variables, case.model, case.tokenizer, "huggingface", tmp_path / "out")
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer_config.json",
        "vocab.json",
    ]
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == case.weights.keys()
    for name, array in case.weights.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype == array.dtype
    assert json.loads((tmp_path / "out" / "vocab.json").read_text()) == json.loads((folder / "vocab.json").read_text())
    taps = getattr(case.model.encoder, "taps", ())
    assert encoder_of(tmp_path / "out", taps=taps) == case.model.encoder
    assert front_end_of(tmp_path / "out") == case.model.front_end
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    other = {name for name in case.config.keys() & written.keys() if written[name] != case.config[name]}
    assert other <= {"ctc_loss_reduction", "ctc_zero_infinity", "final_dropout"}, "only options of training may differ"


@pytest.mark.slow
@pytest.mark.parametrize("folder", CASES)
def test_transformers_reads_what_is_written(folder: Path, tmp_path: Path) -> None:
    """The weights differ from those of the folder, as after training."""
    if not REFERENCE.exists():
        pytest.skip("no environment of scripts/setup_reference.sh")
    case, rng = case_of(folder), np.random.default_rng(0)
    trained = jax.tree.map(lambda x: np.float32(x * (1 + 0.1 * rng.normal(size=x.shape))), case.variables)
    save_folder(trained, case.model, case.tokenizer, "huggingface", tmp_path / "out")
    waves = {name: case.arrays[f"input/{name}"] for name in ("waveform", "waveform_lengths")}
    save_file(waves, tmp_path / "in.safetensors")
    command = [REFERENCE, SIDE, tmp_path / "out", tmp_path / "in.safetensors", tmp_path / "found.safetensors"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "found.safetensors")
    mask = found["attention_mask"]
    batch = case.batch.replace(features=found["input_features"], lengths=np.int32(mask.sum(axis=1)))
    given = jax.tree.map(jnp.asarray, (trained, batch))
    emitted = fast_jit(lambda v, batch: case.recogniser.apply(v, batch, method="emit"))(*given)["ctc"]
    expected = np.asarray(jax.nn.log_softmax(found["logits"]))
    lengths = np.asarray(emitted.lengths)
    assert_outputs(
        case.valid(emitted.values, lengths)[:, : expected.shape[1]],
        case.valid(expected, lengths),
        what="log-probabilities",
    )
    labels = [" " if name == "|" else name for name in json.loads(done.stdout)]
    assert labels == ["<pad>" if symbol is None else symbol for symbol in case.tokenizer.symbols]


@pytest.mark.parametrize("folder", CASES)
def test_padding_is_behind_the_frames(folder: Path) -> None:
    """The lengths agree with the reference's mask."""
    case = case_of(folder)
    mask = case.arrays["input/attention_mask"]
    np.testing.assert_array_equal(np.arange(mask.shape[1]) < case.batch.lengths[:, None], mask.astype(bool))

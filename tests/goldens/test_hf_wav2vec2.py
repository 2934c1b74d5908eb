"""wav2vec 2.0 of Hugging Face's transformers, from its folders: outputs, losses, gradients, training."""

import json
import subprocess
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from margins import TIE, argmax_margin, choice_margins, skip_ties
from safetensors.numpy import load_file, save_file
from support import (
    GOLDENS,
    ROUNDING,
    assert_gradients,
    assert_outputs,
    assert_within,
    log_softmax,
    part,
    relative,
    slow_after_first,
)
from wav2vec2_programs import (
    code_scores,
    contrastive_program,
    ctc_program,
    encode,
    fast_jit,
    gradients,
    quantizer_program,
)

from asr_jax.audio.presets import wav2vec2
from asr_jax.core.batch import Batch, Encoded, Frames, length_mask, zero_padding
from asr_jax.core.pytrees import join, unflatten
from asr_jax.heads.contrastive import Contrastive, Draws
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.optim.optimizers import EVERYTHING, NEVER, AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.pretrained.formats import imported, load_weights, save_folder
from asr_jax.pretrained.wav2vec2 import HUGGINGFACE
from asr_jax.pretrained.wav2vec2_fairseq import Settings
from asr_jax.pretrained.wav2vec2_huggingface import settings_of_folder
from asr_jax.text.characters import CharacterTokenizer

pytestmark = pytest.mark.golden

REFERENCE = Path(__file__).parents[2] / ".venv-reference/bin/python"
SIDE = Path(__file__).parent / "transformers_logits.py"
MODES = [pytest.param("eval", marks=pytest.mark.slow), "train"]
FOLDERS = sorted(path.parent for path in (GOLDENS / "hf_wav2vec2").glob("*/config.json"))


normalised = fast_jit(wav2vec2(normalise=True))


def folders_with(name: str) -> list[Any]:
    return [pytest.param(folder, id=folder.name) for folder in FOLDERS if (folder / name).is_file()]


def of_heads(kind: str) -> list[Any]:
    cases = [case for case in folders_with("expected.json") if kind in config_of(case.values[0])["architectures"][0]]
    return slow_after_first(cases)


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@dataclass(frozen=True)
class Case:
    """A folder, and our model with its weights."""

    arrays: dict[str, np.ndarray]
    recorded: dict[str, Any]
    settings: Settings
    model: Model
    params: Any


@cache
def case_of(folder: Path) -> Case:
    config = config_of(folder)
    settings = settings_of_folder(folder)
    encoder = replace(
        settings.encoder,
        extractor_norm=settings.encoder.extractor_norm.replace("group", "group_padded"),
        time_mask=replace(settings.encoder.time_mask, probability=0.0),
        channel_mask=replace(settings.encoder.channel_mask, probability=0.0),
        taps=("features", *(f"layer_{number}" for number in range(settings.encoder.num_layers))),
    )
    heads = {"ctc": CTC(dropout=0.0)} if "CTC" in config["architectures"][0] else {"pretrain": settings.contrastive}
    model = Model(encoder=encoder, heads=heads, front_end=wav2vec2(normalise=True), augment=())
    found, left = imported(load_weights(folder / "model.safetensors")[0], model)
    assert left == []
    params = jax.device_put(unflatten(found)["params"])
    return Case(
        load_file(folder / "expected.safetensors"),
        json.loads((folder / "expected.json").read_text()),
        settings._replace(encoder=encoder),
        model,
        params,
    )


def batch_of(case: Case, *, masked: bool) -> Batch:
    values, labels = case.arrays["input/input_values"], case.arrays.get("input/labels")
    rows, samples = values.shape
    labels = np.full((rows, 1), -100) if labels is None else labels
    mask = case.arrays["input/attention_mask"] if masked else np.ones((rows, samples))
    return Batch(
        audio=None,
        features=values[..., None],
        lengths=mask.sum(axis=1).astype(np.int32),
        tokens=np.maximum(labels, 0).astype(np.int32),
        token_lengths=(labels >= 0).sum(axis=1).astype(np.int32),
        weights=np.ones(rows, np.float32),
        utterances=np.arange(rows, dtype=np.int32),
    )


@cache
def recognised(folder: Path, masked: bool) -> Any:
    """Returns loss with the reference's reduction, inner outputs, log-probabilities, and gradients."""
    case = case_of(folder)
    encoded, (loss, emitted), gradients = ctc_gradients(folder, case.params, batch_of(case, masked=masked))
    return loss, encoded, emitted, gradients


def ctc_gradients(folder: Path, params: Any, batch: Batch, *, training: bool = False) -> Any:
    """Computes the loss, a sum over utterances or the mean of each utterance's loss per label, and its gradients."""
    case, config = case_of(folder), config_of(folder)
    if config["ctc_loss_reduction"] == "mean":
        batch = batch.replace(weights=np.float32(1 / (len(batch.weights) * batch.token_lengths)))
    frames = Frames(batch.features, batch.lengths)
    of_head = partial(ctc_program(config["vocab_size"], config["pad_token_id"], training), batch=batch)
    return gradients(case.settings.encoder, params, frames, "heads_ctc", of_head, training=training)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("folder", of_heads("CTC"))
def test_outputs_and_loss(folder: Path, masked: bool) -> None:
    case, (loss, encoded, emitted, _) = case_of(folder), recognised(folder, masked)
    out, name = case.arrays, "out_masked" if masked else "out_nomask"
    lengths = np.asarray(encoded.frames.lengths)
    if masked:
        np.testing.assert_array_equal(lengths, out["out/feat_lengths"])
    valid = np.arange(encoded.frames.values.shape[1])[None, :, None] < lengths[:, None, None]
    num = case.settings.encoder.num_layers
    hidden = {f"hidden_{number + 1}": encoded.taps[f"layer_{number}"] for number in range(num)}
    found = {"last_hidden_state": encoded.frames, "extract_features": encoded.taps["features"], **hidden}
    for which, frames in found.items():
        assert_outputs(np.asarray(frames.values) * valid, out[f"{name}/{which}"] * valid, what=f"{name} {which}")
    expected = log_softmax(out[f"{name}/logits"])
    assert_outputs(emitted.values * valid, expected * valid, what=f"{name} log-probabilities")
    assert_within(abs(float(loss) / float(out[f"{name}/loss"]) - 1), 1e-5, what=f"{name} loss")


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("folder", of_heads("CTC"))
def test_gradients_by_the_peers_names(folder: Path, masked: bool) -> None:
    case, (_, _, _, gradients) = case_of(folder), recognised(folder, masked)
    actual = HUGGINGFACE.export({"params": gradients}, case.settings.encoder, {"heads_ctc": CTC()})
    assert_gradients(actual, part(case.arrays, "grad_masked/" if masked else "grad_nomask/"))


@pytest.mark.parametrize("folder", of_heads("CTC"))
def test_samples_are_normalised(folder: Path) -> None:
    arrays = case_of(folder).arrays
    found = normalised(arrays["input/waveform_raw"] * 32768, arrays["input/waveform_lengths"].astype(np.int32))
    assert_outputs(np.asarray(found.values)[..., 0], arrays["input/input_values"], what="samples")


def is_masked(case: Case) -> bool:
    return "input/feature_attention_mask" in case.arrays


def noise_of(case: Case) -> np.ndarray:
    mask, quantizer = case.arrays["input/mask_time_indices"], case.settings.contrastive.quantizer
    return case.arrays["input/gumbel_noise"].reshape(*mask.shape, quantizer.groups, quantizer.entries)


@cache
def chosen_from(folder: Path, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns features, and the scores of codes [B T G V] of the reference's quantiser, with its noise in training.

    The case has no features; those of our encoder are used.
    """
    case = case_of(folder)
    batch = batch_of(case, masked=is_masked(case))
    frames = Frames(batch.features, batch.lengths)
    features = np.asarray(encode(case.settings.encoder, case.params["encoder"], frames).taps["features"].values)
    weights = load_file(folder / "model.safetensors")
    scores = code_scores(weights, features, groups=case.settings.contrastive.quantizer.groups)
    return features, scores + noise_of(case) if mode == "train" else scores


def skip_where_rounding_decides(folder: Path, mode: str) -> None:
    """Skips tests whose contrastive losses and gradients depend on tied codes of masked frames or their distractors.

    In training, only the drawn codes count, because the perplexity is computed from probabilities.
    """
    arrays, (_, scores) = case_of(folder).arrays, chosen_from(folder, mode)
    hidden = arrays["input/mask_time_indices"].astype(bool)
    counts = hidden.ravel().copy()
    counts[arrays["input/sampled_negative_indices"][hidden].ravel()] = True
    margin = argmax_margin(scores.reshape(-1, *scores.shape[2:])[counts])
    skip_ties(**{"drawn_codes" if mode == "train" else "codes": margin})


def contrastive_of(case: Case, mode: str) -> Contrastive:
    """Returns the settings of the head with the temperature of the case."""
    settings = case.settings.contrastive
    if mode == "eval":
        return settings
    tau = case.recorded["gumbel_tau"]
    return replace(settings, quantizer=replace(settings.quantizer, start_temperature=tau, end_temperature=tau))


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("folder", of_heads("PreTraining"))
def test_quantised_features(folder: Path, mode: str) -> None:
    """All frames without ties are compared. This test is never skipped, whatever our features and quantiser return."""
    case, (features, scores) = case_of(folder), chosen_from(folder, mode)
    program = quantizer_program(contrastive_of(case, mode), mode == "train")
    log_probs, actual = program(case.params["heads_pretrain"], features, noise_of(case))
    if mode == "eval":
        expected = log_softmax(scores)
        assert_outputs(log_probs, expected, what="log-probabilities of codes")
    is_clear = (choice_margins(scores) >= TIE).all(axis=-1)
    assert is_clear.mean() > 0.9
    expected = case.arrays[f"out_{mode}/projected_quantized_states"]
    assert_outputs(np.asarray(actual)[is_clear], expected[is_clear], what=f"{mode} quantised features")


@cache
def pretraining(folder: Path, mode: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns sums and the gradient of their total by the reference's names, with its masks, distractors and noise."""
    case = case_of(folder)
    arrays, settings, noise = case.arrays, contrastive_of(case, mode), noise_of(case)
    batch = batch_of(case, masked=is_masked(case))
    mask = arrays["input/mask_time_indices"].astype(bool)
    places = (arrays["input/sampled_negative_indices"] % mask.shape[1]).astype(np.int32)
    draws = Draws(noise, within=places)
    # In evaluation, the reference computes diversity from the selected entries, without a gradient.
    terms = ("loss", "diversity") if mode == "train" else ("loss",)
    of_head = partial(contrastive_program(settings, terms, mode == "train"), batch=batch, draws=draws)
    frames, encoder = Frames(batch.features, batch.lengths), case.settings.encoder
    _, sums, grads = gradients(
        encoder, case.params, frames, "heads_pretrain", of_head, mask=mask, training=mode == "train"
    )
    return sums, HUGGINGFACE.export({"params": grads}, encoder, {"heads_pretrain": settings})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("folder", of_heads("PreTraining"))
def test_losses_of_pretraining(folder: Path, mode: str) -> None:
    skip_where_rounding_decides(folder, mode)
    case, (sums, _) = case_of(folder), pretraining(folder, mode)
    out = part(case.arrays, f"out_{mode}/")
    assert float(sums["loss"].weight) == case.recorded["masked_frames"]
    expected = float(out["contrastive_loss"])
    assert_within(abs(float(sums["loss"].total) / expected - 1), 1e-5, what=f"{mode} loss")
    perplexity = sums["prob_perplexity" if mode == "train" else "code_perplexity"]
    assert_within(abs(float(perplexity.total / perplexity.weight) / float(out["codevector_perplexity"]) - 1), 1e-5)
    if mode == "train":
        # The share of unused codes of each frame has the error of perplexities, whatever the share. transformers also
        # averages the probabilities of all frames in float32 before their logarithms.
        scale = case.settings.contrastive.diversity * case.recorded["masked_frames"]
        expected = case.settings.contrastive.diversity * float(out["diversity_loss"])
        assert_within(abs(float(sums["diversity"].total) - expected), 64 * ROUNDING, scale=scale, what="diversity")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("folder", of_heads("PreTraining"))
def test_gradients_of_pretraining(folder: Path, mode: str) -> None:
    skip_where_rounding_decides(folder, mode)
    _, actual = pretraining(folder, mode)
    assert_gradients(actual, part(case_of(folder).arrays, f"grad_{mode}/"))


@pytest.mark.slow
@pytest.mark.parametrize("folder", folders_with("trajectory.json"))
def test_trajectory(folder: Path) -> None:
    """Ten updates of AdamW: losses, and the parameters after them."""
    case = case_of(folder)
    recorded, after = json.loads((folder / "trajectory.json").read_text()), load_file(folder / "trajectory.safetensors")
    hparams, rates = recorded["hparams"], jax.device_put(np.float32(recorded["lr_used"]))
    frozen = (("encoder/mask", NEVER), ("encoder/extractor/.*", NEVER if hparams["freeze_feature_encoder"] else 0.0))
    optimizer = AdamW(
        b1=hparams["betas"][0], b2=hparams["betas"][1], eps=hparams["eps"], clip_at=hparams["clip_norm"],
        weight_decay=hparams["weight_decay"], decay_factors=EVERYTHING, freeze_updates=(*frozen, ("rest", 0.0)),
    )  # fmt: skip
    updater = replace(optimizer.build(RunLength(len(rates), 1)), rate=lambda updates: rates[updates])
    batch, params = batch_of(case, masked=True), case.params
    trained, held = updater.split(params)
    state = fast_jit(updater.init)(trained)

    @fast_jit
    def update(trained: Any, state: Any, grads: Any, number: Any) -> Any:
        changes, state = updater.update(grads, state, trained, updates=number)
        return jax.tree.map(jnp.add, trained, changes), state

    losses = []
    for number in range(len(rates)):
        _, (loss, _), grads = ctc_gradients(folder, join(trained, held), batch, training=True)
        trained, state = update(trained, state, updater.split(grads)[0], np.int32(number))
        losses.append(float(loss))
    assert_within(relative(losses, recorded["loss"]), 1e-3, what="losses")
    found = HUGGINGFACE.export({"params": join(trained, held)}, case.settings.encoder, {"heads_ctc": CTC()})
    expected = part(after, f"after{len(recorded['lr_used'])}/")
    assert found.keys() == expected.keys()
    # Adam normalises gradients that are only rounding errors, so single values differ and tensors are compared by norm.
    differences = {
        name: float(np.linalg.norm(found[name] - expected[name]) / np.linalg.norm(expected[name])) for name in expected
    }
    worst = max(differences, key=differences.__getitem__)
    assert_within(differences[worst], 1e-3, what=f"parameters, worst ({worst})")


@pytest.mark.parametrize("folder", [pytest.param(folder, id=folder.name) for folder in FOLDERS])
def test_names_there_and_back(folder: Path) -> None:
    """Both weight files of a folder, including the names of the newest transformers."""
    case = next((f for f in FOLDERS if f.name == folder.name.removesuffix("_legacynames")), folder)
    model, params = case_of(case).model, case_of(case).params
    files = [
        path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin") and "expected" not in path.name
    ]
    for file in (file for file in files if "trajectory" not in file.name):
        found, left = imported(load_weights(file)[0], model)
        assert left == []
        again = unflatten(found)["params"]
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, again, params)))


@pytest.mark.slow
@pytest.mark.parametrize("folder", of_heads("CTC") + of_heads("PreTraining"))
def test_transformers_reads_what_is_written(folder: Path, tmp_path: Path) -> None:
    """Starts from waveforms. The weights differ from those of the folder, as after training."""
    if not REFERENCE.exists():
        pytest.skip("no environment of scripts/setup_reference.sh")
    case, rng = case_of(folder), np.random.default_rng(0)
    params = jax.tree.map(lambda x: np.float32(x * (1 + 0.1 * rng.normal(size=x.shape))), case.params)
    symbols = load_weights(folder)[1] or ()  # pre-trained models have no tokenizer
    tokenizer = CharacterTokenizer(tuple(symbols) or (None,), "none")
    save_folder({"params": params}, case.model, tokenizer, "huggingface", tmp_path / "out")
    waves = 0.1 * case.arrays["input/input_values"]
    lengths = jnp.asarray(waves.shape[1] - 1000 * np.arange(len(waves)), jnp.int32)
    expected, labels = transformers_side(tmp_path / "out", waves, np.asarray(lengths))
    assert labels == ["<pad>" if symbol is None else symbol for symbol in symbols]

    samples = case.model.front_end(zero_padding(jnp.asarray(waves), lengths) * 32768, lengths)
    # Without a mask, as for models with the group norm, padding counts as valid.
    mask = expected.get("attention_mask", np.ones(waves.shape))
    samples = samples.replace(lengths=jnp.asarray(mask.sum(axis=1), jnp.int32))
    encoded = encode(case.settings.encoder, params["encoder"], samples)
    valid = np.asarray(length_mask(encoded.frames.lengths, encoded.frames.values.shape[1]))[..., None]
    found = given_by_head(folder, params, encoded)
    assert found.keys() == expected.keys() - {"input_values", "attention_mask"}
    for name, values in found.items():
        assert_outputs(values * valid, expected[name] * valid, what=name)


def transformers_side(folder: Path, waves: np.ndarray, lengths: np.ndarray) -> tuple[dict[str, np.ndarray], list[str]]:
    """Runs the processor and the model of transformers. Returns their outputs and the labels of the tokenizer."""
    given, out = folder / "in.safetensors", folder / "out.safetensors"
    save_file({"waveform": waves, "waveform_lengths": lengths}, given)
    done = subprocess.run([REFERENCE, SIDE, folder, given, out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return load_file(out), [" " if label == "|" else label for label in json.loads(done.stdout)]


def given_by_head(folder: Path, params: Any, encoded: Encoded) -> dict[str, Any]:
    """Returns the head's projections of the encoder's output, by the reference's names."""
    case, config = case_of(folder), config_of(folder)
    ((name, settings),) = case.model.heads.items()
    head = settings.build(vocab_size=config["vocab_size"], blank_id=config["pad_token_id"], dtype=jnp.float32)
    names = {"output": "logits", "predictions": "projected_states", "targets": "projected_quantized_states"}

    @fast_jit
    def projected(params: Any, encoded: Encoded, batch: Batch) -> Any:
        _, kept = head.apply(
            {"params": params}, encoded, batch, step=None, rngs={"dropout": jax.random.key(0)},
            mutable=["intermediates"], capture_intermediates=lambda module, _: module.name in names,
        )  # fmt: skip
        return {
            names[module]: values for module, found in kept["intermediates"].items() for values in found["__call__"]
        }

    return projected(params[f"heads_{name}"], encoded, batch_of(case, masked=False))

"""FunASR's Paraformer: integrate-and-fire, losses and gradients, and recognition, from its own weights."""

import json
import re
import shutil
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from support import (
    GoldenCase,
    assert_gradients,
    assert_outputs,
    assert_within,
    fast_jit,
    golden_cases,
    having,
    log_softmax,
    part,
    relative,
    slow,
)

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.pytrees import unflatten
from asr_jax.heads import paraformer
from asr_jax.heads.label_queries import greedy_runs, mean_over, members, runs_of_text
from asr_jax.heads.paraformer import Paraformer
from asr_jax.losses.cross_entropy import smoothed_cross_entropy
from asr_jax.models.base import Model
from asr_jax.nn.decoders import cif
from asr_jax.nn.decoders.cif import CIF, NEAR_THE_END, Predictor
from asr_jax.pretrained.base import heads_of
from asr_jax.pretrained.formats import load_weights, save_folder
from asr_jax.pretrained.funasr import HEAD, settings_of
from asr_jax.pretrained.funasr_folder import FUNASR
from asr_jax.pretrained.published import read_published
from asr_jax.pretrained.torch_writer import save_torch

pytestmark = pytest.mark.golden


def models_of(pattern: str) -> list[Any]:
    """Cases of FunASR's models; one without sampler and CTC only repeats the other's, and is slow."""
    return [
        pytest.param(*case.values, id=case.id, marks=pytest.mark.slow) if case.id == "paraformer_nosampler" else case
        for case in golden_cases("funasr", pattern)
    ]


def slow_with_recognition(cases: list[Any]) -> list[Any]:
    """Returns all cases, and marks those as slow that `test_recognition` compares too."""
    recognised = having(cases, "infer/decoder_logprobs")
    return [*(case for case in cases if case not in recognised), *slow(recognised)]


def near_the_end(is_complete: np.ndarray) -> Any:
    """Values of `cif.NEAR_THE_END` for rows whose last label FunASR completed, and for those where rounding did not."""
    return np.where(is_complete, np.float32(NEAR_THE_END), np.float32(-1))[:, None]


def last_is_complete(vectors: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return np.abs(vectors[np.arange(len(lengths)), lengths - 1]).max(axis=-1) > 0


@pytest.mark.parametrize("case", golden_cases("funasr", "cif*"))
def test_integration(case: Any) -> None:
    arrays = case.arrays()
    assert arrays["cif/min_margin"] > 1e-4
    expected = arrays["cif/embeds"]

    def total(weights: Any, values: Any) -> Any:
        fired = cif.integrate(weights, size=expected.shape[1])
        vectors = cif.combined(fired, values)
        return jnp.sum(vectors * arrays["cif/w"]), (vectors, fired.is_fire)

    found = fast_jit(jax.value_and_grad(total, (0, 1), has_aux=True))(arrays["cif/alphas"], arrays["input/hidden"])
    (_, (vectors, is_fire)), gradients = found
    np.testing.assert_array_equal(is_fire, arrays["cif/peak"] >= 1)
    assert_outputs(vectors, expected, what="vectors")
    for name, gradient in zip(("dalphas", "dhidden"), gradients, strict=True):
        assert_outputs(gradient, arrays[f"cif/{name}"], what=name)


@pytest.mark.parametrize("case", golden_cases("funasr", "cif*"))
def test_smoothed_cross_entropy(case: Any) -> None:
    arrays, smoothing = case.arrays(), case.info["lsm"]
    labels = arrays["input/target"]
    counted = labels >= 0
    losses = fast_jit(partial(smoothed_cross_entropy, smoothing=smoothing))(
        arrays["lsm/logits"], np.maximum(np.int32(labels), 0)
    )
    total = np.sum(np.asarray(losses), where=counted)
    assert_within(relative(total / counted.sum(), arrays["lsm/loss_norm1"]), 1e-5, what="per label")
    assert_within(relative(total / len(labels), arrays["lsm/loss_norm0"]), 1e-5, what="per utterance")


def variants_of(case: GoldenCase) -> list[str]:
    return sorted({name.split("/")[0] for name in case.arrays() if "/param/" in name})


def predictor_of(arrays: dict[str, np.ndarray], name: str) -> tuple[CIF, dict[str, Any]]:
    """Returns the settings of a variant and our parameters. The files state neither factor, threshold nor tail."""
    own = part(arrays, f"{name}/param/")
    kernel, output = own["cif_conv1d.weight"], own["cif_output.weight"]
    side = (kernel.shape[2] - 1) // 2
    params: Any = {
        "convolution": {"kernel": kernel.transpose(2, 1, 0), "bias": own["cif_conv1d.bias"]},
        "output": {"kernel": output.T, "bias": own["cif_output.bias"]},
    }
    lengths, alphas = arrays["input/lens"], arrays[f"{name}/infer/alphas"]
    at_length, last = alphas[np.arange(len(lengths)), lengths], alphas[:, -1]
    settings = CIF(
        kind="depthwise" if kernel.shape[1] < len(kernel) else "full", before=side, after=side, dropout=0.0,
        tail=float(at_length.min() if at_length.min() else last.min()),
    )  # fmt: skip
    plain = np.asarray(weights_program(settings)(params, frames_of(arrays)))
    inside = np.arange(plain.shape[1]) < lengths[:, None]
    given = alphas[:, : plain.shape[1]][inside]
    slope, intercept = np.polyfit(plain[inside][given > 0], given[given > 0], 1)
    changes = {"smooth_factor": round(float(slope), 4), "noise_threshold": max(round(float(-intercept), 4), 0.0)}
    return replace(settings, **changes), params


@cache
def weights_program(settings: CIF) -> Any:
    """Returns a program for the weights of frames in recognition."""
    return fast_jit(lambda params, frames: Predictor(settings).apply({"params": params}, frames, step=None))


def frames_of(arrays: dict[str, np.ndarray]) -> Frames:
    return Frames(*jax.device_put((arrays["input/hidden"], np.int32(arrays["input/lens"]))))


@pytest.mark.parametrize("case", golden_cases("funasr", "cif*"))
def test_predictors(case: Any, monkeypatch: Any) -> None:
    """Vectors, numbers of labels and gradients of training, and those of recognition, without the margin of rounding.

    The gradients are those of the weighted sum of the vectors plus the sum of the weights of frames. FunASR's tail is
    at the row's length or (tail_mask False) at the end of the batch, where its frame is zeros.
    """
    arrays, variants = case.arrays(), variants_of(case)
    assert variants
    num_labels = (arrays["input/target"] >= 0).sum(axis=1)
    frames = frames_of(arrays)
    for name in variants:
        settings, params = predictor_of(arrays, name)
        own, predictor = part(arrays, f"{name}/"), Predictor(settings)
        expected = own["train/embeds"]
        complete = last_is_complete(expected, num_labels)
        monkeypatch.setattr(cif, "NEAR_THE_END", near_the_end(complete))

        def total(params: Any, values: Any, *, predictor: Any = predictor, own: Any = own) -> Any:
            given = frames.replace(values=values)
            weights = predictor.apply({"params": params}, given, step=jnp.int32(0))
            size = own["train/w"].shape[1]
            vectors, _ = predictor.of_labels(given, weights, jnp.asarray(num_labels), size=size)
            found = recognised(own, predictor, params, frames)
            return jnp.sum(vectors * own["train/w"]) + jnp.sum(weights), (vectors, weights, found)

        run = fast_jit(jax.value_and_grad(total, (0, 1), has_aux=True))
        (_, (vectors, weights, found)), (gradient, of_values) = jax.device_get(run(params, frames.values))
        assert_outputs(vectors, expected, what=f"{name} vectors")
        assert_outputs(weights.sum(1), own["train/token_num"], what=f"{name} sum")
        assert_within(relative(of_values, own["train/dhidden"]), 1e-3, what=f"{name} values")
        theirs = part(own, "train/grad/")
        by_name = {
            "cif_conv1d.weight": np.transpose(gradient["convolution"]["kernel"], (2, 1, 0)),
            "cif_conv1d.bias": gradient["convolution"]["bias"],
            "cif_output.weight": np.transpose(gradient["output"]["kernel"]),
            "cif_output.bias": gradient["output"]["bias"],
        }
        worst = max(relative(by_name[key], theirs[key]) for key in theirs)
        assert_within(worst, 1e-3, what=f"{name} gradients")
        check_recognised(*found, own, name)


def recognised(own: dict[str, np.ndarray], predictor: Any, params: Any, frames: Frames) -> tuple[Any, Any]:
    """Returns the vectors of recognition and their number, for the tail of a variant."""
    weights = predictor.apply({"params": params}, frames, step=None)
    if not own["infer/alphas"][np.arange(len(frames.lengths)), np.asarray(frames.lengths)].min():
        frames = cif.without_padding(frames)  # the tail is at the end, where its frame is zeros
    return predictor.found(frames, weights)[:2]


def check_recognised(vectors: np.ndarray, number: np.ndarray, own: dict[str, np.ndarray], name: str) -> None:
    np.testing.assert_array_equal(number, own["infer/token_num"])
    size = own["infer/embeds"].shape[1]
    kept = np.arange(size)[None, :, None] < number[:, None, None]
    assert_outputs(vectors[:, :size] * kept, own["infer/embeds"] * kept, what=f"{name} recognised vectors")


def config_of(case: GoldenCase) -> dict[str, Any]:
    """Returns the content of a config.yaml."""
    given = case.info["config"]
    of_modules = ("encoder", "encoder_conf", "decoder", "decoder_conf", "predictor", "predictor_conf", "ctc_conf")
    own = {name: value for name, value in given.items() if name in of_modules}
    model = {name: value for name, value in given.items() if name not in own}
    kind = "Paraformer_v2_community" if "v2_community" in case.info["peer"] else "Paraformer"
    return {"model": kind, "model_conf": model, "input_size": given["input_size"], **own}


@dataclass(frozen=True)
class Run:
    """Our model with FunASR's weights, and the batch of a case."""

    arrays: dict[str, np.ndarray]
    settings: Model
    model: Any
    params: Any
    batch: Batch

    def named(self, params: Any) -> dict[str, np.ndarray]:
        encoder: Any = self.settings.encoder
        return FUNASR.export({"params": params}, encoder, heads_of(self.settings))


def run_of(case: GoldenCase) -> Run:
    arrays = case.arrays()
    encoder, heads = settings_of(config_of(case), str(case.path))
    found, left = FUNASR.find(part(arrays, "param/"), encoder, {f"heads_{name}": head for name, head in heads.items()})
    assert left in ([], ["decoder.embed.0.weight"])
    head = heads[HEAD]
    if isinstance(head, Paraformer):
        heads[HEAD] = replace(head, mask_padding=False)
    front_end = KaldiFbank(num_mels=encoder.num_mels)  # features are given
    settings = Model(encoder, heads=heads, front_end=front_end, augment=(), primary=HEAD if len(heads) > 1 else "")
    model = settings.build(vocab_size=case.info["config"]["vocab_size"], blank_id=0, precision="f32")
    rows = len(arrays["input/speech"])
    batch = Batch(
        None, arrays["input/speech"], np.int32(arrays["input/speech_lengths"]),
        np.maximum(np.int32(arrays["input/text"]), 0), np.int32(arrays["input/text_lengths"]),
        np.ones(rows, np.float32), np.arange(rows, dtype=np.int32),
    )  # fmt: skip
    return Run(arrays, settings, model, unflatten(found)["params"], jax.device_put(batch))


def total_loss(run: Run, params: Any, step: Any) -> tuple[Any, Any]:
    rngs = {name: jax.random.key(0) for name in ("dropout", "sampler")}  # the rates of dropout are 0
    sums = run.model.apply({"params": params}, run.batch, step=step, rngs=rngs)
    weighted = [
        settings.scale * sums[f"{name}/{term}"].total / sums[f"{name}/{term}"].weight
        for name, settings in run.settings.heads.items()
        for term in ("loss", "quantity")
        if f"{name}/{term}" in sums
    ]
    return sum(weighted), sums


def check_losses(run: Run) -> Any:
    """Compares losses and gradients. Returns the sums of all terms."""
    arrays = run.arrays
    loss_of = partial(total_loss, run)
    (loss, sums), gradient = jax.device_get(
        fast_jit(jax.value_and_grad(loss_of, has_aux=True))(run.params, np.int32(0))
    )
    assert_within(relative(loss, arrays["train/loss"][0]), 1e-5, what="loss")
    means = {name: float(each.total) / float(each.weight) for name, each in sums.items()}
    head: Any = run.settings.heads[HEAD]
    label_scale = getattr(head, "label_scale", 1.0)
    expected = {f"{HEAD}/loss": arrays["train/stats/loss_att"][0] * label_scale}
    expected[f"{HEAD}/accuracy"] = arrays["train/stats/acc"][0]
    if "train/stats/loss_pre" in arrays:
        expected[f"{HEAD}/quantity"] = arrays["train/stats/loss_pre"][0] * head.quantity_scale
    if "train/stats/loss_ctc" in arrays:
        expected["ctc/loss"] = arrays["train/stats/loss_ctc"][0]
    for name, value in expected.items():
        assert_within(abs(means[name] - value) / max(abs(value), 1), 1e-5, what=name)
    theirs, ours = part(arrays, "train_grad/"), run.named(gradient)
    assert theirs.keys() <= ours.keys()
    assert_gradients(ours, theirs)
    return sums


@pytest.mark.parametrize("case", models_of("paraformer_*sampler*"))
def test_losses_and_gradients(case: Any, monkeypatch: Any) -> None:
    run = run_of(case)
    arrays, num_labels = run.arrays, run.arrays["input/text_lengths"] + case.info["config"]["predictor_bias"]
    monkeypatch.setattr(cif, "NEAR_THE_END", near_the_end(last_is_complete(arrays["teacher/embeds"], num_labels)))
    orders = [arrays[name] for name in sorted(arrays) if name.startswith("input/sampler_randperm_")]
    if orders:
        monkeypatch.setattr(paraformer, "uniform_of_rows", partial(recorded, orders=orders, lengths=num_labels))
    check_losses(run)


def recorded(key: Any, shape: tuple[int, ...], *, orders: list[np.ndarray], lengths: np.ndarray) -> Any:
    """Returns draws whose order is that of FunASR's permutations; rows without one have no label to replace."""
    draws, left = np.zeros(shape, np.float32), list(orders)
    for row, length in enumerate(lengths):
        if left and len(left[0]) == length:
            draws[row, left.pop(0)] = np.arange(length) / length
    assert not left
    return jnp.asarray(draws)


@pytest.mark.parametrize("case", models_of("paraformer_*sampler*"))
def test_recognition(case: Any) -> None:
    """Weights, vectors and log-probabilities of all labels, for FunASR's padding."""
    run = run_of(case)
    arrays = run.arrays

    def parts(model: Any, batch: Batch) -> Any:
        frames = model.encode(batch, step=None).frames
        head = model.heads[HEAD]
        weights = head.predictor(frames, step=None)
        vectors, *_ = head.predictor.found(frames, weights)
        return frames, weights, vectors, head.emit(Encoded(frames))

    program = fast_jit(lambda params: run.model.apply({"params": params}, run.batch, method=parts))
    frames, weights, vectors, log_probs = jax.device_get(program(run.params))
    lengths, num_frames = arrays["eval/encoder_lens"], frames.values.shape[1]
    np.testing.assert_array_equal(frames.lengths, lengths)
    inside = (np.arange(num_frames) < lengths[:, None])[..., None]
    assert_outputs(frames.values * inside, arrays["eval/encoder_out"] * inside, what="encoder")
    expected = arrays["infer/alphas"][:, :num_frames] * inside[..., 0]
    assert_outputs(weights, expected, what="weights")
    np.testing.assert_array_equal(log_probs.lengths, arrays["infer/token_num"])
    size = arrays["infer/embeds"].shape[1]
    kept = np.arange(size)[None, :, None] < np.asarray(log_probs.lengths)[:, None, None]
    for name, found in (("embeds", vectors), ("decoder_logprobs", log_probs.values)):
        assert_outputs(found[:, :size] * kept, arrays[f"infer/{name}"] * kept, what=name)


@pytest.mark.parametrize("case", slow_with_recognition(models_of("paraformer_*")))
def test_folder_from_samples_to_labels(case: Any, tmp_path: Path) -> None:
    """The longest utterance, which FunASR did not pad, and the same weights and settings after writing a folder."""
    arrays = case.arrays()
    source = folder_of(case, arrays, tmp_path / "source")
    found = read_published(source)
    assert set(found.remarks) <= {"1 weights of other heads are not used: decoder"}
    model = found.model.build(vocab_size=case.info["config"]["vocab_size"], blank_id=0, precision="f32")
    samples = load_file(case.path.with_name("wav_frontend.safetensors"))["input/waveform"]
    row = int(np.argmax(arrays["input/speech_lengths"]))
    batch = Batch(
        np.int16(np.round(samples[row : row + 1] * 32768)), None, np.int32(samples[row : row + 1].shape[1:]),
        np.zeros((1, 1), np.int32), np.zeros(1, np.int32), np.ones(1, np.float32), np.zeros(1, np.int32),
    )  # fmt: skip
    params = unflatten(found.weights)["params"]
    program = fast_jit(lambda params, batch: model.apply({"params": params}, batch, head=HEAD, method="emit"))
    emitted = jax.device_get(program(params, batch))[HEAD]
    theirs = arrays.get("infer/decoder_logprobs")
    if theirs is None:
        theirs = log_softmax(arrays[f"infer/{row}/decoder_logits"])
    num = int(arrays["infer/token_num"][row]) if "infer/token_num" in arrays else theirs.shape[1]
    assert emitted.lengths[0] == num
    assert_outputs(emitted.values[0, :num], theirs[row if len(theirs) > 1 else 0, :num], what="log-probabilities")
    save_folder({"params": params}, found.model, found.tokenizer, "funasr", tmp_path / "again")
    again = read_published(tmp_path / "again")
    assert again.model.encoder == found.model.encoder
    assert again.model.heads == found.model.heads
    assert again.tokenizer == found.tokenizer
    assert again.weights.keys() == found.weights.keys()
    for name, weight in found.weights.items():
        np.testing.assert_array_equal(again.weights[name], weight)
    written, given = (load_weights(folder)[0] for folder in (tmp_path / "again", source))
    assert given.keys() - written.keys() <= {"decoder.embed.0.weight"}
    for name, weight in written.items():
        np.testing.assert_array_equal(weight, given[name])


def of_features(case: GoldenCase, features: np.ndarray) -> tuple[str, dict[str, Any]]:
    """Returns the name of the case of front-ends that has the features, and FunASR's settings."""
    file = case.path.with_name("wav_frontend.safetensors")
    arrays = load_file(file) if file.is_file() else {}
    found = {key.removesuffix("/feat"): value for key, value in arrays.items() if key.endswith("/feat")}
    name = next((name for name, value in found.items() if np.array_equal(value, features)), "")
    if not name:
        pytest.skip(f"{file} has no samples for the features of {case.path.name}")
    stacked = re.search(r"lfr(\d+)_(\d+)", name)
    num, every = map(int, stacked.groups()) if stacked else (1, 1)
    return name, {
        "fs": 16000, "window": "hann" if "hann" in name else "hamming", "n_mels": features.shape[2] // num,
        "frame_length": 25, "frame_shift": 10, "lfr_m": num, "lfr_n": every, "snip_edges": "nosnip" not in name,
        "upsacle_samples": "noscale" not in name,
    }  # fmt: skip


def folder_of(case: GoldenCase, arrays: dict[str, np.ndarray], folder: Path) -> Path:
    """Writes the folder of a case as FunASR's hub has it."""
    folder.mkdir()
    tokens = ["<blank>", "<s>", "</s>", *map(chr, range(97, 97 + case.info["config"]["vocab_size"] - 4)), "<unk>"]
    name, front_end = of_features(case, arrays["input/speech"])
    config = {**config_of(case), "frontend": "WavFrontend", "frontend_conf": front_end, "tokenizer": "CharTokenizer"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "tokens.json").write_text(json.dumps(tokens))
    if "cmvn" in name:
        shutil.copy(case.path.with_name("am.mvn"), folder / "am.mvn")
    save_torch(part(arrays, "param/"), folder / "model.pt")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", golden_cases("funasr", "paraformer_v2_community*"))
def test_community_v2_losses_and_gradients(case: Any) -> None:
    check_losses(run_of(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", golden_cases("funasr", "paraformer_v2_community*"))
def test_community_v2_alignment_and_recognition(case: Any) -> None:
    run = run_of(case)
    arrays, batch = run.arrays, run.batch

    def parts(model: Any, batch: Batch) -> Any:
        encoded = model.with_emitted(model.encode(batch, step=None))
        ctc, head = encoded.emitted["ctc"], model.heads[HEAD]
        runs = runs_of_text(ctc, batch.tokens, batch.token_lengths, mode="viterbi", blank_id=0)
        found = greedy_runs(ctc, blank_id=0)
        means = [mean_over(members(each, ctc.values.shape[1]), jnp.exp(ctc.values)) for each in (runs, found)]
        return encoded.frames, ctc, runs, means, head.emit(encoded)

    program = fast_jit(lambda params: run.model.apply({"params": params}, batch, method=parts))
    frames, ctc, runs, means, log_probs = jax.device_get(program(run.params))
    for row, length in enumerate(arrays["eval/encoder_lens"]):
        assert_outputs(frames.values[row, :length], arrays["eval/encoder_out"][row, :length], what="encoder")
        assert_outputs(ctc.values[row, :length], np.log(arrays["eval/ctc_probs"][row, :length]), what="CTC")
        np.testing.assert_array_equal(runs.query[row, :length], arrays[f"align/{row}/target_index"])
        np.testing.assert_array_equal(runs.labels[row, :length], arrays[f"align/{row}/path"])
        aligned, greedy = arrays[f"align/{row}/compressed"], arrays[f"infer/{row}/compressed"]
        assert_outputs(means[0][row, : len(aligned)], aligned, what="queries")
        assert log_probs.lengths[row] == len(greedy)
        assert_outputs(means[1][row, : len(greedy)], greedy, what="recognised queries")
        expected = log_softmax(arrays[f"infer/{row}/decoder_logits"][0])
        assert_outputs(log_probs.values[row, : len(greedy)], expected, what="log-probabilities")

"""Files for other programs: ONNX by onnxruntime and StableHLO by JAX compute what the run computes."""

import errno
import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from exporting.small_models import MODELS
from exporting.untrained import untrained
from onnx import numpy_helper
from support import approx, assert_close, assert_within, fast_jit, relative

from asr_jax.audio.io import write_flac
from asr_jax.core.batch import Batch
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.pytrees import flatten
from asr_jax.exporting import onnx_files, targets
from asr_jax.exporting.parts import Features, Part, Parts
from asr_jax.exporting.targets import compare, export
from asr_jax.heads.ctc import CTC
from asr_jax.inference.trained import Trained
from asr_jax.pretrained.formats import imported, load_weights
from asr_jax.text.mixed import MixedTokenizer

MIXED = MixedTokenizer((None, "<unk>", "a", "b@@", "hello", "你", "好"), "none")
QUICK = ("quartznet",)
RATE_HZ = 16000
HALVED, QUANTISED = onnx_files.with_half_weights, onnx_files.quantised
CLOSE = 1e-4
"""Limit of differences, relative to the largest log-probability: 1e-3 for those of trained models, which are about 10.
The front-ends' Fourier transforms and logarithms round differently in onnxruntime and in XLA."""


@cache
def trained_of(name: str) -> Trained:
    return untrained(MODELS[name], MIXED) if name == "paraformer" else untrained(MODELS[name])


def recordings(*seconds: float) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [(rng.normal(size=int(RATE_HZ * each)) * 3000).astype(np.int16) for each in seconds]


def log_probs(trained: Trained, audio: list[np.ndarray], head: str) -> list[np.ndarray]:
    """Frame-wise outputs of recordings, each computed alone from int16 samples, as recognition does."""

    @fast_jit
    def program(variables: Any, batch: Batch) -> Any:
        return trained.model.apply(variables, batch, head=head, method="emit")[head]

    found, longest = [], max(map(len, audio))  # of one shape, so that one program computes all of them
    for samples in audio:
        batch = Batch(
            audio=np.pad(samples, (0, longest - len(samples)))[None],
            features=None,
            lengths=np.asarray([len(samples)], np.int32),
            tokens=np.zeros((1, 0), np.int32),
            token_lengths=np.zeros(1, np.int32),
            weights=np.ones(1, np.float32),
            utterances=np.zeros(1, np.int32),
        )
        frames = program(trained.variables, batch)
        found.append(np.asarray(frames.values)[0, : int(frames.lengths[0])])
    return found


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in MODELS])
def test_onnx_files_compute_what_the_run_computes(name: str, tmp_path: Path) -> None:
    """One file takes recordings of several lengths, alone and in a batch with padding."""
    trained, out, recording = trained_of(name), tmp_path / "out", ""
    if name.startswith("paraformer"):
        # Untrained, they are near ties: of another recording, int8 may find another number of labels.
        write_flac(tmp_path / "a.flac", recordings(1.6)[0], RATE_HZ)
        recording = str(tmp_path / "a.flac")
    lines = list(export(trained, out, to="onnx", weights=("f32", "int8"), recording=recording))
    head = trained.model.recognising
    about = json.loads((out / "model.json").read_text())
    assert about["head"] == head
    assert set(about["parts"]) == ({"model"} if "model.onnx" in lines[1] else {"encoder", "decoder", "joiner"})
    files = {f"{part}{kind}.onnx" for part in about["parts"] for kind in ("", ".int8")}
    assert {path.name for path in out.iterdir()} == files | {"model.json"}
    if "model" not in about["parts"]:
        return  # their outputs were compared by the export
    session = onnxruntime.InferenceSession(out / "model.onnx")
    audio = recordings(0.7, 1.6)
    expected = log_probs(trained, audio, head)
    padded = np.stack([np.pad(each, (0, 2 * RATE_HZ - len(each))) for each in audio])
    values, lengths = session.run(None, given(padded, [len(each) for each in audio]))
    for row, want in enumerate(expected):
        assert lengths[row] == len(want)
        assert_within(relative(values[row, : len(want)], want), CLOSE, what=f"{name} in a batch")
        alone, _ = session.run(None, given(audio[row][None], [len(audio[row])]))
        assert_within(relative(alone[0, : len(want)], want), CLOSE, what=f"{name} alone")


def given(audio: np.ndarray, lengths: list[int]) -> dict[str, np.ndarray]:
    return {"audio": audio.astype(np.float32) / 32768, "audio_lengths": np.asarray(lengths, np.int64)}


@pytest.mark.slow
def test_another_head_is_exported(tmp_path: Path) -> None:
    """The smallest recording is computed too, and a row without samples has no frames."""
    trained, out = trained_of("paraformer_v2"), tmp_path / "out"
    list(export(trained, out, to="onnx", head="ctc"))
    about = json.loads((out / "model.json").read_text())
    assert (about["head"], about["dropped_ids"]) == ("ctc", [trained.tokenizer.blank_id])
    session = onnxruntime.InferenceSession(out / "model.onnx")
    [samples] = recordings(1.0)
    for size in (len(samples), about["fewest_samples"]):
        values, lengths = session.run(None, given(np.stack([samples[:size]] * 2), [size, 0]))
        [want] = log_probs(trained, [samples[:size]], "ctc")
        assert lengths.tolist() == [len(want), 0]
        assert_within(relative(values[0, : len(want)], want), CLOSE, what=f"{size} samples")


@pytest.mark.slow  # tests/models/test_symbolic_sizes.py runs programs of `jax.export` with other sizes
@pytest.mark.parametrize("name", ["quartznet", "zipformer", "paraformer"])
def test_stablehlo_runs_with_other_sizes(name: str, tmp_path: Path) -> None:
    trained, out = trained_of(name), tmp_path / "out"
    list(export(trained, out, to="stablehlo"))
    call = jax.export.deserialize(bytearray((out / "model.stablehlo").read_bytes())).call
    audio = recordings(0.9, 0.4, 1.1)
    padded = np.stack([np.pad(each, (0, 2 * RATE_HZ - len(each))) for each in audio])
    inputs = given(padded, [len(each) for each in audio])
    values, lengths = call(audio=inputs["audio"], audio_lengths=inputs["audio_lengths"].astype(np.int32))
    for row, want in enumerate(log_probs(trained, audio, trained.model.recognising)):
        assert lengths[row] == len(want)
        assert_within(relative(values[row, : len(want)], want), CLOSE, what=name)


def test_prediction_and_joint_network_follow_the_labels(tmp_path: Path) -> None:
    """The network of LSTM layers takes its states as inputs and gives those after the label."""
    trained, out = trained_of("lstm_transducer"), tmp_path / "out"
    parts = Parts(trained.model, trained.variables, "transducer", recordings(0.5)[0])
    decoder, _ = parts.networks()
    labels, length = jax.device_put((np.asarray([[2, 5, 1]], np.int32), np.asarray([3], np.int32)))

    def projected(module, labels):
        head = module.heads["transducer"]
        return head.of_labels(head.prediction(labels, length, step=None))

    apply = fast_jit(partial(trained.model.apply, method=projected))
    expected = np.asarray(apply(trained.variables, labels))[0]
    state = {name: decoder.example[name][:1] for name in ("hidden", "cell")}
    for place, label in enumerate([trained.tokenizer.blank_id, *np.asarray(labels[0])]):
        output, *after = decoder.computed({"label": np.asarray([label], np.int32), **state})
        assert_close(output[0], expected[place], rtol=1e-5, atol=1e-6)
        state = dict(zip(state, after, strict=True))
    assert not out.exists()


@pytest.mark.slow
def test_weights_are_written_for_other_systems(tmp_path: Path) -> None:
    trained = trained_of("zipformer")
    [line] = export(trained, tmp_path / "a.safetensors", to="safetensors")
    assert "averaged weights of checkpoint 0" in line
    weights, symbols = load_weights(tmp_path / "a.safetensors")
    assert symbols == list(trained.tokenizer.symbols)
    assert weights.keys() == flatten(trained.variables).keys()
    list(export(trained, tmp_path / "icefall.pt", to="icefall"))
    assert "encoder_embed.conv.0.weight" in load_weights(tmp_path / "icefall.pt")[0]


def test_a_file_with_other_outputs_is_an_error_and_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = targets.Parts.outputs
    monkeypatch.setattr(targets.Parts, "outputs", lambda *given: [outputs(*given)[0] + 0.02, outputs(*given)[1]])
    with pytest.raises(RunError, match=r"model.onnx: .*log_probs .* largest difference 2.0e-02, expected at most 0.01"):
        list(export(trained_of("quartznet"), tmp_path / "out", to="onnx"))
    assert not list(tmp_path.iterdir())


def test_a_file_that_computes_a_wrong_function_well_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are compared with the run, not with the functions that were exported."""
    front_end = Features.of_samples

    def backwards(parts: Parts) -> Features:
        features = front_end(parts)

        def frames(audio: Any, audio_lengths: Any) -> Any:
            return features.frames(audio=audio[:, ::-1], audio_lengths=audio_lengths)

        return replace(features, frames=frames)

    monkeypatch.setattr(Features, "of_samples", backwards)
    with pytest.raises(RunError, match=r"model.onnx: the output log_probs differs from the run's"):
        list(export(trained_of("quartznet"), tmp_path / "out", to="onnx"))


def test_the_first_output_is_printed_and_all_are_judged(tmp_path: Path) -> None:
    values = {"decoder_out": np.zeros((2, 3)), "next_hidden": np.ones((2, 3))}
    part = Part("decoder", lambda: tuple(values.values()), {}, tuple(values))
    (path := tmp_path / "decoder.onnx").touch()
    first, second = values.values()
    line = targets._checked(path, part, lambda: [first, second + 5e-3])
    assert line.endswith("largest difference 0.0e+00")
    with pytest.raises(RunError, match=r"the output next_hidden differs from the run's: largest difference 2.0e-02"):
        targets._checked(path, part, lambda: [first, second + 2e-2])


def test_a_full_disk_is_an_error_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, _content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(onnx_files, "write_whole", full)
    with pytest.raises(RunError, match=r"^\S+/out cannot be written: No space left on device; nothing is kept$"):
        list(export(trained_of("quartznet"), tmp_path / "out", to="onnx"))
    assert not list(tmp_path.iterdir())


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"/file/a/b: \S+/file is not a folder"):
        list(export(trained_of("quartznet"), tmp_path / "file" / "a" / "b", to="onnx"))


def test_differences_behind_the_lengths_do_not_count() -> None:
    first, lengths = np.zeros((2, 3, 4)), np.asarray([3, 1])
    other = first.copy()
    other[1, 1:] = 5
    assert compare([first, lengths], [other, lengths])[0].difference == 0
    other[1, 0, 2] = 1
    assert compare([first, lengths], [other, lengths])[0].difference == 1
    assert compare([first, lengths], [other, lengths])[0].same_best == 0.75
    assert compare([first, lengths], [first, lengths + 1])[0].difference == np.inf
    assert np.isnan(compare([first, lengths], [first + np.nan, lengths])[0].difference)


def test_differences_are_relative_to_the_spread_of_an_output() -> None:
    """Impossible labels, with log-probabilities of -1e4, do not count in it."""
    first = np.asarray([[[1.0, 3.0], [5.0, 3.0], [0.0, -1e4]]])
    other = first + np.asarray([0.3, -0.3])
    spread = np.std([1, 3, 5, 3, 0])
    assert compare([first], [other])[0].relative == approx(0.3 / spread, rel=1e-5)
    assert compare([first, np.ones((1, 2))], [first, np.ones((1, 2))])[0].relative == 0
    assert np.isnan(compare([first], [first + np.nan])[0].relative)


@pytest.mark.slow  # an export compares outputs, which a quantised front-end changes
def test_front_ends_are_not_quantised(tmp_path: Path) -> None:
    """Their constants are the same in all files, and weights in f16 change little."""
    lines = list(export(trained_of("conformer"), tmp_path / "out", to="onnx", weights=("f32", "f16", "int8")))
    models = [onnx.load(tmp_path / "out" / name) for name in ("model.onnx", "model.f16.onnx", "model.int8.onnx")]
    banks = [
        [tuple(constant.dims) for constant in model.graph.initializer if constant.data_type == onnx.TensorProto.FLOAT]
        for model in models
    ]
    for bank in ((512, 257), (257, 80)):
        assert all(bank in each for each in banks)
    assert {constant.data_type for constant in models[1].graph.initializer} >= {onnx.TensorProto.FLOAT16}
    assert {constant.data_type for constant in models[2].graph.initializer} >= {onnx.TensorProto.UINT8}
    assert float(lines[2].rpartition("differs in ")[2].partition("%")[0]) < 2


@pytest.mark.slow
def test_convolutions_of_samples_are_not_quantised(tmp_path: Path) -> None:
    """In int8, the first layers of wav2vec 2.0 would triple the error rate."""
    trained = trained_of("wav2vec2")
    list(export(trained, tmp_path / "out", to="onnx", weights=("int8",)))
    constants = onnx.load(tmp_path / "out" / "model.int8.onnx").graph.initializer
    exact = [tuple(each.dims) for each in constants if each.data_type == onnx.TensorProto.FLOAT and len(each.dims) == 2]
    first = trained.model.encoder.settings.extractor[0]
    assert (first.kernel_size, first.channels) in exact
    assert any(each.data_type == onnx.TensorProto.UINT8 for each in constants)


def with_quantised_front_end(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        node.doc_string = ""
    return QUANTISED(model)


def with_wrong_weights(model: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    """Multiplies the largest matrix of float16."""
    model = HALVED(model)
    constants = [each for each in model.graph.initializer if each.data_type == onnx.TensorProto.FLOAT16]
    largest = max(constants, key=lambda each: len(each.raw_data))
    largest.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(largest) * np.float16(factor), largest.name))
    return model


@pytest.mark.parametrize(
    ("weights", "name", "function"),
    [
        ("f16", "with_half_weights", partial(with_wrong_weights, factor=1.1)),
        pytest.param("f16", "with_half_weights", partial(with_wrong_weights, factor=np.inf), marks=pytest.mark.slow),
        pytest.param("int8", "quantised", with_quantised_front_end, marks=pytest.mark.slow),
    ],
)
def test_rounded_weights_that_change_outputs_are_errors(
    weights: str, name: str, function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_files, name, function)
    with pytest.raises(RunError, match=rf"model.{weights}.onnx: .* expected at most .* Leave {weights} out"):
        list(export(trained_of("quartznet"), tmp_path / "out", to="onnx", weights=("f32", weights)))
    assert not list(tmp_path.iterdir())


def test_recordings_that_show_nothing_are_refused(tmp_path: Path) -> None:
    trained = untrained(MODELS["w2v_bert"], zeros=True)
    for name, samples in {"silence": np.zeros(16000, np.int16), "short": np.ones(100, np.int16)}.items():
        write_flac(tmp_path / f"{name}.flac", samples, RATE_HZ)
        with pytest.raises(UserError, match=rf"{name}.flac has {len(samples)} samples .* expected speech of at least"):
            list(export(trained, tmp_path / "out", to="onnx", recording=str(tmp_path / f"{name}.flac")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "onxx"}, r"'onxx': expected one of onnx, .* \(folders\), .*icefall, .* \(files\), .*did you mean"),
        ({"to": "safetensors"}, r"expected a name that ends in .safetensors"),
        ({"to": "stablehlo", "weights": ("int8",)}, r"--weights is given, which --to stablehlo does not use"),
        ({"to": "safetensors", "recording": "a.wav"}, r"--recording is given, which --to safetensors does not use"),
        ({"to": "onnx", "like": Path("a.nemo")}, r"--like is given, which --to onnx does not use"),
        ({"to": "onnx", "weights": ("int4",)}, r"weights is \('int4',\): expected some of f32, f16, int8"),
        ({"to": "onnx", "weights": "f32"}, r"weights is 'f32': expected a list, such as \['f32'\]"),
        ({"to": "onnx", "recording": "/nonexistent.wav"}, r"--recording /nonexistent.wav: .*expected an audio file"),
        ({"to": "onnx", "weights": ()}, r"weights is \(\): expected some of f32, f16, int8"),
        ({"to": "onnx", "head": "ctx"}, r"--head ctx: expected one of ctc"),
        ({"to": "keras"}, r"QuartzNet has no weight names of the system keras"),
        ({"to": "icefall"}, r"QuartzNet has no weight names of the system icefall"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        list(export(trained_of("quartznet"), tmp_path / "out", **options))
    assert not list(tmp_path.iterdir())


def test_weights_of_one_head(tmp_path: Path) -> None:
    """NeMo has no names for a second CTC head on an inner layer, as the configs of `init` for CPUs have."""
    model, out = MODELS["conformer"], tmp_path / "out.pt"
    encoder = replace(model.encoder, taps=("layer_1",))  # type: ignore[call-arg]
    heads = {"ctc": CTC(), "inner": CTC(tap="layer_1", scale=0.3)}
    trained = untrained(replace(model, encoder=encoder, heads=heads, primary="ctc"), zeros=True)
    with pytest.raises(UserError, match=r"params/heads_inner/output/bias, .*; --head NAME writes one head without"):
        list(export(trained, out, to="nemo"))
    list(export(trained, out, to="nemo", head="ctc"))
    found, left = imported(load_weights(out)[0], model)
    assert left == []
    assert {path.split("/")[1] for path in found} == {"encoder", "heads_ctc"}


def test_weights_of_a_head_that_reads_another(tmp_path: Path) -> None:
    trained, out = untrained(MODELS["paraformer_v2"], zeros=True), tmp_path / "out.safetensors"
    list(export(trained, out, to="safetensors", head="paraformer"))
    assert {"heads_paraformer", "heads_ctc"} <= {path.split("/")[1] for path in load_weights(out)[0]}


def test_runs_of_another_precision_are_refused(tmp_path: Path) -> None:
    """`python -m asr_jax.export` loads runs in float32; from Python, they are loaded before."""
    trained = trained_of("quartznet")
    training = replace(trained.experiment.training, precision="bf16")
    trained = replace(trained, experiment=replace(trained.experiment, training=training))
    with pytest.raises(UserError, match=r'the run computes in bf16, .* load it with precision="f32"'):
        list(export(trained, tmp_path / "out", to="onnx"))
    list(export(trained, tmp_path / "out.safetensors", to="safetensors"))


def test_an_existing_folder_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="already exists: choose another name"):
        list(export(trained_of("quartznet"), tmp_path, to="onnx"))


def test_heads_with_a_decoder_are_refused(tmp_path: Path) -> None:
    from asr_jax.heads.attention_decoder import AttentionDecoder
    from asr_jax.heads.ctc import CTC
    from asr_jax.nn.decoders.label_decoder import LabelDecoder

    decoder = LabelDecoder(dim=16, num_layers=1, attention_dim=16, num_heads=2, feedforward_dim=16)
    model = replace(
        MODELS["quartznet"], heads={"attention": AttentionDecoder(decoder=decoder), "ctc": CTC()}, primary="attention"
    )
    with pytest.raises(UserError, match=r"head attention \(AttentionDecoder\) .* --head ctc"):
        list(export(untrained(model, zeros=True), tmp_path / "out", to="onnx"))

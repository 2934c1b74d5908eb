"""Files of streaming recognisers: features and encoder of windows, whose states the program keeps."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime
import pytest
from exporting.small_models import LAYERS_OF_LSTM, MODELS, STREAMING
from exporting.test_export_targets import CLOSE, log_probs, recordings
from exporting.test_sherpa import opened
from exporting.untrained import untrained
from support import assert_within, relative

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.stages import NormaliseByDataSet, Stack
from asr_jax.audio.streaming import FeatureWindows, SampleBuffer
from asr_jax.core.errors import RunError, UserError
from asr_jax.exporting import sherpa_streaming, windows
from asr_jax.exporting.targets import export
from asr_jax.exporting.windows import packed, unpacked
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.models.base import Model
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.nn.decoders.parallel_decoder import TransformerDecoder

NAMES = {"streaming_lstm": (), "streaming_conformer": pytest.mark.slow, "streaming_zipformer": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, marks in NAMES.items()])
def test_windows_of_several_streams_are_those_of_the_whole(name: str, tmp_path: Path) -> None:
    """onnxruntime computes the windows of two recordings in one batch; the second one begins two windows later."""
    trained = untrained(STREAMING[name])
    list(export(trained, tmp_path / "out", to="onnx", streaming=True))
    about = json.loads((tmp_path / "out" / "model.json").read_text())["window"]
    features, model = (
        onnxruntime.InferenceSession(tmp_path / "out" / f"{part}.onnx") for part in ("features", "model")
    )
    window = trained.model.encoder.stream_window
    assert (about["size"], about["shift"]) == (window.size, window.shift)
    feature_windows = FeatureWindows(trained.model.front_end, window.size, window.shift, window.before)
    assert about["num_samples"] == feature_windows.num_samples

    audio = recordings(1.3, 0.8)
    expected = log_probs(trained, audio, "ctc")
    buffers = [SampleBuffer(feature_windows) for _ in audio]
    for buffer, samples in zip(buffers, audio, strict=True):
        buffer.add(samples)
        buffer.end()
    sizes = {each.name: each.shape for each in model.get_inputs() if each.name.startswith("state_")}
    types = {each.name: np.int64 if "int64" in each.type else np.float32 for each in model.get_inputs()}
    state = {name: np.zeros([2, *shape[1:]], types[name]) for name, shape in sizes.items()}
    names = [each.name for each in model.get_outputs()]
    found: list[list[np.ndarray]] = [[], []]
    for step in range(100):
        ready = [buffer.is_ready and (row == 0 or step >= 2) for row, buffer in enumerate(buffers)]
        if not any(ready) and step > 2:
            break
        given = np.zeros((2, feature_windows.num_samples), np.float32)
        lengths, skipped = np.zeros(2, np.int64), np.zeros(2, np.int64)
        for row in np.flatnonzero(ready):
            taken = buffers[row].take()
            given[row], lengths[row], skipped[row] = taken.samples / 32768, taken.length, taken.skipped
        frames = features.run(None, {"audio": given, "audio_lengths": lengths, "skipped": skipped})
        outputs = dict(
            zip(names, model.run(None, {"frames": frames[0], "frames_lengths": frames[1], **state}), strict=True)
        )
        for row in np.flatnonzero(ready):
            found[row].append(outputs["log_probs"][row, : outputs["log_probs_lengths"][row]])
            for key in state:
                state[key][row] = outputs["next_" + key][row]
    for row, want in enumerate(expected):
        assert_within(relative(np.concatenate(found[row]), want), CLOSE, what=f"{name}, stream {row}")


def test_samples_of_windows_as_the_page_tells() -> None:
    """docs/export.md has the samples of window n of a recording, which a program outside of this package takes."""
    for name in ("streaming_lstm", "streaming_conformer"):
        model = STREAMING[name].build(vocab_size=10, blank_id=0, precision="f32")
        front_end, window = model.front_end, model.encoder.stream_window
        feature_windows = FeatureWindows(front_end, window.size, window.shift, window.before)
        [samples] = recordings(1.3)
        buffer = SampleBuffer(feature_windows)
        buffer.add(samples)
        buffer.end()
        for n in range(100):
            if not buffer.is_ready:
                break
            taken, frame = buffer.take(), n * window.shift - window.before
            skipped = min(frame, front_end.run_up)
            audio = samples[(frame - skipped) * front_end.hop :][: feature_windows.num_samples]
            assert (taken.skipped, taken.length) == (skipped, len(audio))
            np.testing.assert_array_equal(taken.samples[: len(audio)], audio)
        assert n > 3


STATISTICS = NormaliseByDataSet((-6.0,) * 80, (4.0,) * 80)


def stacked(stack: Stack) -> Model:
    encoder = LSTMEncoder(dim=24, num_mels=80 * stack.num, **LAYERS_OF_LSTM)
    return Model(encoder, augment=(), front_end=KaldiFbank(then=(STATISTICS, stack)))


@pytest.mark.slow
def test_overlapping_stacks_are_inside_of_the_file(tmp_path: Path) -> None:
    """A window has as many outputs as the encoder's, and sherpa-onnx opens the file by the call that is printed."""
    trained = untrained(stacked(Stack(7, 6)))
    *_, call, _times = export(trained, tmp_path / "out", to="sherpa-onnx", streaming=True)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    assert session.get_outputs()[0].shape[1] == trained.model.encoder.stream_window.outputs
    opened(tmp_path / "out", call)


@pytest.mark.slow
def test_stacks_before_windows_that_begin_before_the_stream(tmp_path: Path) -> None:
    front_end = KaldiFbank(then=(STATISTICS, Stack(2, 2), Stack(2, 1)))
    encoder = replace(STREAMING["streaming_conformer"].encoder, num_mels=320)  # type: ignore[arg-type]
    list(
        export(
            untrained(Model(encoder, augment=(), front_end=front_end)),
            tmp_path / "out",
            to="sherpa-onnx",
            streaming=True,
        )
    )


def test_stacks_with_copies_before_the_stream_are_refused(tmp_path: Path) -> None:
    trained = untrained(stacked(Stack(7, 6, "copies")), zeros=True)
    with pytest.raises(UserError, match=r'has Stack\(ends="copies"\), .* expected ends="zeros"'):
        list(export(trained, tmp_path / "out", to="sherpa-onnx", streaming=True))


@pytest.mark.slow
@pytest.mark.parametrize(("to", "module"), [("onnx", windows), ("sherpa-onnx", sherpa_streaming)])
def test_files_that_lose_the_state_are_errors(
    to: str, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = windows.streamed

    def forgetful(parts: Any, state: Any, frames: Any) -> Any:
        return computed(parts, jax.tree.map(jax.numpy.zeros_like, state), frames)

    monkeypatch.setattr(module, "streamed", forgetful)
    with pytest.raises(RunError, match=r"model.onnx: the output log_probs differs from the run's"):
        list(export(untrained(STREAMING["streaming_lstm"]), tmp_path / "out", to=to, streaming=True))
    assert not list(tmp_path.iterdir())


def test_packed_states_are_unpacked() -> None:
    rng = np.random.default_rng(0)
    state = {"a": {"b": rng.normal(size=(2, 3, 4)).astype(np.float32)}, "count": np.asarray([5, 2**23 + 1], np.int32)}
    like = jax.tree.map(lambda leaf: leaf[:1], state)
    again = unpacked(like, packed(jax.tree.map(jax.numpy.asarray, state)))
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(other, one)
        assert other.dtype == one.dtype


@pytest.mark.parametrize("to", ["onnx", "sherpa-onnx"])
@pytest.mark.parametrize(
    ("head", "message"),
    [
        (CTC(tap="layer_0"), "the head ctc cannot recognise a stream, because it reads a tap"),
        (Paraformer(decoder=TransformerDecoder(num_layers=1, num_heads=2)), "Paraformer cannot recognise a stream"),
    ],
)
def test_heads_that_do_not_stream_are_refused(to: str, head: Any, message: str, tmp_path: Path) -> None:
    """The head of a tap would otherwise read the encoder's output."""
    encoder = replace(STREAMING["streaming_conformer"].encoder, taps=("layer_0",))
    model = Model(encoder, heads={"ctc": head}, augment=())
    with pytest.raises(UserError, match=message):
        list(export(untrained(model, zeros=True), tmp_path / "out", to=to, streaming=True))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", ["onnx", "sherpa-onnx", "stablehlo"])
def test_models_that_do_not_stream_are_refused(to: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="QuartzNet cannot stream"):
        list(export(untrained(MODELS["quartznet"], zeros=True), tmp_path / "out", to=to, streaming=True))
    assert not list(tmp_path.iterdir())

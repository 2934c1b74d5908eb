"""sherpa-onnx recognises the texts of the run, for each of its kinds of models."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from exporting.small_models import MODELS, STATELESS, STREAMING
from exporting.test_export_targets import log_probs, recordings, trained_of
from exporting.untrained import LETTERS, untrained

from asr_jax.api import Run
from asr_jax.audio import presets
from asr_jax.audio.io import read_audio, write_flac
from asr_jax.core.errors import UserError
from asr_jax.exporting.parts import Features, Parts
from asr_jax.exporting.sherpa import symbols_of, tokens_file
from asr_jax.exporting.targets import export
from asr_jax.inference.trained import Trained
from asr_jax.models.base import Model
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.text.characters import CharacterTokenizer, IdTokenizer, WordTokenizer
from asr_jax.text.mixed import MixedTokenizer
from asr_jax.text.sentencepiece import SentencePieceTokenizer

KINDS = {
    "zipformer": "zipformer_ctc",
    "w2v_bert": "fire_red_asr_ctc",
    "quartznet": "omnilingual_asr_ctc",
    "wav2vec2": "omnilingual_asr_ctc",
    "paraformer": "paraformer",
    "transducer": "transducer",
}
RECOGNISE = """
import json, sys, numpy as np, sherpa_onnx, soundfile
folder, kind, method, weights, *paths = sys.argv[1:]
whole = {"decoder": f"{folder}/decoder.onnx", "joiner": f"{folder}/joiner.onnx", "decoding_method": method}
model = f"{folder}/{'encoder' if kind == 'transducer' else 'model'}{weights}.onnx"
name = {"transducer": "encoder", "paraformer": "paraformer"}.get(kind, "model")
make = getattr(sherpa_onnx.OfflineRecognizer, f"from_{kind}")
recogniser = make(**{name: model}, tokens=f"{folder}/tokens.txt", **(whole if kind == "transducer" else {}))
texts = []
for path in paths:
    samples, rate = soundfile.read(path, dtype="float32")
    stream = recogniser.create_stream()
    stream.accept_waveform(rate, samples)
    recogniser.decode_stream(stream)
    texts.append(stream.result.text)
print(json.dumps(texts))
"""


def texts_of_sherpa(folder: Path, kind: str, paths: list[Path], *, method: str = "greedy_search") -> list[str]:
    """sherpa-onnx ends the process if a file is wrong, so it runs in one of its own."""
    command = [sys.executable, "-c", RECOGNISE, str(folder), kind, method, "", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def opened(folder: Path, call: str) -> None:
    """Opens files by the call that the export printed."""
    command = [sys.executable, "-c", f"import sherpa_onnx; {call}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr


def written(tmp_path: Path, *seconds: float) -> list[Path]:
    paths = []
    for place, samples in enumerate(recordings(*seconds)):
        # Parts of other loudness, so that the labels of frames differ.
        envelope = 0.05 + np.abs(np.sin(np.arange(len(samples)) / 1500 * (place + 1)))
        paths.append(tmp_path / f"{place}.flac")
        samples = samples * envelope
        write_flac(paths[-1], np.round(samples - samples.mean()).astype(np.int16), 16000)
    return paths


def balanced(trained: Trained, samples: np.ndarray) -> Trained:
    """Changes the bias of the head so that, on average over the frames, all labels are equally likely."""
    head = trained.model.recognising
    parts = Parts(trained.model, trained.variables, head, samples)
    if head == "transducer":
        frames, _ = parts.encoder(Features.of_samples(parts)).computed()
        predicted = parts.call("begin", 1)["projected"][:, None]
        logits = np.asarray(parts.call("logits", jnp.asarray(frames[:1]), predicted))[0]
    elif head == "ctc":
        logits = log_probs(trained, [samples], head)[0]
    else:
        return trained
    output = trained.variables["params"][f"heads_{head}"]["output"]
    changed = {**output, "bias": output["bias"] - logits.mean(axis=0), "kernel": output["kernel"] / logits.std() * 3}
    changed["bias"] = changed["bias"] / logits.std() * 3
    params = trained.variables["params"]
    params = {**params, f"heads_{head}": {**params[f"heads_{head}"], "output": changed}}
    return replace(trained, variables={**trained.variables, "params": params})


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "quartznet" else pytest.mark.slow) for n in KINDS])
def test_texts_are_those_of_the_run(name: str, tmp_path: Path) -> None:
    paths = written(tmp_path, 1.3, 2.1, 3.0)
    trained = balanced(trained_of(name), read_audio(paths[0]))
    lines = list(export(trained, tmp_path / "out", to="sherpa-onnx", recording=str(paths[0])))
    [call] = [line for line in lines if f"OfflineRecognizer.from_{KINDS[name]}(" in line]
    opened(tmp_path / "out", call)
    assert json.loads((tmp_path / "out" / "model.json").read_text())["fewest_samples"] == trained.model.fewest_inputs()
    # Each recording alone: sherpa-onnx sets its level for models of samples, and the file sets that of the first one.
    paths = paths[:1] if name == "quartznet" else paths
    run = Run(trained)
    expected = [run.transcribe(path).text for path in paths]
    assert len(set("".join(expected))) > 2
    found = texts_of_sherpa(tmp_path / "out", KINDS[name], paths)
    assert [text.split() for text in found] == [text.split() for text in expected]


STREAM = """
import json, sys, numpy as np, sherpa_onnx, soundfile
folder, kind, *paths = sys.argv[1:]
files = {"tokens": f"{folder}/tokens.txt"}
if kind == "transducer":
    files |= {part: f"{folder}/{part}.onnx" for part in ("encoder", "decoder", "joiner")}
else:
    files["model"] = f"{folder}/model.onnx"
recogniser = getattr(sherpa_onnx.OnlineRecognizer, f"from_{kind}")(**files)
streams = [recogniser.create_stream() for _ in paths]
for stream, path in zip(streams, paths):
    samples, rate = soundfile.read(path, dtype="float32")
    for place in range(0, len(samples), 1234):
        stream.accept_waveform(rate, samples[place : place + 1234])
    stream.input_finished()
while ready := [stream for stream in streams if recogniser.is_ready(stream)]:
    recogniser.decode_streams(ready)
print(json.dumps([recogniser.get_result(stream) for stream in streams]))
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("streaming_lstm", "zipformer2_ctc", marks=pytest.mark.slow),
        pytest.param("streaming_conformer", "zipformer2_ctc", marks=pytest.mark.slow),
        pytest.param("streaming_zipformer", "zipformer2_ctc", marks=pytest.mark.slow),
        pytest.param("streaming_transducer", "transducer", marks=pytest.mark.slow),
    ],
)
def test_texts_of_streams_are_those_of_the_run(name: str, kind: str, tmp_path: Path) -> None:
    """sherpa-onnx does not compute the last window of a stream, unless silence follows."""
    paths = written(tmp_path, 2.1, 3.0)
    trained = balanced(untrained(STREAMING[name]), read_audio(paths[0]))
    lines = list(export(trained, tmp_path / "out", to="sherpa-onnx", streaming=True, recording=str(paths[0])))
    [call] = [line for line in lines if f"OnlineRecognizer.from_{kind}(" in line]
    opened(tmp_path / "out", call)
    command = [sys.executable, "-c", STREAM, str(tmp_path / "out"), kind, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for text, path in zip(json.loads(done.stdout.splitlines()[-1]), paths, strict=True):
        stream = Run(trained).stream()
        results = [*stream.feed(read_audio(path)), *stream.finish()]
        expected = "".join(result.transcript.text for result in results if result.is_final)
        assert len(set(text)) > 1
        assert len(text) > len(expected) / 2
        assert expected.startswith(text)


def test_tokens_are_written_as_sherpa_reads_them() -> None:
    assert symbols_of(LETTERS, range(3)) == ["<blk>", "a", "b"]
    assert symbols_of(LETTERS, [9]) == ["▁"]
    assert tokens_file(["<blk>", "a"]) == "<blk> 0\na 1\n"
    vietnamese = CharacterTokenizer((None, "a", "ơ"), "none")
    assert tokens_file(symbols_of(vietnamese, range(3))).splitlines()[-1] == "〇 3"
    with_spaces = CharacterTokenizer((None, " ", "ơ"), "none")
    assert tokens_file(symbols_of(with_spaces, range(3))).splitlines()[-1] == "〇 3"
    assert symbols_of(IdTokenizer((None, "5", "12"), "none"), range(3)) == ["<blk>", "▁5", "▁12"]
    assert symbols_of(WordTokenizer((None, "yes"), "none"), range(2)) == ["<blk>", "▁yes"]
    assert symbols_of(MixedTokenizer((None, "你", "好"), "none"), range(3)) == ["<blk>", "你", "好"]
    pieces = SentencePieceTokenizer.train(["a b", "b a"], vocab_size=6, pieces="bpe", normaliser="none")
    assert symbols_of(pieces, [pieces.unknown_id, pieces.blank_id]) == ["▁⁇", "<blk>"]


@pytest.mark.parametrize("symbols", [("a\u2003b",), ("\n",), ("a▁",), ("<blk>",), ("a b",), (" ", "▁")])
def test_symbols_that_sherpa_would_change_are_refused(symbols: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="is empty, occurs twice, or has a space or ▁ behind its first character"):
        symbols_of(CharacterTokenizer((None, *symbols), "none"), range(len(symbols) + 1))


def test_words_that_sherpa_would_join_are_refused() -> None:
    with pytest.raises(UserError, match="is of the kind mixed, with words"):
        symbols_of(MixedTokenizer((None, "你", "hello"), "none"), range(3))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (MODELS["lstm_transducer"], r"this run has another front-end, LogMel: expected Kaldi's bins"),
        (
            Model(
                LSTMEncoder(dim=24, num_mels=80, layers_after=1),
                {"transducer": replace(STATELESS, durations=(0, 1, 2))},
                augment=(),
            ),
            r"without durations, and this head has durations",
        ),
        (
            replace(MODELS["conformer"], front_end=presets.whisper()),
            r"no kind of CTC models with the front-end LogMel .* this front-end does not normalise bins",
        ),
        (
            replace(MODELS["wav2vec2"], front_end=presets.wav2vec2()),
            r"this front-end does not normalise samples by the utterance. Use --to onnx",
        ),
        (replace(MODELS["paraformer"], primary="ctc"), r"no kind of CTC models with the front-end KaldiFbank"),
        (MODELS["paraformer"], r"tokenizer is of the kind characters: expected mixed"),
        (MODELS["paraformer_v2"], r"has no kind for the head paraformer \(ParaformerV2\)"),
    ],
)
def test_models_that_sherpa_does_not_run_are_refused(model, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        list(export(untrained(model, zeros=True), tmp_path / "out", to="sherpa-onnx"))
    assert not list(tmp_path.iterdir())

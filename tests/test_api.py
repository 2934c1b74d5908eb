"""Python interface: its examples, and equality with the results of the commands."""

import doctest
import json
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import soundfile

import asr_jax
from asr_jax import api
from asr_jax.cli import evaluate, transcribe
from asr_jax.core.errors import RunError, UserError
from asr_jax.data.manifests.reading import read_utterances
from tests.forked import made_corpus
from tests.support import approx

CONFIG = """
from dataclasses import replace

from tests.toy_config import experiment as toy


def experiment():
    made = toy()
    data = replace(made.data, train=("train.jsonl",), validation=("validation.jsonl",))
    training = replace(made.training, num_updates=2, validation=replace(made.training.validation, every=2))
    return replace(made, data=data, training=training)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the data and the run that the examples use."""
    folder = made_corpus(tmp_path_factory.mktemp("api") / "corpus")
    shutil.copy(folder.parent / "audio" / "24.flac", folder / "a.wav")
    (folder / "config.py").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        asr_jax.train(replace(asr_jax.load_config("config.py"), run_dir="runs/mine"))
    return folder


@pytest.fixture
def run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return asr_jax.load("runs/mine")


def test_examples(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for module in (asr_jax, api):
        found = doctest.testmod(module)
        assert not found.failed
        assert found.attempted


def assert_equal(found, expected):
    """Compares two transcripts; sums in batches of other sizes may be rounded in another way."""
    assert found.score == approx(expected.score, rel=1e-5)
    confidences = [word.confidence for word in expected.words]
    assert [word.confidence for word in found.words] == approx(confidences, rel=1e-5)
    words = tuple(replace(word, confidence=value) for word, value in zip(found.words, confidences, strict=True))
    assert replace(found, score=expected.score, words=words) == expected


def test_it_transcribes_as_the_command_does(run, folder, tmp_path):
    paths = [folder.parent / "audio" / f"{number}.flac" for number in (25, 24)]  # 24 has the samples of a.wav
    transcribe.main(["runs/mine", *map(str, paths), "--out", str(tmp_path / "out"), "--format", "json"])
    written = [json.loads((tmp_path / "out" / f"{path.stem}.json").read_text()) for path in paths]
    found = run.transcribe(paths)
    assert [each.text for each in found] == [each["text"] for each in written]
    assert_equal(run.transcribe(paths[1]), found[1])
    samples, rate_hz = soundfile.read(paths[0], dtype="int16")
    for each in run.transcribe([samples, samples / 32768], rate_hz=rate_hz):
        assert_equal(each, found[0])
    long = np.tile(samples, 9)
    assert run.transcribe(long, rate_hz=rate_hz).score < 8 * found[0].score
    assert run.transcribe([]) == []


def test_arrays_of_any_floating_type_and_rate(run, caplog):
    samples, rate_hz = soundfile.read("a.wav", dtype="float32")
    expected = run.transcribe(samples, rate_hz=rate_hz)
    for values, rate in (
        (samples.astype(np.float64), np.int64(rate_hz)), (samples[::-1][::-1], float(rate_hz)),
        (jnp.asarray(samples), rate_hz),
    ):  # fmt: skip
        assert_equal(run.transcribe(values, rate_hz=rate), expected)
    assert len(run.transcribe([samples.astype(np.float16), "a.wav"], rate_hz=rate_hz)) == 2
    assert not caplog.records
    run.transcribe(samples * 1.5 / np.abs(samples).max(), rate_hz=rate_hz)
    assert "the peak is 1.5, full scale is 1; samples are clipped" in caplog.text
    for silence in (np.zeros(16000), np.full(16000, 0.5)):
        caplog.clear()
        assert run.transcribe(silence, rate_hz=16000).text == ""
        assert "array: silent: all samples are equal" in caplog.text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full(9, 7000.0), "out of range: the peak is 7000, full scale is 1; divide the samples by 32768"),
        (np.full(9, 100.0, np.float16), "out of range: the peak is 100"),
        (np.full(9, 2.5), "out of range: the peak is 2.5"),
        (np.zeros(9, np.int32), "type int32: expected one axis of floats or int16; convert"),
        (np.zeros(9, np.uint8), "type uint8: expected one axis"),
        (np.zeros(9, np.int8), "type int8: expected one axis"),
        (np.zeros(9, bool), "type bool: expected one axis"),
        (np.zeros(9, complex), "type complex128: expected one axis"),
        (np.array([None]), "type object: expected one axis"),
        (np.zeros((9, 2)), r"the axis of 2 is that of channels, pass one of them \(audio\[:, 0\]\)"),
        (np.zeros((2, 9)), r"the axis of 2 is that of channels, pass one of them \(audio\[0\]\)"),
        (np.zeros((1, 2, 3)), r"shape \(1, 2, 3\)"),
        (np.array([0, np.inf, np.nan]), "2 NaN or infinite values"),
    ],
)
def test_samples_of_another_scale_type_or_shape_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        api._location(values, 16000, "", 0)


@pytest.mark.parametrize("rate_hz", [None, 0, -16000, 16, 16000.5, "16000", True, 10**9, float("nan")])
def test_rates_of_arrays_are_whole_numbers_in_hz(rate_hz):
    with pytest.raises(UserError, match=r"rate_hz is .*: expected its sample rate in Hz, a whole number from 1000 to"):
        api._location(np.zeros(9), rate_hz, "", 0)


def test_it_evaluates_as_the_command_does(run, tmp_path):
    evaluate.main(["runs/mine", "--data", "test.jsonl", "--json", str(tmp_path / "out.json")])
    (written,) = json.loads((tmp_path / "out.json").read_text())["runs"]
    found = json.loads(json.dumps(run.evaluate("test.jsonl")))
    counts = written.pop("sets")["test.jsonl"]
    assert found == written | {name: value for name, value in counts.items() if name != "max_duration_s"}
    assert (found["head"], found["decoding"]) == ("ctc", "greedy")
    (checkpoint,) = {found["checkpoint"]}
    assert asr_jax.load(f"runs/mine/checkpoints/{checkpoint}").evaluate("test.jsonl") == run.evaluate("test.jsonl")


def test_batches_are_those_of_the_call_and_change_no_result(run):
    """One file has one row for each of the four devices, whatever the batches of training are."""
    text = run.transcribe("a.wav").text
    assert {signal[0] for signal, _ in run._decoder.programs.compiled} == {4}
    small = asr_jax.load("runs/mine", batch_seconds=1.0, batch_size=4)
    assert small.trained.plan(read_utterances(["test.jsonl"])).plan.buckets[-1].batch_size == 4
    for name in ("wer", "cer", "utterances", "words"):
        assert small.evaluate("test.jsonl")[name] == run.evaluate("test.jsonl")[name]
    assert small.transcribe("a.wav").text == text
    utterances = read_utterances(["test.jsonl"])
    assert not run.trained.plan(utterances).windowed_rows
    in_windows = asr_jax.load("runs/mine", max_duration=0.8).trained.plan(utterances).windowed_rows
    assert len(in_windows) == sum(utterance.duration_s > 0.8 for utterance in utterances) > 0
    with pytest.raises(ValueError, match="batch_size is 0: expected at least 1"):
        asr_jax.load("runs/mine", batch_size=0)


def test_it_aligns(run):
    one, two = run.align(["a.wav", "a.wav"], ["ab", "c a"])
    assert [word.text for word in two.words] == ["c", "a"]
    assert run.align("a.wav", "ab") == one
    assert 0 <= one.words[0].start_s < one.words[0].end_s


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda run: run.transcribe(np.zeros(9)), UserError, "rate_hz is None: expected its sample rate in Hz"),
        (lambda run: run.transcribe(np.zeros((9, 2)), rate_hz=16000), UserError, r"shape \(9, 2\)"),
        (lambda run: run.transcribe(np.full(9, np.nan), rate_hz=16000), UserError, "NaN or infinite"),
        (lambda run: run.transcribe(np.zeros(0), rate_hz=16000), UserError, "empty array"),
        (lambda run: run.align("a.wav", "ab2 ca"), RunError, "a.wav: .*'2'"),
        (lambda run: run.transcribe(["a.wav", "none.wav"]), RunError, "none.wav: .*o such file"),
        (lambda run: run.align("a.wav", ["a", "b"]), UserError, "2 texts for 1 recording"),
        (lambda run: run.align("a.wav", "ab" * 900), RunError, "fewer frames than its labels need"),
        (lambda run: run.evaluate("none.jsonl"), UserError, "none.jsonl"),
        (
            lambda run: asr_jax.load("runs/mine", head="rnnt"), UserError,
            "'rnnt' is not a recognising head of the model: expected one of ctc",
        ),
        (lambda run: asr_jax.load("runs/none"), UserError, "none"),
    ],
)  # fmt: skip
def test_errors_state_what_is_wrong(run, call, error, message):
    with pytest.raises(error, match=message):
        call(run)


def test_the_import_is_quick_and_brings_no_jax():
    code = "import asr_jax, sys; print([name for name in ('jax', 'flax', 'numpy') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        asr_jax.nothing  # noqa: B018


def test_first_steps(folder, tmp_path, monkeypatch, capsys):
    """The notebook in examples/ with other data and another config."""
    monkeypatch.chdir(folder)
    for name, value in (("DATA", folder), ("RUN", tmp_path / "run"), ("CONFIG", "config.py")):
        monkeypatch.setenv(f"FIRST_STEPS_{name}", str(value))
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "first_steps.py"))
    assert "WER" in capsys.readouterr().out


def test_a_dry_run_writes_nothing(folder, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(folder)
    experiment = replace(asr_jax.load_config("config.py"), run_dir=str(tmp_path / "dry"), dry_run=True)
    assert asr_jax.train(experiment) == {}
    assert not (tmp_path / "dry").exists()
    assert "dry run" in capsys.readouterr().out

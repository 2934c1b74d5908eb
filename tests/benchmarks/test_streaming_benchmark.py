"""Benchmark of streaming: its measurements of a small run with two contexts, and the number of streams of a core."""

import json
import os

import pytest
from recordings import jsonl, write

import asr_jax
from asr_jax.cli import train
from asr_jax.cli.command_line import load_config
from asr_jax.config import save_experiment
from asr_jax.core.environment import NUM_CORES
from asr_jax.core.errors import UserError
from asr_jax.models.encoder import Context
from benchmarks import streaming
from tests.cli.test_transcribe import sound
from tests.support import approx

CONFIG = """
from dataclasses import replace

from asr_jax.audio.features import KaldiFbank
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.encoder import Context
from tests.toy_config import experiment as toy


def experiment():
    encoder = Conformer(
        dim=16, num_layers=1, num_heads=2, kernel_size=3, causal=True, norm="layer",
        contexts=(Context(8, 16), Context(), Context(4, 16)),
    )
    # Without the weight, a model that has learnt nothing finds hardly any label.
    model = Model(encoder=encoder, front_end=KaldiFbank(), heads={"ctc": CTC(blank_weight=-1.0)}, augment=())
    return replace(toy(), model=model)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folder with test.jsonl."""
    folder = tmp_path_factory.mktemp("data")
    texts = ("ab", "ab a b", "a b", "b a", "ab b", "ba")
    for number in range(len(texts)):
        write(folder / f"{number}.flac", sound(1.0 + number / 10, number))
    lines = [{"audio_path": f"{n}.flac", "text": text, "duration": 1.0 + n / 10} for n, text in enumerate(texts)]
    jsonl(folder / "test.jsonl", *lines)
    return folder


@pytest.fixture(scope="module")
def run(data):
    """Run with one update."""
    (data / "config.py").write_text(CONFIG, encoding="utf-8")
    given = str(data / "test.jsonl")
    train.main(["--config", str(data / "config.py"), "--run-dir", str(data / "run"), "--updates", "1",
                "--training.validation.every", "1", "--data.train", given, "--data.validation", given])  # fmt: skip
    return data / "run"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(streaming, "in_process", lambda work, *arguments: work(*arguments))
    monkeypatch.setattr(streaming, "NUM_WINDOWS", {"latency": 3, "streams": 2})
    monkeypatch.setattr(streaming, "EARLY_MINUTES", 0.1)
    monkeypatch.setattr(streaming, "NUM_CORES", 1)
    monkeypatch.setattr(streaming, "most", lambda keeps_up, first: 2 * keeps_up(2))


def measured(run, data, tmp_path, part):
    out = tmp_path / "found.json"
    flags = ["--run", run, "--data", data, "--parts", part, "--minutes", 0.2, "--json", out]
    streaming.main([*map(str, flags)])
    return json.loads(out.read_text())


@pytest.mark.slow
def test_error_rates_of_all_contexts(run, data, tmp_path):
    (tmp_path / "found.json").write_text('{"times": 1}')
    found = measured(run, data, tmp_path, "accuracy")
    assert found["times"] == 1
    rows = found["accuracy"]["rows"]
    assert [row["chunk_ms"] for row in rows] == [160, 320, None]
    assert [row["other_texts"] for row in rows] == [0, 0, 0]
    assert [row["utterances"] for row in rows] == [6] * 3
    assert rows[1]["wer"] == approx(asr_jax.load(run, precision="f32").evaluate(data / "test.jsonl")["wer"])
    texts = asr_jax.load(run, precision="f32").transcribe([str(data / f"{number}.flac") for number in range(6)])
    assert any(each.text for each in texts)


@pytest.mark.slow
def test_times(run, data, tmp_path):
    rows = measured(run, data, tmp_path, "times")["times"]["rows"]
    assert [row["chunk_ms"] for row in rows] == [160, 320]
    for row in rows:
        assert 0 < row["mean_ms"] / row["chunk_ms"] == approx(row["rtf"])
        assert row["streams"] == 2
        assert list(row["processor_ms_by_streams"]) == ["2"]


@pytest.mark.slow
def test_long_recordings(run, data, tmp_path):
    stream, windows = measured(run, data, tmp_path, "long")["long"]["rows"]
    assert [stream["method"], windows["method"]] == ["as stream", "in windows"]
    for row in (stream, windows):
        assert row["chunk_ms"] == 320  # the first context
        assert 0 < row["early_mb"] <= row["peak_mb"]
        assert row["minutes"] == approx(0.2, abs=0.05)
    assert stream["words"] == windows["words"] > 6


@pytest.mark.slow
def test_the_text_of_a_long_stream_is_that_of_the_recording(run, data, tmp_path):
    path = write(tmp_path / "long.flac", sound(15.0, 9))
    loaded = asr_jax.load(run, precision="f32")
    results = loaded.stream()
    expected = [*results.feed(sound(15.0, 9)), *results.finish()]
    text, _ = streaming.as_stream(loaded.trained, path)
    assert text == " ".join(each.transcript.text for each in expected if each.is_final)
    assert text


@pytest.mark.parametrize(("capacity", "expected"), [(0, 0), (1, 1), (5, 4), (7, 6), (64, 64), (95, 64), (200, 192)])
def test_the_largest_number_of_streams(monkeypatch, capacity, expected):
    monkeypatch.undo()
    assert streaming.most(lambda number: number <= capacity, 16) == expected


def test_processes_have_the_number_of_cores():
    before = os.sched_getaffinity(0)
    with streaming.cores(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    assert len(before) == NUM_CORES


def test_the_contexts_of_a_run_are_sorted_and_needed(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG, encoding="utf-8")
    for config, has_contexts in ((tmp_path / "config.py", True), ("tests/streaming_config.py", False)):
        save_experiment(load_config(config), tmp_path / "experiment.json")
        if has_contexts:
            assert streaming.contexts_of_run(tmp_path) == [Context(4, 16), Context(8, 16), Context()]
        else:
            with pytest.raises(UserError, match="has no contexts"):
                streaming.contexts_of_run(tmp_path)

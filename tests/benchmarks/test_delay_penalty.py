"""Benchmark of the delay penalty: times of joined words, and means; its commands are replaced."""

import json

import numpy as np
import pytest

from asr_jax.audio.io import read_audio, write_flac
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.utterances import Utterance
from benchmarks import delay_penalty
from tests.support import approx


@pytest.fixture
def digits(tmp_path):
    """A manifest of tones for two digits, between silences: a take for training and one for testing of each."""
    (tmp_path / "manifests").mkdir()
    utterances = []
    for number, (text, take) in enumerate((text, take) for text in ("one", "two") for take in (0, 49)):
        tone = 5000 * np.sin(np.arange(3200 + 800 * number) / 5)
        samples = np.concatenate([np.zeros(1600), tone, np.zeros(1600)])
        path = tmp_path / f"{text}_{take}.flac"
        write_flac(path, samples.astype(np.int16), 16000)
        utterances.append(Utterance(f"{text}_jackson_{take}", str(path), text, speaker="fsdd-jackson"))
    write_manifest(tmp_path / "manifests/train.jsonl", utterances)
    return tmp_path


def test_times_of_the_words_are_those_of_the_tones(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(delay_penalty, "STRINGS", {"train": 1, "validation": 1, "test": 3})
    out = tmp_path / "out"
    delay_penalty.make_strings(digits / "manifests/train.jsonl", out)
    rows = [line.split() for line in (out / "test.ctm").read_text().splitlines()]
    for utterance in read_utterances([out / "test.jsonl"]):
        samples, own = read_audio(utterance.location, rate_hz=16000), [row for row in rows if row[0] == utterance.id]
        assert utterance.text.split() == [row[4] for row in own]
        spoken = np.zeros(len(samples), bool)
        for _, _, start, duration, word in own:
            assert float(duration) == approx({"one": 0.25, "two": 0.35}[word], abs=0.02)  # of the takes for testing
            first, end = round(16000 * float(start)), round(16000 * (float(start) + float(duration)))
            spoken[first - 16 : end + 16] = True  # the file has milliseconds
        assert np.abs(samples[~spoken]).max() < 100
        assert np.abs(samples[spoken]).mean() > 2000


def test_each_penalty_starts_from_the_weights_without_one(digits, tmp_path, monkeypatch, capsys):
    given = []

    def command(name, *arguments):
        given.append((name, arguments))
        if name == "evaluate":
            penalty, seed = map(float, arguments[0].name.split("_"))
            emission = dict.fromkeys(("mean", "p50", "p90", "p99"), 0.2 - penalty + 0.01 * seed)
            figures = {"wer": 0.1 + penalty, "words": 7, "latency": {"emission": emission}, "other": 0}
            runs = [{"head": head, "sets": {"test": figures}} for head in delay_penalty.HEADS]
            arguments[-1].parent.mkdir(parents=True)
            arguments[-1].write_text(json.dumps({"runs": runs}))

    monkeypatch.setattr(delay_penalty, "command", command)
    monkeypatch.setattr(delay_penalty, "STRINGS", {"train": 1, "validation": 1, "test": 1})
    out, found = tmp_path / "out", tmp_path / "found.json"
    flags = ["--digits", digits, "--out", out, "--penalties", "0", "0.05", "--seeds", "0", "2", "--json", found]
    delay_penalty.main([*map(str, flags)])
    trainings = [arguments for name, arguments in given if name == "train"]
    starts = [arguments[arguments.index("--init-from") + 1] for arguments in trainings if "--init-from" in arguments]
    assert starts == [out / "before_0"] * 2 + [out / "before_2"] * 2
    rows = json.loads(found.read_text())
    assert [(row["seed"], row["penalty"], row["head"]) for row in rows[:3]] == [
        (0, 0.0, "transducer"), (0, 0.0, "ctc"), (0, 0.05, "transducer"),
    ]  # fmt: skip
    assert delay_penalty.mean(rows, "ctc", 0.05) == approx(
        {"WER %": 15, "emission, ms": 160, "50 %": 160, "90 %": 160, "99 %": 160, "head": "ctc", "penalty": 0.05}
    )
    assert "mean of seeds 0, 2" in capsys.readouterr().out

"""Copies at other speeds: audio, durations, ids, and rejected recordings."""

import json

import numpy as np

from asr_jax.audio.io import read_audio, write_flac
from asr_jax.data.manifests.reading import read_utterances
from tests.forked import ROOT, finished
from tests.support import assert_within

SCRIPT = ROOT / "scripts/perturb_speed.py"


def test_copies_are_shorter_or_longer_and_named(tmp_path):
    tone = (8000 * np.sin(2 * np.pi * 400 * np.arange(16000) / 16000)).astype(np.int16)
    write_flac(tmp_path / "a.flac", tone, 16000)
    (tmp_path / "broken.flac").write_bytes(b"no audio")
    lines = [
        {"id": "a", "audio_path": "a.flac", "text": "one", "duration": 1.0, "speaker": "s"},
        {"id": "b", "audio_path": "broken.flac", "text": "two", "duration": 1.0},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for _ in range(2):  # the second call reuses the files
        done = finished(SCRIPT, "--data", tmp_path / "in.jsonl", "--out", tmp_path / "out")
        assert done.returncode == 1
        assert "2 copies could not be made" in done.stderr
        assert "broken.flac" in done.stderr
    utterances = {utterance.id: utterance for utterance in read_utterances([str(tmp_path / "out/manifest.jsonl")])}
    assert utterances.keys() == {"a", "b", "a-speed0.9", "a-speed1.1"}
    for speed in (0.9, 1.1):
        copy = utterances[f"a-speed{speed}"]
        assert (copy.text, copy.speaker) == ("one", "s")
        samples = read_audio(copy.location)
        assert abs(len(samples) - 16000 / speed) <= 1
        assert_within(abs(copy.duration_s - 1 / speed), 1e-3)
        strongest = np.argmax(np.abs(np.fft.rfft(samples))) * 16000 / len(samples)
        assert abs(strongest - 400 * speed) < 2
    for wrong, message in (
        ([tmp_path / "out/manifest.jsonl"], "a-speed0.9 is already a copy at another speed"),
        ([tmp_path / "in.jsonl", "--speeds", "1.1", "1.1"], "expected distinct speeds"),
        ([tmp_path / "in.jsonl", "--rate-hz", "0"], "--rate-hz 0: expected at least 1"),
    ):
        done = finished(SCRIPT, "--out", tmp_path / "out", "--data", *wrong)
        assert done.returncode == 2
        assert message in done.stderr


def test_a_folder_that_is_used_again_gives_no_copy_of_another_recording(tmp_path):
    for name, size in (("long", 16000), ("short", 4000)):
        write_flac(tmp_path / f"{name}.flac", np.full(size, 900, np.int16), 16000)
        line = {"id": name, "audio_path": f"{name}.flac", "text": name, "duration": size / 16000}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
        assert finished(SCRIPT, "--data", tmp_path / f"{name}.jsonl", "--out", tmp_path / "out").returncode == 0
        utterances = {utterance.id: utterance for utterance in read_utterances([str(tmp_path / "out/manifest.jsonl")])}
        assert_within(abs(utterances[f"{name}-speed1.1"].duration_s - size / 16000 / 1.1), 1e-3)

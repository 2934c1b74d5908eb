"""NVIDIA's JSON of QuartzNet: one utterance per file, and thus per prepared speed."""

import json
from pathlib import Path

import pytest
from recordings import RATE, check_conversion, check_signals, jsonl, noise, read, write

from asr_jax.data.manifests.splits import split

GOOD = {"transcript": "a", "files": [{"fname": "a.wav", "duration": 1.0}], "original_duration": 1.0}


def test_as_the_preparation_script_writes_it(tmp_path: Path) -> None:
    """An array of objects as written by `convert_librispeech.py`, with paths relative to the folder of all data."""
    names = ["train-clean-100-wav/1/2/1-2-0003.wav", "train-clean-100-wav-speed-0.9/1/2/1-2-0003.wav"]
    samples = [noise(1, 16000), noise(2, 17778)]
    for name, part in zip(names, samples, strict=True):
        write(tmp_path / name, part)
    item = {
        "transcript": "they untied it",
        "files": [
            {"channels": 1, "sample_rate": 16000.0, "bitrate": 16, "duration": len(part) / RATE,
             "num_samples": len(part), "encoding": "Signed Integer PCM", "silent": False, "fname": name, "speed": speed}
            for name, part, speed in zip(names, samples, (1, 0.9), strict=True)
        ],
        "original_duration": 1.0,
        "original_num_samples": 16000,
    }  # fmt: skip
    path = tmp_path / "librispeech-train-clean-100-wav.json"
    path.write_text(json.dumps([item]))
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == [names[0], f"{names[0]}#2"]
    assert [utterance.text for utterance in utterances] == ["they untied it"] * 2
    assert [utterance.duration_s for utterance in utterances] == [1.0, 17778 / RATE]
    check_signals(utterances, samples)
    check_conversion(tmp_path, path)


def test_validation_counts_an_utterance_once(tmp_path: Path) -> None:
    """The file at speed 1 is read, or the first file if there is none at speed 1."""
    first = GOOD | {"files": [{"fname": "a-0.9.wav", "duration": 1.1, "speed": 0.9}, {"fname": "a.wav", "speed": 1}]}
    second = GOOD | {"files": [{"fname": "b-0.9.wav", "duration": 1, "speed": 0.9}, {"fname": "b-1.1", "speed": 1.1}]}
    path = jsonl(tmp_path / "m.jsonl", first, second)
    utterances = read(tmp_path, path, role="validation")
    assert [(utterance.id, utterance.duration_s) for utterance in utterances] == [("a.wav", 1.0), ("b-0.9.wav", 1.0)]


def test_utterances_stay_together_in_a_split(tmp_path: Path) -> None:
    files = [
        [{"fname": f"{i}-{speed}.wav", "duration": 1, "speed": speed} for speed in (1, 0.9, 1.1)] for i in range(60)
    ]
    path = jsonl(tmp_path / "m.jsonl", *({"transcript": "a", "files": of} for of in files))
    train, validation = split(read(tmp_path, path), share=0.1, seed=0)
    in_both = [{Path(of.location).name.partition("-")[0] for of in utterances} for utterances in (train, validation)]
    assert (len(validation), in_both[0] & in_both[1]) == (18, set())


def test_durations_that_files_lack(tmp_path: Path) -> None:
    """The original duration is that of speed 1; for another speed, the header has the duration."""
    write(tmp_path / "slow.wav", noise(2, 1778))
    files = [{"fname": "a.wav", "speed": 1}, {"fname": "b.wav"}, {"fname": "slow.wav", "speed": 0.9}]
    item = {"transcript": "a", "files": files, "original_duration": 1.25}
    utterances = read(tmp_path, jsonl(tmp_path / "m.jsonl", item))
    assert [utterance.duration_s for utterance in utterances] == [1.25, 1.25, 1778 / RATE]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"files": []}, '"files" is []; expected a list of objects, at least one'),
        ({"files": ["a.wav"]}, "expected a list of objects"),
        ({"files": [{"speed": 1}]}, 'a file without "fname"'),
        ({"files": [{"fname": "a.wav", "duration": "one"}]}, '"duration" is "one"'),
        ({"files": [{"fname": "a.wav"}], "original_duration": "one"}, '"original_duration" is "one"'),
        ({"transcript": 1}, '"transcript" is 1; expected a string'),
    ],
)
def test_a_broken_utterance_is_named_and_the_others_are_read(tmp_path: Path, changes: dict, reason: str) -> None:
    path = jsonl(tmp_path / "m.jsonl", *[GOOD] * 10, GOOD | changes, GOOD)
    utterances = read(tmp_path, path)
    assert len(utterances) == 11
    (rejected,) = utterances.rejected
    assert rejected.location == f"{path}:11"
    assert reason in rejected.reason

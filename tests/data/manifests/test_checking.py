"""Audio that is missing or has another duration is found before training, with its line in the manifest."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asr_jax.audio.io import write_flac
from asr_jax.cli import convert
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.checking import AudioCheck, check_audio
from asr_jax.data.manifests.reading import read_utterances

RATE = 16000


def manifest(folder: Path, num: int = 60, **changes: dict[str, Any]) -> str:
    """Writes a manifest of 1 s of audio; `changes` has other fields by line, such as `line_3={"duration": 2.0}`."""
    write_flac(folder / "good.flac", np.ones(RATE, np.int16), RATE)
    lines = [
        {"id": f"u{i}", "audio_path": "good.flac", "text": "a", "duration": 1.0} | changes.get(f"line_{i + 1}", {})
        for i in range(num)
    ]
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def check(path: str, **options: Any) -> AudioCheck:
    (found,) = check_audio(read_utterances([path]), [path], **options)
    return found


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"audio_path": "gone.flac"}, "no such file"),
        ({"duration": 1.06}, "the manifest has 1.06 s, the audio has 1.00 s"),
        ({"duration": 0.9}, "the manifest has 0.90 s, the audio has 1.00 s"),
        ({"duration": 1.04}, ""),
        ({"duration": 0.5, "offset": 0.2}, ""),
        ({"duration": 0.9, "offset": 0.2}, "the manifest has 0.90 s from 0.2 s, the audio has 1.00 s"),
    ],
)
def test_a_problem_is_named_with_its_line(tmp_path, fields, reason):
    found = check(manifest(tmp_path, num=5, line_3=fields))
    name = fields.get("audio_path", "good.flac")
    problems = [line for each in (found.unreadable, found.differing) for line in found.named(each)]
    assert problems == [f"{found.path}:3: {tmp_path / name}: {reason}"] * bool(reason)
    assert len(found.lines()) == bool(reason)
    found.refuse()


def test_some_of_each_input_are_opened_or_all(tmp_path):
    path = manifest(tmp_path, line_6={"audio_path": "gone.flac"})  # one in six is not opened
    assert (check(path).num_opened, check(path).num_utterances) == (50, 60)
    assert not check(path).unreadable
    assert [each.id for each in check(path, opens_all=True).unreadable] == ["u5"]


def test_an_input_of_wrong_paths_is_refused(tmp_path):
    wrong = {f"line_{i}": {"audio_path": f"wrong/{i}.flac"} for i in range(1, 61)}
    with pytest.raises(UserError, match=r"50 of 50 opened .*cannot be read.*\n.*train.jsonl:1: .*1.flac"):
        check(manifest(tmp_path, **wrong)).refuse()


def test_convert_checks_all(tmp_path, capsys):
    path = manifest(tmp_path, num=3, line_2={"audio_path": "gone.flac"})
    convert.main([path, str(tmp_path / "out.jsonl"), "--check"])
    output = capsys.readouterr().out
    assert f"{path}:2: {tmp_path / 'gone.flac'}: no such file" in output
    assert "3 utterances checked, 1 cannot be read, 0 have another duration" in output


def test_lines_of_folders(tmp_path):
    """The line is one of the file that the folder is read from: wav.scp, or a table of names without endings."""
    (tmp_path / "kaldi").mkdir()
    (tmp_path / "kaldi/wav.scp").write_text(f"u0 {tmp_path}/good.flac\nu1 {tmp_path}/gone.flac\n")
    (tmp_path / "kaldi/text").write_text("u0 a\nu1 b\n")
    (tmp_path / "kaldi/utt2dur").write_text("u0 1.0\nu1 1.0\n")
    write_flac(tmp_path / "good.flac", np.ones(RATE, np.int16), RATE)
    speech = tmp_path / "speech"
    (speech / "wavs").mkdir(parents=True)
    soundfile.write(speech / "wavs/L1.wav", np.ones(RATE, np.int16), RATE)
    (speech / "metadata.csv").write_text("L1|a|a\n")
    found = check(str(tmp_path / "kaldi"))
    assert found.named(found.unreadable) == [f"{tmp_path}/kaldi/wav.scp:2: {tmp_path}/gone.flac: no such file"]
    utterances = read_utterances([speech])
    (speech / "wavs/L1.wav").unlink()
    (found,) = check_audio(utterances, [str(speech)])
    assert found.named(found.unreadable) == [f"{speech}/metadata.csv:1: {speech}/wavs/L1.wav: no such file"]


def test_lines_of_audio_without_durations(tmp_path):
    """Such audio is opened when the manifest is read."""
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f'{{"audio_path": "wrong/{i}.flac", "text": "a"}}\n' for i in range(20)))
    expected = f"{path}:1: {tmp_path}/wrong/0.flac: no duration in the manifest, and the audio: no such file"
    with pytest.raises(UserError, match=re.escape(expected)):
        read_utterances([path])

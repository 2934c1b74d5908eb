"""The transcribe command: its inputs and outputs, rejected recordings, and existing outputs."""

import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from recordings import RATE, jsonl, write

from asr_jax.cli import train
from asr_jax.cli.transcribe import TranscribeOptions, check, main
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.text_files import read_lines
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.inference.calibration import calibrate
from asr_jax.inference.transcription import Transcriber
from asr_jax.search.ctc import CTCDecoding
from tests.support import approx


def sound(seconds, seed=0):
    rng, num = np.random.default_rng(seed), round(seconds * RATE)
    pitch = np.repeat(rng.uniform(100, 4000, num // 1600 + 1), 1600)[:num]
    return (6000 * np.sin(np.cumsum(2 * np.pi * pitch / RATE)) + rng.normal(0, 20, num)).astype(np.int16)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run with two updates, whose transcripts are meaningless but reproducible."""
    folder = tmp_path_factory.mktemp("trained")
    lines = []
    for n in range(12):
        seconds = 0.5 + 0.1 * n
        write(folder / f"{n}.flac", sound(seconds, n))
        lines.append({"audio_path": f"{n}.flac", "text": "ab a b"[: 2 + n % 5].strip(), "duration": seconds})
    sets = (jsonl(folder / "train.jsonl", *lines), jsonl(folder / "validation.jsonl", *lines[:4]))
    flags = ["--updates", "2", "--training.validation.every", "2", "--data.batching.budget", "6"]
    train.main(["--config", "tests/toy_config.py", "--run-dir", str(folder / "run"), *flags,
                "--data.train", str(sets[0]), "--data.validation", str(sets[1])])  # fmt: skip
    return str(folder / "run")


@pytest.fixture
def folder(tmp_path):
    """Folder with two short recordings, a long one, and a file that is not audio.

    The first one is longer, so it has the same shape of batches alone.
    """
    write(tmp_path / "in" / "a.flac", sound(1.1))
    write(tmp_path / "in" / "deep" / "b.wav", sound(0.7, seed=1))
    write(tmp_path / "in" / "long.flac", sound(9.5, seed=2))
    (tmp_path / "in" / "none.wav").write_bytes(b"no audio")
    return tmp_path


def printed(capsys):
    out = capsys.readouterr()
    return out.out.splitlines(), out.err


def test_folders_in_every_format(run, folder, capsys):
    audio = folder / "in"
    with pytest.raises(RunError, match="1 of 4 recordings") as error:
        main([run, str(audio)])
    assert error.value.exit_code == 1
    lines, errors = printed(capsys)
    names = ["a.flac", "long.flac", "deep/b.wav"]
    assert [line.split("\t")[0] for line in lines] == [f"{audio}/{name}" for name in names]
    assert f"rejected {audio}/none.wav: not audio" in errors
    assert "4 recordings: 3 transcribed, 1 rejected; 11.3 s of 11.3 s of audio" in errors
    texts = dict(line.split("\t") for line in lines)
    with pytest.raises(RunError):
        main([run, str(audio), "--format", "json"])
    objects = [json.loads(line) for line in printed(capsys)[0]]
    assert {each["path"]: each["text"] for each in objects} == texts
    assert [each["id"] for each in objects] == names
    assert all(0 <= word["confidence"] <= 1 for each in objects for word in each["words"])
    with pytest.raises(RunError):
        main([run, str(audio), "--format", "ctm"])
    rows = [line.split() for line in printed(capsys)[0]]
    assert [row[4] for row in rows] == [word for text in texts.values() for word in text.split()]
    with pytest.raises(UserError, match=r"4 recordings: expected --out FOLDER.* srt "):
        main([run, str(audio), "--format", "srt"])


def test_durations_are_those_that_were_decoded(run, folder, capsys):
    """In batches and in windows. Audio is used up to the manifest's duration, and differences are named."""
    durations = [("deep/b.wav", 0.8), ("a.flac", 0.5), ("long.flac", 9.8), ("long.flac", 5.0), ("deep/b.wav", 0.72)]
    rows = [{"id": f"u{i}", "audio_path": name, "duration": length} for i, (name, length) in enumerate(durations)]
    rows += [{"id": "gone", "audio_path": "long.flac", "duration": 12.0}]
    manifest = jsonl(folder / "in/manifest.jsonl", *rows)
    with pytest.raises(RunError, match="1 of 6 recordings"):
        main([run, str(manifest), "--json"])
    lines, errors = printed(capsys)
    assert [json.loads(line)["duration"] for line in lines] == [0.7, 0.5, 9.5, 5.0, 0.7]
    assert "u0: " + str(folder / "in/deep/b.wav: shorter than its manifest says: 0.70 s of 0.80 s") in errors
    assert "u1: " + str(folder / "in/a.flac: longer than its manifest says: 1.10 s, of which 0.50 s") in errors
    assert "u2: " + str(folder / "in/long.flac: shorter than its manifest says: 9.50 s of 9.80 s") in errors
    assert "u3: " + str(folder / "in/long.flac: longer than its manifest says: 9.50 s, of which 5.00 s") in errors
    assert "warning: 4 utterances used with remarks on the audio" in errors
    assert "shorter than its manifest says: 9.50 s of 12.00 s; the file may be truncated" in errors
    assert f"{manifest}: read as JSON (id, audio_path, duration)" in errors
    computed = float(re.search(r"6 recordings: 5 transcribed, 1 rejected; ([\d.]+) s of", errors)[1])
    assert 16.4 <= computed <= 16.4 + 9.5  # with windows of the rejected recording
    write(folder / "in/long5.flac", sound(9.5, seed=2)[: 5 * RATE])
    main([run, str(folder / "in/long5.flac"), str(folder / "in/long.flac")])
    assert printed(capsys)[0][0].split("\t")[1] == json.loads(lines[3])["text"]


def test_a_folder_of_results_is_gone_on_with(run, folder, capsys, monkeypatch):
    out = folder / "out"
    with pytest.raises(RunError):
        main([run, str(folder / "in"), "--format", "vtt", "--out", str(out)])
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.*")) == [
        "a.vtt", "deep/b.vtt", "long.vtt", "made_by.jsonl", "made_of.jsonl", "rejected.jsonl"
    ]  # fmt: skip
    assert (out / "a.vtt").read_text().startswith("WEBVTT\n")
    (rejected,) = map(json.loads, (out / "rejected.jsonl").read_text().splitlines())
    assert (rejected["id"], rejected["reason"][:9]) == ("none.wav", "not audio")
    with pytest.raises(UserError, match=r"greedy.* beam"):
        main([run, str(folder / "in"), "--format", "vtt", "--out", str(out), "--decoding.kind", "beam"])
    with pytest.raises(UserError, match=r"windows of the default length, but this is windows of 3 s"):
        main([run, str(folder / "in"), "--format", "vtt", "--out", str(out), "--window-seconds", "3"])
    (out / "long.vtt").unlink()
    (out / "a.vtt").write_text("kept")
    (folder / "in" / "none.wav").unlink()
    capsys.readouterr()
    main([run, str(folder / "in"), "--format", "vtt", "--out", str(out)])
    errors = printed(capsys)[1]
    assert f"already in {out}: 2 recordings of 3 (--force overwrites)" in errors
    assert "1 recording: 1 transcribed, 0 rejected; 9.5 s" in errors
    assert (out / "a.vtt").read_text() == "kept"
    assert not (out / "rejected.jsonl").exists()
    main([run, str(folder / "in"), "--format", "vtt", "--out", str(out), "--force"])
    assert (out / "a.vtt").read_text() != "kept"


def test_one_name_that_no_file_can_have_ends_no_command(run, folder, capsys):
    (folder / "in" / "deep" / "b.wav").unlink()
    (folder / "in" / "long.flac").unlink()
    names = ["narrow\u202f.flac", "new\nline.flac", "x" * 250 + ".flac"]
    for name in names:
        shutil.copy(folder / "in" / "a.flac", folder / "in" / name)
    shutil.copy(folder / "in" / "a.flac", os.fsencode(folder / "in") + b"/latin\xe9.flac")
    out = folder / "out"
    for number in (6, 3):  # the second call has only the rejected ones left
        with pytest.raises(RunError, match=f"3 of {number} recordings could not be transcribed"):
            main([run, str(folder / "in"), "--format", "textgrid", "--out", str(out)])
        assert f"in/{names[2]}: {out}/{'x' * 250}.TextGrid cannot be written: File name too long" in printed(capsys)[1]
        assert {path.stem for path in out.glob("*.TextGrid")} == {"a", "narrow\u202f", "new\nline"}
        rejected = map(json.loads, read_lines(out / "rejected.jsonl"))
        assert {each["id"] for each in rejected} == {"none.wav", names[2], r"latin\udce9.flac"}
    main([run, str(folder / "in" / names[1])])
    assert printed(capsys)[0][0].startswith(rf"{folder}/in/new\nline.flac" + "\t")


def test_one_file_for_all_is_whole_or_not_there(run, folder, capsys):
    out = folder / "all.txt"
    main([run, str(folder / "in" / "a.flac"), str(folder / "in" / "long.flac"), "--out", str(out)])
    assert [line.split("\t")[0] for line in out.read_text().splitlines()] == [
        f"{folder}/in/a.flac", f"{folder}/in/long.flac"
    ]  # fmt: skip
    empty = [line.removesuffix("\t") for line in out.read_text().splitlines() if line.endswith("\t")]
    assert ("no word was recognised in" in printed(capsys)[1]) == bool(empty)
    with pytest.raises(UserError, match=r"all\.txt already exists"):
        main([run, str(folder / "in"), "--out", str(out)])
    with pytest.raises(UserError, match="is not a run"):
        main([str(folder), str(folder / "in" / "a.flac"), "--out", str(folder / "other.txt")])
    assert {path.name for path in folder.iterdir()} == {"in", "all.txt"}


def test_standard_input(run, folder, capsys, monkeypatch):
    def given(content):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    given((folder / "in" / "a.flac").read_bytes())
    main([run, "-", "--json"])
    (line,) = printed(capsys)[0]
    given(f"{folder}/in/a.flac\n".encode())
    main([run, "-"])
    assert json.loads(line)["path"] == "stdin"
    assert printed(capsys)[0] == [f"{folder}/in/a.flac\t{json.loads(line)['text']}"]
    given(b"nothing.wav\n")
    with pytest.raises(UserError, match="no input is readable audio"):
        main([run, "-"])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="-: standard input"):
        main([run, "-"])
    main([run, f"{folder}/in/a.flac"])


def test_what_nothing_of_could_be_read_is_named_in_files_too(run, folder):
    broken, out = str(folder / "in" / "none.wav"), folder / "results"
    for more in (["--out", str(out)], ["--to-manifest", str(out / "labels.jsonl")], ["--out", str(out / "all.json")]):
        with pytest.raises(UserError, match="no input is readable audio") as error:
            main([run, broken, *more])
        assert error.value.exit_code == 2
    assert sorted(path.name for path in out.iterdir()) == ["labels.rejected.jsonl", "rejected.jsonl"]
    for file in out.iterdir():
        (line,) = map(json.loads, file.read_text().splitlines())
        assert (line["id"], line["location"]) == ("none.wav", broken)


@pytest.mark.parametrize("where", [["--to-manifest", "new/out.jsonl"], ["--out", "new/all.json"], ["--out", "new"]])
def test_what_is_broken_off_leaves_nothing(run, folder, where, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    def given():
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO((folder / "in" / "a.flac").read_bytes())))

    more = [where[0], str(folder / where[1])]
    given()
    with pytest.raises(UserError, match="no checkpoint 7"):
        main([run, "-", "--checkpoint", "7", *more])
    assert [path.name for path in folder.iterdir()] == ["in"]
    given()
    monkeypatch.setattr(Transcriber, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main([run, "-", *more])
    assert [path.name for path in folder.iterdir()] == ["in"]


def test_outputs_that_cannot_be_written_are_refused_before_the_work(run, folder, monkeypatch):
    monkeypatch.setattr(Transcriber, "__call__", lambda *_: pytest.fail("the work begins"))
    (folder / "file").write_text("")
    for more in (["--out", "file/all.json"], ["--out", "file"], ["--to-manifest", "file/out.jsonl"]):
        with pytest.raises(UserError, match="cannot be written") as error:
            main([run, f"{folder}/in/a.flac", more[0], str(folder / more[1])])
        assert error.value.exit_code == 2


def test_pseudo_labels_account_for_all_audio_and_training_reads_them(run, folder, capsys):
    out = folder / "labels" / "out.jsonl"
    with pytest.raises(RunError):
        main([run, str(folder / "in"), "--to-manifest", str(out), "--min-confidence", "0"])
    lines, errors = printed(capsys)
    assert lines == []
    assert "kept" in errors
    assert "not calibrated" not in errors, "nothing is left out by confidence"
    kept = list(read_utterances([out], cache=str(folder / "cache")))
    assert kept
    left_out = [json.loads(line) for line in (out.parent / "out.rejected.jsonl").read_text().splitlines()]
    total_s = sum(utterance.duration_s for utterance in kept) + sum(line["duration"] for line in left_out)
    assert total_s == approx(0.7 + 1.1 + 9.5, abs=0.02)
    assert "none.wav" in {line["id"] for line in left_out}
    assert not (out.parent / "out.audio").exists()
    with pytest.raises(UserError, match=r"out\.jsonl already exists"):
        main([run, str(folder / "in"), "--to-manifest", str(out)])
    main([run, f"{folder}/in/a.flac", "--to-manifest", str(out), "--min-confidence", "1", "--force"])
    assert out.read_text() == ""


@pytest.mark.parametrize(
    ("out", "flags", "form"),
    [
        (None, {}, "text"), ("o.srt", {}, "srt"), ("o.VTT", {}, "vtt"), ("o.jsonl", {}, "json"), ("o.md", {}, "text"),
        ("o.TextGrid", {}, "textgrid"), ("folder", {}, "text"), ("o.txt", {"format": "ctm"}, "ctm"),
    ],
)  # fmt: skip
def test_the_ending_of_a_file_selects_the_format(out, flags, form):
    options = TranscribeOptions(run=Path("run"), inputs=("a.wav",), out=out and Path(out), **flags)
    check(options)
    assert options.form == form


def test_confidences_that_are_not_calibrated_are_said_to_be(run, folder, capsys):
    again = [f"{folder}/in/a.flac", "--to-manifest", str(folder / "out.jsonl"), "--force"]
    main([run, *again, "--live"])
    (line,) = [line for line in printed(capsys)[1].splitlines() if "not calibrated" in line]
    assert f"python -m asr_jax.evaluate {run} --live --calibrate --data VALIDATION" in line
    calibrate(Path(run), 2, "averaged", CTCDecoding(), np.array([0.9, 0.2]), np.array([True, False]))
    main([run, *again])
    (Path(run) / "calibration.json").unlink()
    assert "not calibrated" not in printed(capsys)[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--to-manifest", "out.txt"], "expected a name that ends in .jsonl"),
        (["--to-manifest", "out.jsonl", "--out", "folder"], "expected a file"),
        (["--format", "srt", "--out", "o.vtt"], r"ends in .srt, or --format vtt"),
        (["--json", "--out", "o.srt"], r"another format than json: expected a name that ends in .json"),
        (["--min-confidence", "1.5"], "min_confidence is 1.5"),
        (["--window-seconds", "0.3", "--overlap-seconds", "0.25"], "windows of 0.3 s"),
    ],
)
def test_wrong_options_are_named(run, folder, flags, message):
    with pytest.raises(UserError, match=message):
        main([run, str(folder / "in" / "long.flac"), *flags])

"""Commands in the place of files: parsing, running, failures, and that they are run only if they are allowed."""

import gzip
import os
import re
import shlex
import stat
from pathlib import Path

import numpy as np
import pytest
from recordings import RATE, check_signals, jsonl, noise, write

from asr_jax.cli.convert import main as convert
from asr_jax.core.errors import UserError
from asr_jax.data.loading.source import open_batches
from asr_jax.data.manifests import pipes
from asr_jax.data.manifests.audio_inputs import listed, with_durations
from asr_jax.data.manifests.locations import Location, local_location
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import Utterances, read_utterances
from asr_jax.data.manifests.utterances import Rejected
from tests.data.loading.test_source import make_source
from tests.support import approx, assert_close

SAMPLES = [noise(seed, 1600 * (seed + 1)) for seed in range(3)]
ALLOWED = ReadOptions(allow_pipes=True)
FFMPEG = """#!/bin/sh
echo "ffmpeg version 0" >&2
for each in "$@"; do case "$each" in
    *.wav) path="$each";;
    *.m4a) echo "$each: Invalid data found" >&2; exit 183;;
esac; done
[ "$FAKE_SLEEP" ] && exec sleep "$FAKE_SLEEP"
exec cat "$path"
"""


@pytest.fixture
def ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of programs, first in PATH, with an ffmpeg that copies WAV files and fails for M4A files."""
    folder = tmp_path / "programs"
    program(folder / "ffmpeg", FFMPEG)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def kaldi(folder: Path, *commands: str, **files: str) -> Path:
    """Writes a Kaldi folder with an utterance u0, u1 … for each command."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wav.scp").write_text("".join(f"u{i} {command}\n" for i, command in enumerate(commands)))
    (folder / "text").write_text("".join(f"u{i} {'ab'[i % 2]}\n" for i in range(len(commands))))
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def zipped(path: Path, samples: np.ndarray) -> Path:
    """Writes a WAV file that is compressed by gzip, and its header lacks its sizes, as after a pipe."""
    content = write(path.with_suffix(""), samples).read_bytes()
    place = content.index(b"data") + 4
    path.write_bytes(gzip.compress(content[:place] + b"\xff" * 4 + content[place + 4 :]))
    return path


def read(tmp_path: Path, path: Path, options: ReadOptions = ALLOWED) -> Utterances:
    return read_utterances([path], cache=str(tmp_path / ".cache"), options=options)


@pytest.mark.parametrize(
    ("text", "path", "command"),
    [
        ("ffmpeg -i a.m4a -f wav - |", "a.m4a", "ffmpeg -i @ -f wav -"),
        ("ffmpeg -ss 0:01.5 -i 'a b.m4a' -ar 16000 -af highpass=f=200.5 -f wav pipe:1|", "a b.m4a", None),
        ("/usr/bin/ffmpeg -i x/y -f wav - |", "x/y", "ffmpeg -i @ -f wav -"),
        ("sox -v 0.9 in.wav -t wav - rate 16k gain -3 |", "in.wav", "sox -v 0.9 @ -t wav - rate 16k gain -3"),
        ("cat a.wav | sox -t wav - -t wav - speed 1.1 |", "a.wav", "cat @ | sox -t wav - -t wav - speed 1.1"),
        ("gunzip -c a |", "a", "gunzip -c @"),
        ("flac -dcs --skip=1:00 a.flac |", "a.flac", "flac -dcs --skip=1:00 @"),
        ("flac -c -d -s a.flac |", "a.flac", ""),  # only decodes the file
    ],
)
def test_commands(text: str, path: str, command: str | None) -> None:
    pipe = pipes.parsed(text, is_allowed=True)
    assert pipe.path == path
    assert command is None or pipe.command == command
    if pipe.command:
        place = Location.parse(str(Location(path, command=pipe.command, start_s=1.5)))
        assert (place.path, place.command, place.start_s) == (path, pipe.command, 1.5)
        again = pipes.parsed(pipes.written(pipe.command, pipe.path), is_allowed=True)
        assert again == pipe


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rm a.wav |", "'rm' is not among the programs that --allow-pipes runs (bunzip2, "),
        ("sh -c 'cat a.wav' |", "'sh' is not among"),
        ("sox a.wav -t wav - | tee b.wav |", "'tee' is not among"),
        ("|", "'nothing' is not among"),
        ("cat $HOME/a.wav.gz | zcat |", "'$HOME/a.wav.gz' needs a shell"),
        ("zcat `ls` |", "needs a shell"),
        ("zcat a.gz > b.wav |", "'>' needs a shell"),
        ("zcat a.gz; zcat b.gz |", "';' needs a shell"),
        ("zcat a.gz && zcat b.gz |", "'&&' needs a shell"),
        ("sox '|touch /tmp/x' -t wav - |", "'|touch /tmp/x' needs a shell"),
        ("gunzip a.wav.gz |", "gunzip does not write to standard output; expected -c among"),
        ("flac -d --skip=1 a.flac |", "flac does not write to standard output; expected -c"),
        ("ffmpeg -i a.m4a b.wav |", "ffmpeg does not write to standard output; expected - among"),
        (
            "ffmpeg -i a.m4a b.wav -f wav - |",
            "expected one input file, as an argument of its first program; found 'a.m4a', 'b",
        ),
        (
            "zcat a.gz | sox -t wav - b.wav - |",
            "expected one input file, as an argument of its first program; found 'a.gz', ",
        ),
        (
            "sox -n -t wav - synth 3 sine 300 |",
            "expected one input file, as an argument of its first program; found none",
        ),
        ("zcat 'a.gz |", "no closing quotation; expected quotes in pairs"),
    ],
)
def test_commands_that_are_not_run(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        pipes.parsed(text, is_allowed=True)


def test_the_output_is_the_audio(tmp_path: Path, ffmpeg: Path) -> None:
    """Also after conversion to JSON lines."""
    zipped(tmp_path / "0 a.wav.gz", SAMPLES[0])
    zipped(tmp_path / "1.wav.gz", SAMPLES[1])
    write(tmp_path / "2.wav", SAMPLES[2])
    path = kaldi(
        tmp_path / "data/train", "gunzip -c '0 a.wav.gz' |", f"cat {tmp_path}/1.wav.gz | zcat |",
        "ffmpeg -i 2.wav -f wav - |",
    )  # fmt: skip
    utterances = read(tmp_path, path)
    assert not utterances.rejected
    assert [utterance.duration_s for utterance in utterances] == [len(samples) / RATE for samples in SAMPLES]
    check_signals(utterances, SAMPLES)

    out = tmp_path / "out/train.jsonl"
    convert([str(path), str(out), "--allow-pipes"])
    assert f"ffmpeg -i {tmp_path}/2.wav -f wav - |" in out.read_text()
    assert list(read(tmp_path, out)) == list(utterances)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_batches(tmp_path: Path, ffmpeg: Path, workers: int) -> None:
    commands = []
    for i, samples in enumerate(SAMPLES):
        commands.append(f"ffmpeg -i {write(tmp_path / f'{i}.wav', samples)} -f wav - |")
    source = make_source(list(read(tmp_path, kaldi(tmp_path / "train", *commands))))
    num = source.plan.batches_per_epoch
    with open_batches(source, stop=num, workers=workers) as batches:
        loaded = [next(batches) for _ in range(num)]
    assert not any(batch.rejected or batch.differing for batch in loaded)
    found = {}
    for batch in (each.batch for each in loaded):
        for row in np.flatnonzero(batch.weights):
            found[int(batch.utterances[row])] = np.array(batch.audio[row, : batch.lengths[row]])
    for row, samples in enumerate(SAMPLES):
        np.testing.assert_array_equal(found[row], samples)


def test_parts_and_channels(tmp_path: Path) -> None:
    stereo = np.stack([SAMPLES[2], SAMPLES[2][::-1]], axis=1)
    zipped(tmp_path / "call.wav.gz", stereo)
    path = kaldi(
        tmp_path / "train", f"gunzip -c {tmp_path}/call.wav.gz |", segments="u0 u0 0.05 0.15\nu1 u0 0.05 -1 1\n"
    )
    (path / "text").write_text("u0 a\nu1 b\n")
    utterances = read(tmp_path, path)
    assert [utterance.duration_s for utterance in utterances] == [approx(0.1), approx(0.25)]
    mean = np.clip(np.rint(stereo[800:2400].astype(np.float32).mean(axis=1)), -32768, 32767).astype(np.int16)
    assert_close(Location.parse(utterances[0].location).audio(rate_hz=RATE), mean, atol=1)
    np.testing.assert_array_equal(Location.parse(utterances[1].location).audio(rate_hz=RATE), stereo[800:, 1])


def test_they_are_run_only_if_they_are_allowed(tmp_path: Path, ffmpeg: Path) -> None:
    """Also from the cache, and if a location of a manifest has the form that is used inside."""
    write(tmp_path / "a.wav", SAMPLES[0])
    inside = str(Location(str(tmp_path / "a.wav"), command="ffmpeg -i @ -f wav -"))
    for location in (f"ffmpeg -i {tmp_path}/a.wav -f wav - |", inside):
        rows = [{"id": f"u{i}", "audio_path": path, "text": "a"} for i, path in enumerate([location, "a.wav"])]
        path = jsonl(tmp_path / "m.jsonl", *rows)
        assert len(read(tmp_path, path)) == 2
        refused = read(tmp_path, path, ReadOptions())
        assert [utterance.id for utterance in refused] == ["u1"]
        (entry,) = refused.rejected
        assert (entry.id, entry.location) == ("u0", f"{path}: u0" if location != inside else inside)
        assert "is not run: allow it with --allow-pipes" in entry.reason
    with pytest.raises(UserError, match="is not run: allow it with --allow-pipes"):
        convert([str(kaldi(tmp_path / "train", f"ffmpeg -i {tmp_path}/a.wav -f wav - |")), str(tmp_path / "o.jsonl")])


def test_a_program_of_the_data_is_not_run(tmp_path: Path, ffmpeg: Path) -> None:
    write(tmp_path / "a.wav", SAMPLES[0])
    program(tmp_path / "ffmpeg", f"#!/bin/sh\ntouch {tmp_path}/was_run\ncat {tmp_path}/a.wav\n")
    path = kaldi(tmp_path / "train", f"{tmp_path}/ffmpeg -i {tmp_path}/a.wav -f wav - |")
    check_signals(read(tmp_path, path), SAMPLES[:1])
    assert not (tmp_path / "was_run").exists()


def test_files_that_change_are_read_again(tmp_path: Path, ffmpeg: Path) -> None:
    write(tmp_path / "a.wav", SAMPLES[0])
    path = kaldi(tmp_path / "train", f"ffmpeg -i {tmp_path}/a.wav -f wav - |")
    assert read(tmp_path, path)[0].duration_s == 0.1
    write(tmp_path / "a.wav", SAMPLES[1])
    assert read(tmp_path, path)[0].duration_s == 0.2


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (
            "ffmpeg -i bad.m4a -f wav - |",
            "ffmpeg failed with exit code 183: ffmpeg version 0 {}/bad.m4a: Invalid data f",
        ),
        ("ffmpeg -i gone.wav -f wav - |", "no such file"),
        ("zcat bad.m4a |", "zcat failed with exit code 1: "),
        ("cat bad.m4a | zcat |", "zcat failed with exit code 1: "),
        ("ffmpeg -i bad.m4a -f wav - | cat |", "ffmpeg failed with exit code 183: "),
        ("opusdec bad.m4a - |", "opusdec is not installed, or its folder is not in PATH"),
        ("cat empty.gz | zcat |", "empty (0 bytes)"),
        ("ffmpeg -i text.wav -f wav - |", "not audio that libsndfile can read"),
    ],
)
def test_failures_are_named(tmp_path: Path, ffmpeg: Path, command: str, reason: str) -> None:
    (tmp_path / "bad.m4a").write_text("no audio")
    (tmp_path / "text.wav").write_text("no audio")
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    write(tmp_path / "a.wav", SAMPLES[0])
    utterances = read(tmp_path, kaldi(tmp_path / "train", command, "ffmpeg -i a.wav -f wav - |"))
    assert [utterance.id for utterance in utterances] == ["u1"]
    (entry,) = utterances.rejected
    assert reason.format(tmp_path) in entry.reason


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path, ffmpeg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "TIMEOUT_S", 0.2)
    monkeypatch.setenv("FAKE_SLEEP", "60")
    path = write(tmp_path / "a.wav", SAMPLES[0])
    text = shlex.join(["ffmpeg", "-i", str(path), "-f", "wav", "-"]) + " |"
    with pytest.raises(UserError, match=r"the command took longer than 0.2 s: ffmpeg -i"):
        read(tmp_path, kaldi(tmp_path / "train", text))


def test_inputs_of_transcription(tmp_path: Path, ffmpeg: Path) -> None:
    path = write(tmp_path / "a.wav", SAMPLES[0])
    (tmp_path / "list.txt").write_text("ffmpeg -i a.wav -f wav - |\n")
    command = f"ffmpeg -i {path} -f wav - |"
    inputs = [str(tmp_path / "list.txt"), command, str(kaldi(tmp_path / "train", command))]
    options = {"read_stdin": lambda num: b"", "folder": os.devnull}
    entries = with_durations(listed(inputs, **options, allow_pipes=True))
    assert [entry.duration_s for entry in entries if not isinstance(entry, Rejected)] == [0.1] * 3
    entries = listed(inputs[:2], **options)
    assert all(isinstance(entry, Rejected) and "--allow-pipes" in entry.reason for entry in entries)
    with pytest.raises(UserError, match="allow it with --allow-pipes"):
        listed(inputs[2:], **options)


def test_sph2pipe_is_run_if_it_is_installed(tmp_path: Path, ffmpeg: Path) -> None:
    """It decodes shorten, which libsndfile does not."""
    text = "/kaldi/tools/sph2pipe -f wav -p -c 2 a.sph |"
    assert local_location(text, allow_pipes=True) == "a.sph#channel=1"
    program(ffmpeg / "sph2pipe", "#!/bin/sh\n")
    assert local_location(text, allow_pipes=True) == "a.sph#pipe=sph2pipe -f wav -p -c 2 @"
    assert local_location(text, allow_pipes=False) == "a.sph#channel=1"

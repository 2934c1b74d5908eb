"""The transcribe command with --stream: samples on standard input, from pipes and files, and what it prints."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from recordings import RATE, jsonl, write

import asr_jax
from asr_jax.audio.errors import AudioError
from asr_jax.cli import train
from asr_jax.cli.transcribe import main
from asr_jax.core.errors import UserError
from asr_jax.core.interrupts import Terminated
from asr_jax.inference.endpoints import Endpoints
from tests.cli.test_transcribe import sound
from tests.support import ROOT, assert_close

SOUND = sound(4.0, 7)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run with two updates, whose transcripts are meaningless but reproducible."""
    folder = tmp_path_factory.mktemp("trained")
    lines = []
    for n in range(8):
        write(folder / f"{n}.flac", sound(1.0, n))
        lines.append({"audio_path": f"{n}.flac", "text": "ab a b"[: 2 + n % 5].strip(), "duration": 1.0})
    data = str(jsonl(folder / "train.jsonl", *lines))
    train.main(["--config", "tests/streaming_config.py", "--run-dir", str(folder / "run"), "--updates", "2",
                "--training.validation.every", "2", "--data.train", data, "--data.validation", data])  # fmt: skip
    return str(folder / "run")


@pytest.fixture
def streamed(run, monkeypatch, capsys):
    """Function of bytes and flags that returns the lines and the messages of the command."""

    def of(content, *flags, given="-"):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content), 3001)))
        capsys.readouterr()
        main([run, given, "--stream", *flags])
        out = capsys.readouterr()
        return out.out.splitlines(), out.err

    return of


def finals(lines):
    return [each for each in map(json.loads, lines) if each["type"] == "final"]


def test_raw_samples_wav_files_and_named_files_have_the_same_results(streamed, run, tmp_path, capsys):
    flags = ("--json", "--longest-seconds", "1.5")
    lines, errors = streamed(SOUND.tobytes(), *flags)
    assert "ready" in errors
    found = finals(lines)
    assert len(found) >= 2
    assert all(each["words"] for each in found)
    starts = [word["start_s"] for each in found for word in each["words"]]
    assert starts == sorted(starts)
    assert [(each["start_s"], each["end_s"]) for each in found] == [
        (each["words"][0]["start_s"], each["words"][-1]["end_s"]) for each in found
    ]
    partial = [each for each in map(json.loads, lines) if each["type"] == "partial"]
    assert partial
    assert all(each["text"].startswith(each["settled"]) for each in partial)
    path = write(tmp_path / "a.wav", SOUND)
    assert streamed(path.read_bytes(), *flags)[0] == lines
    of_file, errors = streamed(b"", *flags, given=str(path))
    assert of_file == lines
    assert "ready" not in errors
    texts, _ = streamed(SOUND.tobytes(), *flags[1:])
    assert texts == [each["text"] for each in found]
    main([run, str(path), "--json", "--window-seconds", "5"])  # as a whole
    [whole] = map(json.loads, capsys.readouterr().out.splitlines())
    [one] = finals(streamed(SOUND.tobytes(), "--json", "--longest-seconds", "0", "--pause-seconds", "0")[0])
    assert one["text"] == whole["text"]
    assert one["words"] == whole["words"]


@pytest.mark.slow
def test_results_are_printed_while_the_client_waits(run):
    """The pipe gets bytes in odd pieces; the first utterance is printed before the second begins."""
    command = [sys.executable, "-m", "asr_jax.transcribe", run, "-", "--stream", "--json", "--longest-seconds", "1"]
    environment, (end, start) = os.environ | {"PYTHONPATH": str(ROOT)}, os.pipe()
    os.set_blocking(end, False)  # as some parent processes leave it
    with subprocess.Popen(
        command, stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=ROOT
    ) as process:
        client = os.fdopen(start, "wb")
        content, lines = SOUND.tobytes(), []
        first = 2 * RATE * 5 // 4 + 1  # within a sample
        for place in range(0, first, 3333):
            client.write(content[place : min(place + 3333, first)])
            client.flush()
        while not lines or json.loads(lines[-1])["type"] != "final":  # it would wait for ever if nothing came
            lines.append(process.stdout.readline())
            assert lines[-1]
        client.write(content[first:-1])
        errors = []
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
        reader.start()
        client.close()
        lines += process.stdout.readlines()
        reader.join()
    assert process.returncode == 0, errors
    assert b"the pipe ends within a sample: its last 1 byte" in errors[0]
    found = finals(lines)
    assert len(found) >= 3
    assert found[0]["end_s"] <= 1.25 < found[-1]["end_s"] <= 4.0


def test_other_rates_and_channels(streamed):
    high = np.repeat(SOUND, 2)
    file = io.BytesIO()
    soundfile.write(file, np.stack([high, high], axis=1), 2 * RATE, format="WAV", subtype="PCM_16")
    of_header = streamed(file.getvalue(), "--json")[0]
    assert of_header == streamed(high.tobytes(), "--json", "--rate-hz", str(2 * RATE))[0]
    with pytest.raises(UserError, match=f"--rate-hz {RATE} with standard input, a WAV file at {2 * RATE} Hz"):
        streamed(file.getvalue(), "--rate-hz", str(RATE))
    last = max(each["end_s"] for each in finals(of_header))
    assert 2.0 < last <= 4.05


def test_bad_input(streamed, capsys):
    with pytest.raises(AudioError, match="standard input: empty: expected raw 16-bit samples"):
        streamed(b"")
    _, errors = streamed(SOUND.tobytes()[:-1])
    assert "warning: standard input: the pipe ends within a sample: its last 1 byte" in errors
    _, errors = streamed(np.zeros(RATE, np.int16).tobytes())
    assert "warning: standard input: silent: all samples are equal" in errors
    lines, errors = streamed(SOUND[:100].tobytes())
    assert not lines
    assert "no word was recognised in standard input" in errors
    with pytest.raises(AudioError, match="no such file"):
        streamed(b"", given="missing.wav")
    assert "ready" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=["Ctrl-C", "SIGTERM"]
)
def test_results_so_far_are_printed_when_it_is_ended(run, monkeypatch, capsys, ctrl_c, number, error):
    parts = iter([SOUND.tobytes()[: 3 * RATE]])

    def read1(num):
        part = next(parts, b"")
        if not part:
            signal.raise_signal(number)
        return part

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read1=read1)))
    with pytest.raises(error):
        main([run, "-", "--stream", "--json"])
    [found] = finals(capsys.readouterr().out.splitlines())
    assert 0.5 < found["end_s"] <= 1.5
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_terminal_shows_the_text_so_far(run, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "9")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(SOUND.tobytes()))))
    main([run, "-", "--stream"])
    nothing, *shown, final = capsys.readouterr().out.split("\r\x1b[K")
    assert not nothing
    assert max(map(len, shown)) == 8 < len(final)
    assert [each for each in (*shown, final) if each.endswith("\n")] == [final]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-", "--stream", "--out", "x"], "--stream with --out"),
        (["-", "a.wav", "--stream"], "--stream with 2 inputs and format text: expected one audio file"),
        (["-", "--stream", "--format", "srt"], "format srt: expected one audio file"),
        (["-", "--stream", "--state-resets", "15", "3"], "--stream with --state-resets"),
        (["-", "--stream", "--force"], "--stream with --force"),
        (["-", "--stream", "--min-confidence", "0.5"], "--stream with --min-confidence"),
        (["-", "--stream", "--window-seconds", "9"], "--stream with --window-seconds"),
        (["-", "--stream", "--allow-pipes"], "--stream with --allow-pipes"),
        (["a.wav", "--stream", "--rate-hz", "8000"], "--rate-hz 8000 with a.wav, which has its sample rate"),
        (["-", "--rate-hz", "8000"], "--rate-hz without --stream"),
        (["-", "--silence-seconds", "0"], "--silence-seconds without --stream"),
        (["-", "--pause-seconds", "2"], "--pause-seconds without --stream"),
        (["-", "--longest-seconds", "9"], "--longest-seconds without --stream"),
        (["-", "--stream", "--rate-hz", "16"], "rate-hz"),
    ],
)
def test_options_that_streams_do_not_have(run, flags, message):
    with pytest.raises(UserError, match=message):
        main([run, *flags])


def test_the_python_interface_has_the_same_results(run, streamed):
    expected = finals(streamed(SOUND.tobytes(), "--json", "--longest-seconds", "1.5")[0])
    loaded = asr_jax.load(run)
    stream, results = loaded.stream(endpoints=Endpoints(longest_s=1.5)), []
    for part in np.array_split((SOUND / 32768).astype(np.float32), 7):
        results += stream.feed(part)
    results += stream.feed(np.zeros(0)) + stream.finish()
    found = [each.transcript for each in results if each.is_final]
    assert [each.text for each in found] == [each["text"] for each in expected]
    assert_close(found[-1].words[-1].end_s, expected[-1]["end_s"], atol=1e-3)
    at_another_rate = loaded.stream(rate_hz=8000)
    assert not at_another_rate.feed(SOUND[:50])
    assert isinstance(at_another_rate.finish(), list)
    for call in (lambda: at_another_rate.feed(SOUND), lambda: at_another_rate.feed(SOUND[:0]), at_another_rate.finish):
        with pytest.raises(UserError, match="stream 0 is not open"):
            call()
    with pytest.raises(UserError, match="audio is of type float: expected"):
        loaded.stream().feed(0.5)
    with pytest.raises(UserError, match="rate_hz is 16"):
        loaded.stream(rate_hz=16)

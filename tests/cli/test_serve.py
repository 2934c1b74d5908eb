"""The serve command: options, its messages, and SIGTERM, which open requests survive."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from recordings import jsonl, write

from asr_jax.cli import train
from asr_jax.cli.serve import is_of_this_machine, main, read_token
from asr_jax.core.errors import UserError
from tests.cli.test_transcribe import sound

PATH = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run with two updates, whose transcripts are meaningless but reproducible."""
    folder = tmp_path_factory.mktemp("trained")
    lines = []
    for n in range(8):
        write(folder / f"{n}.flac", sound(1.0, n))
        lines.append({"audio_path": f"{n}.flac", "text": "ab a b"[: 2 + n % 5].strip(), "duration": 1.0})
    data = str(jsonl(folder / "train.jsonl", *lines))
    train.main(["--config", "tests/toy_config.py", "--run-dir", str(folder / "run"), "--updates", "2",
                "--training.validation.every", "2", "--data.train", data, "--data.validation", data])  # fmt: skip
    return folder / "run"


@pytest.mark.slow
def test_sigterm_drains(run):
    """A long recording is being recognised: it is answered, another request gets 503, and the exit code is 0."""
    command = [sys.executable, "-m", "asr_jax.serve", str(run), "--port", "0", "--max-streams", "0"]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if line == "ready\n":
                    break
            url = re.search(r"listening at (http://127\.0\.0\.1:\d+)", "".join(lines))[1]
            rest = threading.Thread(target=lambda: lines.extend(process.stderr))
            rest.start()
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as client, ThreadPoolExecutor(1) as pool:
                data, long = {"model": "run"}, write(run.parent / "long.wav", sound(300.0, 9)).read_bytes()
                short = (run.parent / "0.flac").read_bytes()
                assert client.post(PATH, files={"file": short}, data=data).status_code == 200
                waiting = pool.submit(client.post, PATH, files={"file": long}, data=data)
                while not re.search(r"asr_jax_open_requests 1", client.get("/metrics").text):
                    pass
                process.send_signal(signal.SIGTERM)
                while (answer := client.post(PATH, files={"file": short}, data=data)).status_code == 200:
                    pass  # the signal has not arrived
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "shutting_down"
                assert waiting.result().status_code == 200
                assert waiting.result().json()["usage"]["seconds"] == 300
            assert process.wait(60) == 0, lines
            rest.join()
            assert "ending: open requests are answered, and new ones are refused\n" in lines
            assert "Traceback" not in "".join(lines)
        finally:
            process.kill()


def test_wrong_options(run, tmp_path):
    for content in ("", "two words", "é"):
        (tmp_path / "token").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match="has no token"):
            main([str(run), "--token-file", str(tmp_path / "token")])
    with pytest.raises(UserError, match="cannot be read"):
        main([str(run), "--token-file", str(tmp_path / "none")])
    (tmp_path / "token").write_text("a-secret\n")
    assert read_token(tmp_path / "token") == "a-secret"
    with pytest.raises(UserError, match="port is 70000"):
        main([str(run), "--port", "70000"])
    with pytest.raises(UserError, match="none"):
        main([str(tmp_path / "none")])


def test_an_address_that_is_used(run):
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        with pytest.raises(UserError, match=f"^port {port} is in use: choose another --port$"):
            main([str(run), "--port", str(port)])


def test_missing_packages(run, monkeypatch):
    monkeypatch.setattr("asr_jax.cli.serve.PACKAGES", ("starlette", "no_such_package"))
    with pytest.raises(UserError, match=r"needs no_such_package: ASR_JAX_EXTRAS=serve "):
        main([str(run)])


def test_addresses():
    assert is_of_this_machine("127.0.0.1")
    assert is_of_this_machine("::1")
    assert is_of_this_machine("localhost")
    assert not is_of_this_machine("0.0.0.0")
    assert not is_of_this_machine("asr.example.org")

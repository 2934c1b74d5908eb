"""Measures the server under load, compared with `transcribe` of the same files in the same run.

    python -m benchmarks.serving --run RUN --data DIR|MANIFEST [--minutes 5] [--clients 32] [--json OUT]

The files are transcribed as by the command `transcribe`, once to compile and once to measure. Then a server is started,
and clients on the loopback interface send the same files in a random order, each one request after the other. Texts,
words and times of each answer are compared with those of `transcribe`. The files are transcribed once more at the end,
and the mean of both speeds is used, because other work on the machine may change.

The memory is the resident memory of the server and its processes before the first request, and ten times during the
load.
"""

import http.client
import itertools
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from asr_jax.core.errors import RunError
from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import PositiveFloat, PositiveInt, command_options
from asr_jax.data.manifests.audio_inputs import listed, with_durations
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference.importing import run_and_checkpoint
from asr_jax.inference.trained import load_trained
from asr_jax.inference.transcription import Transcriber
from asr_jax.observe.tables import print_table
from asr_jax.transcripts.transcript import to_json

PATH = "/v1/audio/transcriptions"
BOUNDARY = "asr_jax_benchmark"
NUM_MEMORIES = 10
FIELDS = {"model": "it", "response_format": "verbose_json", "timestamp_granularities[]": "word"}


@command_options
class ServingOptions:
    """Options of the benchmark."""

    run: UserPath
    """Folder of a run."""
    data: UserPath
    """Folder of audio files, or a manifest."""
    minutes: PositiveFloat = 5.0
    """Duration of the load in minutes."""
    clients: PositiveInt = 32
    """Number of clients at a time."""
    files: PositiveInt = 400
    """Largest number of files."""
    json: UserPath = ""
    """File to write. Empty: none."""


@dataclass
class Load:
    """Times and outcomes of the requests of all clients."""

    seconds: list[float] = field(default_factory=list)
    """Time of each request in seconds."""
    audio_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)


def main(arguments: Sequence[str]) -> None:
    options = parse(ServingOptions, arguments, prog="python -m benchmarks.serving", about=__doc__)
    trained = load_trained(run_and_checkpoint(Path(options.run))[0])
    found = listed([options.data], read_stdin=lambda _: b"", folder="")
    # Every n-th file has lengths like those of all.
    step = max(len(found) // options.files, 1)
    utterances = [each for each in with_durations(found[::step][: options.files]) if isinstance(each, Utterance)]
    transcriber = Transcriber(trained, trained.decoder())
    expected, _ = transcribed(transcriber, utterances)
    _, before_s = transcribed(transcriber, utterances)
    bodies = [body_of(Path(each.location).read_bytes()) for each in utterances]
    lengths = [each.duration_s for each in utterances]
    with server(options) as (process, port):
        figures = loaded(options, process.pid, port, bodies, expected, lengths)
        metrics = answer(port, "GET", "/metrics", b"")[1].decode()
    _, after_s = transcribed(transcriber, utterances)
    speed = sum(lengths) * (1 / before_s + 1 / after_s) / 2
    rows, audio, computed = (metric(metrics, name) for name in ("rows", "audio_seconds", "computed_seconds"))
    figures |= {
        "files": len(lengths),
        "shortest_s": round(min(lengths), 2),
        "longest_s": round(max(lengths), 2),
        "transcribe_x_real_time": round(speed, 1),
        "ratio": round(figures["x_real_time"] / speed, 3),
        "rows": rows,
        "audio_s": round(audio),
        "computed_s": round(computed),
    }
    print_table([{"figure": name, "value": str(value)} for name, value in figures.items()])
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def transcribed(transcriber: Transcriber, utterances: Sequence[Utterance]) -> tuple[list[Any], float]:
    """Returns the words of each file with their times, and the time that it took in seconds."""
    began = time.monotonic()
    found = [
        [
            (word["text"], word["start_s"], word["end_s"])
            for word in to_json(each.transcript, each.utterance.duration_s)["words"]
        ]
        for each in transcriber(utterances)
        if each.transcript
    ]
    return found, time.monotonic() - began


def body_of(content: bytes) -> bytes:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in FIELDS.items()
    ]
    parts.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n')
    return "".join(parts).encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


@contextmanager
def server(options: ServingOptions) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yields a server that is ready, and its port."""
    command = [sys.executable, "-m", "asr_jax.serve", options.run, "--port", "0", "--name", "it", "--max-streams", "0"]
    command += ["--max-requests", str(2 * options.clients)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line == "ready\n":
                break
        else:
            raise RunError(f"the server has ended: {''.join(lines)}")
        port = int(re.search(r"listening at http://\S+:(\d+)", "".join(lines))[1])  # type: ignore[index]
        threading.Thread(target=lambda: [print(line, end="", file=sys.stderr) for line in process.stderr]).start()
        try:
            yield process, port
        finally:
            process.terminate()
            print(f"exit code of the server: {process.wait(60)}", file=sys.stderr)


def answer(port: int, method: str, path: str, body: bytes, connection: Any = None) -> tuple[int, bytes]:
    """Sends a request, on a connection of its own if there is none."""
    own = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    own.request(method, path, body, {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"} if body else {})
    with own.getresponse() as response:
        found = response.status, response.read()
    if not connection:
        own.close()
    return found


def loaded(
    options: ServingOptions,
    pid: int,
    port: int,
    bodies: Sequence[bytes],
    expected: Sequence[Any],
    lengths: Sequence[float],
) -> dict[str, Any]:
    """Sends requests for some minutes, and returns the figures."""
    load, lock = Load(), threading.Lock()
    order = list(range(len(bodies)))
    random.Random(0).shuffle(order)
    rows, began = itertools.cycle(order), time.monotonic()
    end = began + 60 * options.minutes

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while time.monotonic() < end:
            with lock:
                row = next(rows)
            sent = time.monotonic()
            try:
                status, content = answer(port, "POST", PATH, bodies[row], connection)
                outcome = outcome_of(status, content, expected[row])
            except OSError as error:
                outcome = f"lost: {type(error).__name__}"
                connection.close()
            with lock:
                load.seconds.append(time.monotonic() - sent)
                load.audio_s += lengths[row] * (outcome == "right")
                load.outcomes[outcome] += 1
        connection.close()

    threads, memory = [threading.Thread(target=client) for _ in range(options.clients)], [resident_mb(pid)]
    for thread in threads:
        thread.start()
    for _ in range(NUM_MEMORIES):
        time.sleep(60 * options.minutes / NUM_MEMORIES)
        memory.append(resident_mb(pid))
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - began
    p50, p95, p99 = np.quantile(load.seconds, (0.5, 0.95, 0.99))
    return {
        "clients": options.clients,
        "seconds": round(took_s, 1),
        "requests": len(load.seconds),
        **dict(load.outcomes),
        "x_real_time": round(load.audio_s / took_s, 1),
        "p50_s": round(float(p50), 3),
        "p95_s": round(float(p95), 3),
        "p99_s": round(float(p99), 3),
        "memory_mb": [round(each) for each in memory],
    }


def outcome_of(status: int, content: bytes, expected: Any) -> str:
    """Returns `right`, or what is wrong with an answer."""
    if status != 200:
        return f"status {status}"
    words = [(each["word"], each["start"], each["end"]) for each in json.loads(content)["words"]]
    if words == expected:
        return "right"
    return "other words" if [word[0] for word in words] != [word[0] for word in expected] else "other times"


def resident_mb(pid: int) -> float:
    """Returns the resident memory of a process and its children in megabytes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    of_all = (Path(f"/proc/{each}/status").read_text(encoding="utf-8") for each in (pid, *children))
    return sum(int(re.search(r"VmRSS:\s+(\d+)", status)[1]) for status in of_all) / 1024  # type: ignore[index]


def metric(text: str, name: str) -> float:
    return float(re.search(rf"^asr_jax_{name}_total (\S+)", text, re.MULTILINE)[1])  # type: ignore[index]


if __name__ == "__main__":
    from asr_jax.cli.command_line import run_command

    run_command(main)

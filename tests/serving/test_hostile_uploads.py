"""Hostile uploads: never an error of the server, and never a wait for others."""

import json
import socket
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from recordings import write_av

from tests.serving.servers import PATH, RATE, content, running, sound

LONGEST_S = 4.0
"""Longest time of another request meanwhile, on a machine with other work."""
SOUND = sound(0.8, 3)
MULTIPART = "multipart/form-data; boundary=xx"


def form(audio, *, name="a.wav", kind="audio/wav", end="--xx--\r\n"):
    """The body of a form with a file and the model."""
    parts = (
        f'--xx\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n--xx\r\nContent-Disposition: form-data; '
        f'name="file"; filename="{name}"\r\nContent-Type: {kind}\r\n\r\n'
    )
    return parts.encode() + audio + b"\r\n" + end.encode()


def damaged(folder):
    """Yields truncated files, and files with changed bits, of several formats."""
    rng = np.random.default_rng(0)
    m4a = write_av(folder / "a.m4a", SOUND, "aac", RATE).read_bytes()
    webm = write_av(folder / "a.webm", SOUND, "libopus", 48000).read_bytes()
    formats = {kind: content(SOUND, kind) for kind in ("wav", "flac", "mp3", "ogg")} | {"m4a": m4a, "webm": webm}
    for kind, whole in formats.items():
        for share in np.linspace(0.001, 0.99, 14):
            yield f"{kind} truncated to {share:.3f}", whole[: int(share * len(whole))]
        for number in range(22):
            flipped = np.frombuffer(whole, np.uint8).copy()
            reach = 200 if number % 2 else len(whole)  # headers, and everything
            places = rng.integers(0, min(reach, len(whole)), 1 + number)
            flipped[places] ^= (1 << rng.integers(0, 8, len(places))).astype(np.uint8)
            yield f"{kind} with {1 + number} changed bits", flipped.tobytes()
    yield from {
        "empty": b"",
        "one byte": b"R",
        "text": b"hello" * 100,
        "HTML": b"<!doctype html><script>alert(1)</script>",
        "PNG": b"\x89PNG\r\n\x1a\n" + bytes(200),
        "zip": b"PK\x03\x04" + bytes(500),
        "ELF": b"\x7fELF" + bytes(500),
        "zeros": bytes(100_000),
        "noise": rng.bytes(100_000),
        "playlist": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        "concatenation": b"ffconcat version 1.0\nfile /etc/passwd\n",
        "DASH": b'<?xml version="1.0"?><MPD><BaseURL>http://127.0.0.1/</BaseURL></MPD>',
        "reference in MP4": b"\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00mp42isom" + b"dref" * 50,
    }.items()


def bombs():
    """Yields small files of much audio, and headers of much more than there is."""
    zeros = np.zeros(1800 * RATE, np.int16)
    yield "FLAC of half an hour", content(zeros, "flac")
    yield "Ogg of two minutes", content(zeros[: 120 * RATE], "ogg")
    yield "FLAC of eight channels", content(np.zeros((60 * RATE, 8), np.int16), "flac")
    for name, size in (("2 GB", 0x7FFFFFFF), ("4 GB", 0xFFFFFFFF), ("nothing", 0)):
        head = struct.pack("<HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16)
        body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", size) + SOUND.tobytes()
        yield f"WAV of {name}", b"RIFF" + struct.pack("<I", size) + body
    for channels, rate in ((65535, RATE), (0, RATE), (1, 0), (1, 0xFFFFFFFF), (1024, 655350)):
        head = struct.pack("<HHIIHH", 1, channels, rate, 2 * RATE, 2, 16)
        body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", 9000) + bytes(9000)
        yield f"WAV of {channels} channels at {rate} Hz", b"RIFF" + struct.pack("<I", len(body)) + body
    flac = bytearray(content(SOUND, "flac"))
    flac[21:26] = b"\x0f\xff\xff\xff\xff"  # number of samples in its header
    yield "FLAC of 2^36 samples", bytes(flac)


def forms():
    """Yields bodies that are no right forms, with their type."""
    audio = content(SOUND)
    yield "no boundary", form(audio), "multipart/form-data"
    yield "another boundary", form(audio), "multipart/form-data; boundary=yy"
    yield "long boundary", form(audio), f"multipart/form-data; boundary={'y' * 5000}"
    yield "no end", form(audio, end=""), MULTIPART
    yield "cut in a header", form(audio)[:60], MULTIPART
    yield "empty form", b"", MULTIPART
    yield "no file", form(audio).replace(b"; filename", b"; other"), MULTIPART
    yield "no name", form(audio).replace(b'name="file"', b""), MULTIPART
    yield "JSON", b'{"file": "a.wav", "model": "tiny"}', "application/json"
    yield "urlencoded", b"file=/etc/passwd&model=tiny", "application/x-www-form-urlencoded"
    yield "no type", form(audio), ""
    yield "long header", b"--xx\r\nX: " + b"a" * 900_000 + b"\r\n\r\n", MULTIPART
    yield "many headers", b"--xx\r\n" + b"a: b\r\n" * 50_000 + b"\r\n", MULTIPART
    yield "many fields", b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n' * 5000 + b"--xx--", MULTIPART
    yield "many files", form(audio)[:-8] + form(audio) * 5, MULTIPART
    yield "large field", b'--xx\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n' + bytes(2_000_000), MULTIPART
    yield "unknown charset", form(audio), MULTIPART + "; charset=none"
    yield "nested", form(form(audio)), MULTIPART
    for name in ("../../../etc/passwd", "/dev/zero", "a\\..\\b", "%2e%2e%2f", "\xff\xfe", "CON", "|ls", "$(id)", "-rf"):
        yield f"name {name!r}", form(audio, name=name), MULTIPART
        yield f"damage with name {name!r}", form(b"RIFF", name=name), MULTIPART


def raw(url, head, body, *, wait_s=5.0):
    """Sends bytes that no client of HTTP would send, and returns the status line, if there is one."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=wait_s) as connection:
        try:
            connection.sendall(head.encode() + body)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(4096).split(b"\r\n")[0].decode(errors="replace")
        except OSError:
            return ""


def requests():
    """Yields heads and bodies of requests with wrong sizes."""
    start = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: {MULTIPART}\r\n"
    body = form(content(SOUND))
    for size in ("10000000000", "99999999999999999999999", "-1", "0x10", "1e9", "", str(len(body) + 1000)):
        yield f"size {size!r}", f"{start}Content-Length: {size}\r\n\r\n", body
    yield "two sizes", f"{start}Content-Length: 5\r\nContent-Length: 50\r\n\r\n", body
    yield "chunks", f"{start}Transfer-Encoding: chunked\r\n\r\n", b"FFFFFFFFFFFF\r\n" + body
    yield "no chunks", f"{start}Transfer-Encoding: chunked\r\n\r\n", b"zz\r\n"
    yield "gzip", f"{start}Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n", body
    yield "no HTTP", "\x16\x03\x01\x02\x00\x01\x00", bytes(100)
    yield "long line", f"GET /{'a' * 200_000} HTTP/1.1\r\n\r\n", b""


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_hostile_uploads(tmp_path, every):
    statuses, found, times = Counter(), [], []
    limits = {"max_bytes": 4_000_000, "max_seconds": 60.0, "decoding_seconds": 10.0, "decoding_megabytes": 400}
    with running(num_streams=0, max_requests=64, upload_seconds=10.0, **limits) as server:
        audio, is_over = content(sound(1.0, 5)), threading.Event()
        expected = server.post(audio).json()["text"]

        def others():
            with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
                while not is_over.is_set():
                    began = time.monotonic()
                    assert server.post(audio, client).json()["text"] == expected
                    times.append(time.monotonic() - began)

        def upload(given):
            group, name, body, kind = given
            with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
                answer = client.post(PATH, content=body, headers={"Content-Type": kind} if kind else {})
            if answer.status_code != 200:
                assert set(json.loads(answer.content)["error"]) == {"message", "type", "param", "code"}, name
            return group, name, answer.status_code

        files = {"damaged files, other files": damaged(tmp_path), "bombs, wrong headers of audio": bombs()}
        uploads = [(group, name, form(body), MULTIPART) for group, all_ in files.items() for name, body in all_]
        uploads = [*uploads, *(("wrong forms, names of files", *each) for each in forms())][::every]
        with ThreadPoolExecutor(7) as pool:
            checking = pool.submit(others)
            found += pool.map(upload, uploads)
            lines = list(pool.map(lambda given: (given[0], raw(server.url, *given[1:])), requests()))
            is_over.set()
            checking.result()
        statuses.update(status for _, _, status in found)
        assert len(found) + len(lines) >= 250 / every
        assert server.post(audio).json()["text"] == expected
        assert server.client.get("/health").status_code == 200
        assert server.service.num_open == 0
    wrong = [(name, status) for _, name, status in found if status not in (200, 400, 413)]
    assert not wrong, wrong
    assert not [line for line in lines if " 50" in line[1]]
    assert statuses[200] > 40 / every  # a changed bit need not matter
    assert statuses[413] >= (2 if every == 1 else 0)
    assert max(times) < LONGEST_S, f"{max(times):.1f} s"
    assert len(times) > 20 / every
    table = Counter((group, str(status)) for group, _, status in found)
    table.update(("wrong sizes of requests, no HTTP", line.split()[1] if line else "closed") for _, line in lines)
    for (group, status), number in sorted(table.items()):
        print(f"{group}: {status} {number} times")
    print(f"another client meanwhile: {len(times)} right answers, each within {max(times):.2f} s")

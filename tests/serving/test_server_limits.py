"""Limits of requests and their status codes: bytes, seconds, queue and time."""

import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from tests.serving.servers import PATH, RATE, code_of, content, running, sound, wait_until


@pytest.fixture(scope="module")
def server():
    limits = {"max_bytes": 300_000, "max_seconds": 8.0, "max_requests": 4, "max_waiting_seconds": 10.0}
    with running(num_streams=0, upload_seconds=1.0, **limits) as found:
        yield found


AUDIO = content(sound(1.0, 0))


def raw(server, head, *blocks, wait_s=0.0):
    """Sends bytes, and returns the answer until the connection closes."""
    host = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host[0], int(host[1])), timeout=20) as connection:
        connection.sendall(head)
        for block in blocks:
            connection.sendall(block)
            time.sleep(wait_s)
        answer = b""
        while block := connection.recv(1 << 16):
            answer += block
    return answer


def head(*lines):
    return "\r\n".join([f"POST {PATH} HTTP/1.1", "Host: a", *lines, "", ""]).encode()


FORM = "Content-Type: multipart/form-data; boundary=xx"


def test_bytes(server):
    assert code_of(server.post(bytes(400_000))) == (413, "request_too_large")

    def endless():
        yield b'--xx\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(10):
            yield bytes(50_000)

    headers = {"Content-Type": "multipart/form-data; boundary=xx"}
    answer = server.client.post(PATH, content=endless(), headers=headers)
    assert code_of(answer) == (413, "request_too_large")
    assert server.service.num_open == 0


def test_a_declared_size_is_refused_at_once(server):
    began = time.monotonic()
    answer = raw(server, head(FORM, "Content-Length: 10000000000"))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()
    assert time.monotonic() - began < 0.9  # it does not wait for the body


def test_a_body_that_arrives_too_slowly(server):
    began = time.monotonic()
    answer = raw(server, head(FORM, "Content-Length: 1000"), b"--xx\r\n")
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"upload_timeout" in answer
    assert time.monotonic() - began < 4
    assert server.service.num_open == 0


def test_seconds(server):
    assert server.post(content(sound(7.9, 0), "flac")).status_code == 200
    answer = server.post(content(sound(8.2, 0), "flac"))
    assert code_of(answer) == (413, "audio_too_long")
    assert answer.json()["error"]["param"] == "file"


def test_a_small_file_of_hours(server):
    """Decoding ends at the limit: the whole of it would take longer than the server lets a file take."""
    bomb = content(np.zeros(3600 * RATE, np.int16), "flac")
    assert len(bomb) < 300_000
    began = time.monotonic()
    assert code_of(server.post(bomb)) == (413, "audio_too_long")
    assert time.monotonic() - began < 3


def test_the_number_of_requests(server):
    with ThreadPoolExecutor(6) as pool, server.held():
        waiting = [pool.submit(server.post, AUDIO) for _ in range(4)]
        wait_until(lambda: server.service.num_open == 4)
        answer = server.post(AUDIO)
        assert code_of(answer) == (429, "rate_limit_exceeded")
        assert int(answer.headers["retry-after"]) >= 1
        assert server.client.get("/health").status_code == 200
    assert {each.result().status_code for each in waiting} == {200}


def test_the_audio_that_waits(server):
    long = content(sound(5.5, 0), "flac")
    with ThreadPoolExecutor(6) as pool, server.held():
        first = pool.submit(server.post, long)
        wait_until(lambda: server.service.device.waiting_s > 5)
        assert code_of(server.post(long)) == (429, "rate_limit_exceeded")
        second = pool.submit(server.post, AUDIO)
        wait_until(lambda: server.service.device.waiting_s > 6)
    assert (first.result().status_code, second.result().status_code) == (200, 200)


def test_a_client_that_leaves_takes_its_recording_away(server):
    with server.held():
        with (
            pytest.raises(httpx.ReadTimeout),
            httpx.Client(base_url=server.url, timeout=0.5, trust_env=False) as client,
        ):
            server.post(AUDIO, client)
        wait_until(lambda: server.service.num_open == 0)
        assert server.service.device.waiting_s == 0
    assert server.post(AUDIO).status_code == 200


def test_time():
    with running(num_streams=0, request_seconds=0.4) as server:
        with server.held():
            answer = server.post(AUDIO)
            assert code_of(answer) == (503, "timeout")
            assert "retry-after" in answer.headers
            events = server.post(AUDIO, stream="true").text
            assert '"code": "timeout"' in events
        assert server.post(AUDIO).status_code == 200


def test_before_and_after(capfd):
    """Requests are refused before the programs are compiled, and when the server ends; the open ones are answered."""
    with running(num_streams=0, is_ready=False) as server:
        device = server.service.device
        device.is_ready.wait(60)
        device.is_ready.clear()
        answer = server.client.get("/ready")
        assert code_of(answer) == code_of(server.post(AUDIO)) == (503, "not_ready")
        assert server.client.get("/health").status_code == 200
        device.is_ready.set()
        with ThreadPoolExecutor(1) as pool:
            with server.held():
                waiting = pool.submit(server.post, AUDIO)
                wait_until(lambda: server.service.device.waiting_s > 0)
                server.service.is_draining = True
                assert code_of(server.client.get("/ready")) == code_of(server.post(AUDIO)) == (503, "shutting_down")
                assert server.client.get("/health").status_code == 200
            assert waiting.result().status_code == 200
        wait_until(lambda: not device.is_alive())
    assert re.search(
        r"compiling (\d+) batch shapes.*\ncompiled 1 of \1\n(.*\n)*compiled \1 of \1\n", capfd.readouterr().err
    )


def test_a_long_recording_gives_way(server):
    """Short recordings do not wait for the end of a long one."""
    device, answered = server.service.device, []
    gate, before, answer = threading.Event(), device._give_way, device._answer

    def give_way(seconds):
        gate.wait(60)
        before(seconds)

    def noted(waiting, transcript):
        answered.append(waiting.duration_s)
        answer(waiting, transcript)

    device._transcriber.long_audio._tell, device._answer = give_way, noted
    try:
        with ThreadPoolExecutor(2) as pool:
            long = pool.submit(server.post, content(sound(7.9, 1), "flac"))
            wait_until(lambda: device._computing)
            short = pool.submit(server.post, AUDIO)
            wait_until(lambda: device._short)
            gate.set()
            assert (short.result().status_code, long.result().status_code) == (200, 200)
    finally:
        device._transcriber.long_audio._tell = before
        del device._answer
    assert answered == [1.0, 7.9]

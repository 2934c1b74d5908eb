"""Streams over WebSockets, of a model that streams and by segments, and their errors."""

import json
import time
from contextlib import ExitStack

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from asr_jax.inference.streaming import Streamer, StreamProgram
from tests.inference.streams import recognised
from tests.serving.servers import ENDPOINTS, RATE, content, running, sound, trained, transcribed


@pytest.fixture(scope="module")
def server():
    with running(max_seconds=30.0) as found:
        yield found


@pytest.fixture(scope="module")
def by_segments():
    """A server whose model does not stream by itself."""
    with running(num_streams=0, token="a-secret") as found:
        yield found


def opened(server, **options):
    return connect(server.socket_url, proxy=None, **options)


def sent(server, samples, start=None, size=7000):
    """Sends samples in messages, and returns all results and the code of the end."""
    with opened(server) as socket:
        if start is not None:
            socket.send(json.dumps(start))
        raw = samples.tobytes()
        for first in range(0, len(raw), size):  # also within a sample
            socket.send(raw[first : first + size])
        socket.send('{"type": "end"}')
        return received(socket)


def received(socket):
    results = []
    try:
        while True:
            results.append(json.loads(socket.recv(timeout=30)))
    except ConnectionClosed as end:
        return results, end.rcvd.code


def test_a_model_that_streams(server):
    """The results are those of the command with --stream --json."""
    samples = np.concatenate([sound(3.0, 0), np.zeros(RATE, np.int16), sound(2.5, 1)])
    streamer = Streamer(StreamProgram(trained(), trained().decoder(), num_rows=2), endpoints=ENDPOINTS)
    expected = [each.to_json() for each in recognised(streamer, [samples])]
    results, code = sent(server, samples, size=7001)
    assert code == 1000
    finals = [each for each in results if each["type"] == "final"]
    assert [each["words"] for each in finals] == [each["words"] for each in expected if each["type"] == "final"]
    assert len(finals) > 1
    assert [each["text"] for each in results] == [each["text"] for each in expected]
    assert all(each["text"].startswith(each["settled"]) for each in results if each["type"] == "partial")
    resampled, _ = sent(server, samples[::2].copy(), {"rate_hz": RATE // 2})
    assert resampled


def test_a_stream_by_segments(by_segments, tmp_path):
    samples = np.concatenate([sound(2.0, 0), np.zeros(RATE, np.int16), sound(9.0, 1)])
    results, code = sent(by_segments, samples, {"token": "a-secret"})
    assert code == 1000
    finals = [each for each in results if each["type"] == "final"]
    assert len(finals) >= 3
    assert len(results) > len(finals)
    times = [time for each in finals for word in each["words"] for time in (word["start_s"], word["end_s"])]
    assert times == sorted(times)
    short = tmp_path / "short.wav"
    short.write_bytes(content(sound(2.0, 3)))
    [(expected, _)] = transcribed(short)
    results, _ = sent(by_segments, sound(2.0, 3), {"token": "a-secret"})
    texts = [(word["text"], word["start_s"]) for each in results if each["type"] == "final" for word in each["words"]]
    assert texts == [(word["text"], word["start_s"]) for word in expected["words"]]


def test_several_streams_and_one_too_many(server):
    samples = sound(3.0, 2)
    alone, _ = sent(server, samples)
    with opened(server) as first, opened(server) as second:
        for socket in (first, second):
            socket.send(samples.tobytes())
        # Both are open when their first results are here.
        begun = [json.loads(socket.recv(timeout=30)) for socket in (first, second)]
        with opened(server) as third:
            third.send(samples.tobytes())
            [error], code = received(third)
            assert (error["type"], error["error"]["code"], code) == ("error", "rate_limit_exceeded", 1013)
        for socket, result in zip((first, second), begun, strict=True):
            socket.send('{"type": "end"}')
            results, _ = received(socket)
            assert [result, *results] == alone
    assert sent(server, samples)[0] == alone


def test_clients_that_leave_free_their_streams(server):
    for _ in range(4):
        with opened(server) as socket:
            socket.send(sound(1.0, 0).tobytes())
            socket.recv(timeout=30)
    end = time.monotonic() + 20
    while server.service.num_streams and time.monotonic() < end:
        time.sleep(0.01)
    assert sent(server, sound(1.0, 0))[1] == 1000


WRONG = {
    "rate": ('{"rate_hz": 5}', "invalid_value", 1008),
    "bool": ('{"rate_hz": true}', "invalid_value", 1008),
    "field": ('{"rate": 16000}', "unknown_parameter", 1008),
    "no JSON": ("hello", "invalid_value", 1008),
    "no object": ("[1]", "invalid_value", 1008),
    "type": ('{"type": "finish"}', "invalid_value", 1008),
    "deep": ("[" * 100_000, "invalid_value", 1008),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_messages(server, name):
    text, code, closing = WRONG[name]
    with opened(server) as socket:
        socket.send(text)
        [error], closed = received(socket)
        assert (error["error"]["code"], closed) == (code, closing)


@pytest.mark.parametrize("text", ['{"type": "finish"}', '{"rate_hz": 8000}', '{"type": "end", "rate_hz": 8000}'])
def test_wrong_messages_after_samples(server, text):
    with opened(server) as socket:
        socket.send(bytes(100))
        socket.send(text)
        [error], closed = received(socket)
        assert (error["error"]["code"], closed) == ("invalid_value", 1008)
        assert error["error"]["message"].startswith(f"{text}: expected")


def test_sockets_without_a_message(server, monkeypatch, capfd):
    """Some may wait for a short time; then they are closed. Other requests are answered meanwhile."""
    monkeypatch.setattr("asr_jax.serving.streams.MAX_UNKNOWN", 3)
    monkeypatch.setattr("asr_jax.serving.streams.FIRST_S", 0.5)
    with ExitStack() as stack:
        sockets = [stack.enter_context(opened(server)) for _ in range(3)]
        with pytest.raises(InvalidStatus) as refused:
            opened(server)
        assert refused.value.response.status_code == 403
        assert server.client.get("/health").status_code == 200
        for socket in sockets:
            [error], code = received(socket)
            assert (error["error"]["code"], code) == ("upload_timeout", 1008)
    assert sent(server, sound(0.5, 0))[1] == 1000
    assert not capfd.readouterr().err


def test_an_error_of_the_server(server, monkeypatch, capfd):
    monkeypatch.setattr("asr_jax.serving.streams._object", lambda text: 1 / 0)
    with opened(server) as socket:
        socket.send("{}")
        assert received(socket) == ([], 1011)
    assert capfd.readouterr().err == "error: a stream has failed: ZeroDivisionError('division by zero')\n"


def test_tokens_origins_and_limits(server, by_segments):
    for message in (bytes(100), '{"token": "other"}', r'{"token": "\ud800"}'):
        with opened(by_segments) as socket:
            socket.send(message)
            [error], code = received(socket)
            assert (error["error"]["code"], code) == ("invalid_api_key", 1008)
    with opened(by_segments, additional_headers={"Authorization": "Bearer a-secret"}) as socket:
        socket.send('{"type": "end"}')
        assert received(socket) == ([], 1000)
    with opened(server, origin="http://elsewhere.example") as socket:
        [error], code = received(socket)
        assert error["error"]["code"] == "wrong_origin"
    with opened(server) as socket:
        socket.send(bytes(2 << 20))  # larger than a message may be
        assert received(socket)[1] == 1009
    results, code = sent(server, np.zeros(31 * RATE, np.int16), size=100_000)
    assert (results[-1]["error"]["code"], code) == ("audio_too_long", 1009)

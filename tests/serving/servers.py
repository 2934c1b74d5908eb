"""A server of a tiny model with random weights, in a thread of the test."""

import asyncio
import io
import json
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import httpx
import soundfile

from asr_jax.audio.presets import rnnt
from asr_jax.audio.stages import NormaliseByDataSet
from asr_jax.data.batching.limits import BatchLimits
from asr_jax.data.manifests.audio_inputs import with_durations
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.heads.ctc import CTC
from asr_jax.inference.endpoints import Endpoints
from asr_jax.inference.transcription import Transcriber
from asr_jax.models.base import Model
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.serving.device_thread import DeviceThread
from asr_jax.serving.limits import LimitOptions
from asr_jax.serving.metrics import Metrics
from asr_jax.serving.server import Server
from asr_jax.serving.service import Service
from asr_jax.serving.shapes import Shapes
from asr_jax.transcripts.transcript import to_json
from tests.inference.streams import sound, trained_of

RATE = 16000
PATH = "/v1/audio/transcriptions"
ENDPOINTS = Endpoints(silence_s=0.5, pause_s=0.3, longest_s=4.0)
MODEL = Model(
    encoder=LSTMEncoder(num_mels=240, dim=16, layers_before=1, layers_after=1),
    heads={"ctc": CTC()},
    front_end=rnnt(NormaliseByDataSet(mean=(-8.0,) * 80, deviation=(4.0,) * 80)),
    augment=(),
)


@cache
def trained():
    return replace(trained_of(MODEL, Path(mkdtemp(prefix="asr_jax-"))), limits=BatchLimits(seconds=24.0, rows=4))


def transcribed(*paths):
    """Returns the results of the command `transcribe` for files: text, words with times, and duration."""
    utterances = with_durations([Utterance(str(path), str(path)) for path in paths])
    found = list(Transcriber(trained(), trained().decoder())(utterances))
    return [(to_json(each.transcript, each.utterance.duration_s), each.utterance.duration_s) for each in found]


def content(samples, kind="wav", rate_hz=RATE):
    """Returns the content of an audio file."""
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", rate_hz, samples[:1].size, format=kind) as sound_file:
        for first in range(0, len(samples), rate_hz):  # libsndfile fails at long blocks of Ogg
            sound_file.write(samples[first : first + rate_hz])
    return file.getvalue()


class Running:
    """A server that listens at `url`."""

    def __init__(self, url, service):
        self.url, self.service = url, service
        self.client = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def post(self, given, client=None, **fields):
        """Sends a file: its content, or its name, content and type."""
        files = {"file": given if isinstance(given, tuple) else ("a.wav", given)}
        return (client or self.client).post(PATH, files=files, data={"model": "tiny"} | fields)

    @property
    def socket_url(self):
        return self.url.replace("http", "ws") + "/v1/stream"

    @contextmanager
    def held(self):
        """Holds the device before its next batch."""
        device, gate = self.service.device, threading.Event()
        before = device._next_batch
        device._next_batch = lambda: gate.wait(60) and before()
        try:
            yield
        finally:
            del device._next_batch
            gate.set()


@contextmanager
def running(*, token="", num_streams=2, is_ready=True, language="", num_lengths=1, **limits):
    """Yields a running server with a model that has the name tiny.

    Batches have few lengths of rows, because each shape is compiled.
    """
    metrics = Metrics()
    given = LimitOptions(**{"max_streams": 2, "decoders": 2, "request_seconds": 60.0, **limits})
    device = DeviceThread(trained(), trained().decoder(), metrics, num_streams=num_streams, endpoints=ENDPOINTS)
    scale = device._scale
    device._shapes = Shapes.of(trained().limits, device.longest_s, scale, num_devices=1, num_lengths=num_lengths)
    service = Service(device, metrics, limits=given, model="tiny", language=language, token=token, endpoints=ENDPOINTS)
    server = Server(service)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        found = Running(f"http://127.0.0.1:{listening.getsockname()[1]}", service)
        try:
            while is_ready and not device.is_ready.is_set():
                assert thread.is_alive(), device.failure
                time.sleep(0.02)
            assert not device.failure
            yield found
        finally:
            found.client.close()
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def code_of(response):
    """Returns the status and the code of an error, whose object must be complete."""
    error = json.loads(response.content)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return response.status_code, error["code"]


def wait_until(holds):
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def recordings(seconds):
    return [sound(each, number) for number, each in enumerate(seconds)]

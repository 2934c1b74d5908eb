"""Processes that decode audio: their limits, and what follows if one is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from asr_jax.serving.decoding import Decoders, MuchWork
from asr_jax.serving.errors import ApiError
from asr_jax.serving.limits import LimitOptions
from tests.serving.servers import RATE, code_of, content, running, sound, wait_until

AUDIO = content(sound(0.5, 0))


def decoders(action, **limits):
    """Calls an action with started decoders."""

    async def run():
        found = Decoders(LimitOptions(**{"decoders": 1, **limits}), rate_hz=RATE)
        await found.start()
        try:
            return await action(found)
        finally:
            await found.stop()

    return asyncio.run(run())


async def error_of(work):
    with pytest.raises(ApiError) as error:
        await work
    return error.value.status, error.value.code


def test_samples_and_silence():
    async def action(decode):
        found = await decode(AUDIO)
        np.testing.assert_array_equal(found.samples, sound(0.5, 0))
        assert (found.duration_s, found.is_silent) == (0.5, False)
        assert (await decode(content(np.zeros(800, np.int16)))).is_silent
        half = await decode(content(sound(0.5, 0)[:4000], rate_hz=8000))
        assert len(half.samples) == 8000
        assert decode.num_replaced == 0

    decoders(action)


def test_memory():
    """A block of ten seconds of eight channels takes 31 MB as float32. The process goes on."""

    async def action(decode):
        wide = content(np.zeros((96_000 * 10, 8), np.int16), "flac", 96_000)
        assert len(wide) < 200_000
        assert await error_of(decode(wide)) == (400, "invalid_audio")
        assert len((await decode(AUDIO)).samples) == 8000
        return decode.num_replaced

    assert decoders(action, decoding_megabytes=12) == 0


def flac(num_samples, *, rate_hz=RATE, channels=1):
    """A FLAC of a second of zeros whose header has another number of samples."""
    found = bytearray(content(np.zeros((rate_hz, channels), np.int16), "flac", rate_hz))
    found[21:26] = ((found[21] & 0xF0) << 32 | num_samples).to_bytes(5)
    return bytes(found)


@pytest.mark.parametrize(
    ("long", "most"),
    [
        (flac(3 * 3600 * RATE), "7200 s of audio: "),
        (flac(6000 * 96_000, rate_hz=96_000, channels=8), "900 s of audio in 8 channels at 96000 Hz: "),
    ],
    ids=["hours", "channels"],
)
def test_a_header_beyond_the_limits(long, most):
    """The file is refused before it is decoded, which would fail because it is truncated."""

    async def action(decode):
        with pytest.raises(ApiError, match=f"more than {most}") as error:
            await decode(long)
        assert (error.value.status, error.value.code) == (413, "audio_too_long")

    decoders(action, decoders=LimitOptions().decoders)


def test_files_with_much_work_leave_a_process_to_others():
    """Also if the header has no length, which is 0 in FLAC."""
    long = flac(40 * 96_000, rate_hz=96_000, channels=8)
    unknown = bytearray(content(np.zeros((40 * 96_000, 8), np.int16), "flac", 96_000))
    unknown[21:26] = ((unknown[21] & 0xF0) << 32).to_bytes(5)

    async def action(decode):
        gate, answer, much = asyncio.Event(), decode._answer, []

        async def held(process, given, *, is_little):
            if not is_little:
                await gate.wait()
            try:
                return await answer(process, given, is_little=is_little)
            except MuchWork:
                much.append(given)
                raise

        decode._answer = held
        waiting = [asyncio.create_task(decode(each)) for each in (long, long, bytes(unknown))]
        async with asyncio.timeout(20):
            while len(much) < 3:
                await asyncio.sleep(0.01)
            assert len((await decode(AUDIO)).samples) == 8000
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    decoders(action, decoders=LimitOptions().decoders)


def busy_process(*lines):
    """A process in place of a decoding process that does something else for each request."""
    code = ["import sys, time", "print(flush=True)", "sys.stdin.buffer.read(8)", *lines]
    return [sys.executable, "-c", "\n".join(code)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["time.sleep(60)"], (400, "invalid_audio")),
        (["import os, signal", "os.kill(os.getpid(), signal.SIGSEGV)"], (400, "invalid_audio")),
        (["import os, signal", "os.kill(os.getpid(), signal.SIGXCPU)"], (400, "invalid_audio")),
        (["import os, signal", "os.kill(os.getpid(), signal.SIGKILL)"], (503, "decoder_ended")),
        (["sys.exit(0)"], (503, "decoder_ended")),
    ],
    ids=["too long", "damage", "processor time", "killed", "ends"],
)
def test_a_process_that_ends_is_replaced(monkeypatch, lines, expected):
    create, calls = asyncio.create_subprocess_exec, []

    async def first_is_busy(*given, **options):
        calls.append(given)
        return await create(*(busy_process(*lines) if len(calls) == 1 else given), **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", first_is_busy)

    async def action(decode):
        assert await error_of(decode(AUDIO)) == expected
        assert len((await decode(AUDIO)).samples) == 8000
        return decode.num_replaced

    assert decoders(action, decoding_seconds=0.5 if "sleep" in lines[0] else 20.0) == 1


def test_a_process_that_is_killed_while_it_has_no_work(tmp_path):
    """The next request notices nothing."""

    async def action(decode):
        [process] = decode._running
        process.kill()
        await process.wait()
        assert len((await decode(AUDIO)).samples) == 8000

    decoders(action)


def test_a_process_that_cannot_be_started(monkeypatch, capfd):
    """It is tried again, with one message, and the server is not ready until it runs."""
    create = asyncio.create_subprocess_exec

    async def fails(*given, **options):
        raise BlockingIOError(11, "no more processes")

    monkeypatch.setattr("asr_jax.serving.decoding.PAUSES_S", (0.05,))
    with running(num_streams=0, decoders=1) as server:
        decoders = server.service.decoders
        assert server.post(AUDIO).status_code == 200  # its process has started
        monkeypatch.setattr(asyncio, "create_subprocess_exec", fails)
        [process] = decoders._running
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not decoders.num_running)
        assert server.client.get("/ready").status_code == 200  # the next request replaces the process
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(server.post, AUDIO)
            wait_until(lambda: decoders.failure)
            time.sleep(0.2)
            assert code_of(server.client.get("/ready")) == code_of(server.post(AUDIO)) == (503, "no_decoders")
            assert "asr_jax_decoders 0.0" in server.client.get("/metrics").text
            monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
            assert waiting.result().status_code == 200
        assert server.client.get("/ready").status_code == 200
        assert "asr_jax_decoders 1.0" in server.client.get("/metrics").text
    assert capfd.readouterr().err.count("no more processes") == 1


def test_processor_time_and_files():
    """The limits hold within the process."""
    code = """
import resource, sys
from asr_jax.serving.decoder_process import limit_memory, limit_time
limit_memory(100)
limit_time(1.0)
try:
    bytearray(200_000_000)
except MemoryError:
    print("memory", flush=True)
try:
    with open(sys.argv[1], "wb") as file:
        file.write(b"x")
except OSError as error:
    print("file", flush=True)
while True:
    pass
"""
    folder = subprocess.check_output(["mktemp", "-d"], text=True).strip()
    done = subprocess.run([sys.executable, "-c", code, f"{folder}/x"], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["memory", "file"]
    assert done.returncode == -signal.SIGXCPU


def test_others_are_answered_while_processes_are_killed():
    with running(num_streams=0) as server, ThreadPoolExecutor(4) as pool:
        assert server.post(AUDIO).status_code == 200
        answers = [pool.submit(server.post, AUDIO) for _ in range(30)]
        for _ in range(6):
            for process in list(server.service.decoders._running):
                os.kill(process.pid, signal.SIGKILL)
            answers += [pool.submit(server.post, AUDIO) for _ in range(5)]
        found = [each.result() for each in answers]
        assert {each.status_code for each in found} <= {200, 503}
        for each in found:
            if each.status_code == 503:
                assert code_of(each) == (503, "decoder_ended")
                assert "retry-after" in each.headers
        assert server.post(AUDIO).status_code == 200
        assert server.service.decoders.num_replaced > 0


def test_names_of_clients_reach_no_file(tmp_path, monkeypatch):
    """A name with a path is as good as any other; the content of files of the server is not read."""
    monkeypatch.chdir(tmp_path)
    with running(num_streams=0) as server:
        for name in ("../../etc/passwd", "/etc/passwd", "a\x00b", "x" * 500, "-", "concat:/etc/passwd"):
            assert server.post((name, AUDIO)).status_code == 200
            assert code_of(server.post((name, b"")))[1] == "invalid_audio"
    assert not list(tmp_path.iterdir())

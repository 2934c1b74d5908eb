"""Decoding of untrusted audio in processes with limits. A process that ends, or takes too long, is replaced."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int16

from asr_jax.serving.decoder_process import MUCH
from asr_jax.serving.errors import ApiError, unavailable, unusable, wrong
from asr_jax.serving.limits import LimitOptions

OWN_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGXFSZ}
"""Signals by which the content of a file can end a process. Others come from outside."""
ENDING_S = 5.0
"""Longest time in seconds that a process needs to end."""
STARTING_S = 10.0
"""Longest time in seconds that the server waits at its start for the processes."""
PAUSES_S = (0.1, 0.5, 2.0, 5.0)
"""Pauses in seconds between attempts to start a process; the last one is repeated."""
BUFFER_BYTES = 1 << 22


@dataclass(frozen=True)
class Decoded:
    """Samples of an audio file."""

    samples: Int16[np.ndarray, " S"]
    duration_s: float
    """Duration of the header in seconds."""
    is_silent: bool
    """Whether all samples are equal."""


class MuchWork(Exception):
    """Raised if a file is not decoded because it has much work."""


class Decoders:
    """Processes that decode audio files, each one file at a time. All methods belong to one event loop.

    Files with much work take all processes but one, so that the others do not wait for them.
    """

    def __init__(self, limits: LimitOptions, *, rate_hz: int) -> None:
        """Initialises without starting processes. The samples get the rate `rate_hz`."""
        self._limits, self._rate_hz = limits, rate_hz
        self._idle = asyncio.Queue[Process]()
        self._much = asyncio.Semaphore(max(limits.decoders - 1, 1))
        self._adding = set[asyncio.Task[None]]()
        self._running = set[Process]()
        self._is_stopping = asyncio.Event()
        self._why_not_started = ""
        self.num_replaced = 0
        """Number of processes that were replaced."""

    async def start(self) -> None:
        """Starts the processes. If one cannot be started, this is tried again in the background."""
        for _ in range(self._limits.decoders):
            self._add()
        await asyncio.wait(self._adding, timeout=STARTING_S)

    async def stop(self) -> None:
        """Ends the processes."""
        self._is_stopping.set()
        await asyncio.gather(*self._adding)
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*(process.wait() for process in self._running))

    @property
    def num_running(self) -> int:
        """Number of processes that run."""
        return sum(process.returncode is None for process in self._running)

    @property
    def failure(self) -> str:
        """Why no process runs; empty if one does, or is being started for the first time."""
        return "" if self.num_running else self._why_not_started

    async def __call__(self, content: bytes) -> Decoded:
        """Decodes the content of a file when a process is free.

        Raises:
            ApiError: If the content is no audio, has too many seconds, or needs too much time or memory; or if the
                process ends for another reason.
        """
        try:
            return await self._decoded(content, is_little=True)
        except MuchWork:
            async with self._much:
                return await self._decoded(content, is_little=False)

    async def _decoded(self, content: bytes, *, is_little: bool) -> Decoded:
        while (process := await self._idle.get()).returncode is not None:  # it was ended while it had no work
            self._replace(process)
        is_well = False
        try:
            async with asyncio.timeout(self._limits.decoding_seconds):
                decoded = await self._answer(process, content, is_little=is_little)
            is_well = True
        except TimeoutError:
            raise self._too_slow() from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise await self._ended(process) from None
        except (ApiError, MuchWork):
            is_well = True
            raise
        finally:
            if is_well:  # otherwise, also if the request was cancelled, its answer may still come
                self._idle.put_nowait(process)
            else:
                self._replace(process)
        return decoded

    async def _answer(self, process: Process, content: bytes, *, is_little: bool) -> Decoded:
        assert process.stdin
        assert process.stdout
        request = {"num_bytes": len(content), "is_little": is_little}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.write(content)
        await process.stdin.drain()
        line = await process.stdout.readuntil(b"\n")
        fields = json.loads(line)
        if fields.get("error") == MUCH:
            raise MuchWork
        if fields.get("error") == "audio_too_long":
            raise ApiError(413, "audio_too_long", f"{fields['message']}: send shorter files", param="file")
        if "error" in fields:
            raise unusable(fields["message"])
        read = await process.stdout.readexactly(2 * fields["num_samples"])
        return Decoded(np.frombuffer(read, "<i2"), fields["duration_s"], fields["is_silent"])

    def _too_slow(self) -> ApiError:
        seconds = self._limits.decoding_seconds
        return wrong("file", f"The audio takes more than {seconds:g} s to decode", code="invalid_audio")

    async def _ended(self, process: Process) -> ApiError:
        """Returns the error of a request whose process has ended, or closed its pipe."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), ENDING_S)
        ended_by = -(process.returncode or 0)
        if ended_by == signal.SIGXCPU:
            return self._too_slow()
        if ended_by in OWN_SIGNALS:
            return wrong("file", f"The decoder failed at this audio (signal {ended_by})", code="invalid_audio")
        return unavailable("decoder_ended", "The process that decoded the audio was ended: send the request again")

    def _replace(self, process: Process) -> None:
        """Ends a process, and starts another one in the background."""
        self._running.discard(process)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        self.num_replaced += 1
        self._add(ended=process)

    def _add(self, *, ended: Process | None = None) -> None:
        """Starts a process in the background, again and again until it runs, and waits for one that was ended."""

        async def add() -> None:
            for pause_s in itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1])):
                try:
                    self._idle.put_nowait(await self._started())
                    self._why_not_started = ""
                    break
                except Exception as error:  # mostly an OSError: no memory, too many processes or open files
                    if not self._why_not_started:
                        print(
                            f"error: a decoding process cannot be started, which is repeated: {error}", file=sys.stderr
                        )
                    self._why_not_started = str(error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_stopping.wait(), pause_s)
                if self._is_stopping.is_set():
                    break
            if ended:
                await ended.wait()

        task = asyncio.create_task(add())
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)

    async def _started(self) -> Process:
        limits = {
            "megabytes": self._limits.decoding_megabytes,
            "seconds": self._limits.decoding_seconds,
            "max_seconds": self._limits.max_seconds,
            "rate_hz": self._rate_hz,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", f"{__package__}.decoder_process", json.dumps(limits),
            stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=BUFFER_BYTES,
            start_new_session=True,  # Ctrl-C of a terminal ends the server, which ends its processes
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        self._running.add(process)
        assert process.stdout
        if not await process.stdout.readline():
            self._running.discard(process)
            raise ChildProcessError(f"it has ended at its start (code {await process.wait()})")
        return process

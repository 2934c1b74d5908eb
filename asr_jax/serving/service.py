"""The state of a server: its limits and open requests, and the way of a recording from its upload to its words."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.requests import Request

from asr_jax.inference.endpoints import Endpoints
from asr_jax.serving.decoding import Decoded, Decoders
from asr_jax.serving.device_thread import DeviceThread, Recognised
from asr_jax.serving.errors import ApiError, busy, unavailable
from asr_jax.serving.limits import LimitOptions
from asr_jax.serving.metrics import Metrics
from asr_jax.serving.samples import used_samples
from asr_jax.transcripts.transcript import Transcript

DRAIN_POLL_S = 0.05
STOP_S = 10.0
"""Longest time in seconds for the present batch of the device at the end."""


class ClientGone(Exception):
    """Raised if the client of a request has closed its connection."""


class Service:
    """A model that answers requests."""

    def __init__(
        self,
        device: DeviceThread,
        metrics: Metrics,
        *,
        limits: LimitOptions,
        model: str,
        language: str = "",
        token: str = "",
        endpoints: Endpoints,
    ) -> None:
        """Initialises without starting the device's thread and the decoding processes.

        Args:
            model: Name of the model in the API.
            language: Language of its texts, such as en. Empty: it is not known.
            token: Bearer token of clients. Empty: none is needed.
            endpoints: Rules by which utterances of streams end.
        """
        self.device, self.metrics, self.limits, self.endpoints = device, metrics, limits, endpoints
        self.model, self.language, self._token = model, language, token
        self.decoders = Decoders(limits, rate_hz=device.rate_hz)
        self.created = int(time.time())
        """Beginning of the service in seconds since 1970."""
        self.is_draining = False
        self.num_open, self.num_streams = 0, 0
        """Numbers of open requests and streams."""
        self.num_unknown = 0
        """Number of sockets that have sent no message."""

    async def start(self) -> None:
        """Starts to compile, and starts the decoding processes."""
        self.device.start()
        await self.decoders.start()

    async def stop(self) -> None:
        """Ends the decoding processes and the thread of the device."""
        await self.decoders.stop()
        await asyncio.to_thread(self.device.stop, STOP_S)

    async def drained(self) -> None:
        """Refuses new requests, and waits for the open ones."""
        self.is_draining = True
        try:
            async with asyncio.timeout(self.limits.drain_seconds):
                while self.num_open or self.num_streams:
                    await asyncio.sleep(DRAIN_POLL_S)
        except TimeoutError:
            pass

    @property
    def needs_token(self) -> bool:
        return bool(self._token)

    def authorise(self, headers: Headers, *, token: str = "") -> None:
        """Checks the bearer token of a request.

        Args:
            token: Token that is not in the headers: browsers cannot set the headers of WebSockets.

        Raises:
            ApiError: If it is not that of the server.
        """
        kind, _, given = headers.get("authorization", "").partition(" ")
        given = token or (given.strip() if kind.lower() == "bearer" else "")
        # JSON may have half of a surrogate pair, which strict UTF-8 does not encode.
        if self._token and not hmac.compare_digest(given.encode(errors="surrogatepass"), self._token.encode()):
            message = "expected the header Authorization: Bearer TOKEN with the token of this server"
            raise ApiError(401, "invalid_api_key", message, closes=True)

    def check_open(self) -> None:
        """Checks that the server takes requests.

        Raises:
            ApiError: If it ends, or its programs are not compiled.
        """
        if self.is_draining:
            raise unavailable(
                "shutting_down", "the server is shutting down: send the request to another one", closes=True
            )
        if self.device.failure:
            raise unavailable("failed", "this server has failed: its log has the reason", closes=True)
        if not self.device.is_ready.is_set():
            message = "the server is still starting: send the request again when /ready answers 200"
            raise unavailable("not_ready", message, closes=True)

    def check_decoders(self) -> None:
        """Checks that audio files can be decoded.

        Raises:
            ApiError: If no decoding process can be started.
        """
        if self.decoders.failure:
            message = "no decoding process can be started, which the server tries again: send the request later"
            raise unavailable("no_decoders", message, closes=True)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Counts a request while it is open.

        Raises:
            ApiError: If too many are open, or too much audio waits.
        """
        reason, waiting_s = "", self.device.waiting_s
        if self.num_open >= self.limits.max_requests:
            reason = f"{self.num_open} requests are open"
        elif waiting_s >= self.limits.max_waiting_seconds:
            reason = f"{waiting_s:.0f} s of audio wait"
        if reason:
            message = f"{reason}: send the request again after the time in Retry-After"
            raise busy(message, retry_s=self.device.delay_s, closes=True)
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1

    async def decoded(self, request: Request, content: bytes) -> Decoded:
        """Decodes an uploaded file.

        Raises:
            ApiError: As `Decoders`.
            ClientGone: If the client is gone.
        """
        # A decoding that is cancelled would end its process; it is short, and its result is discarded.
        decoding = asyncio.ensure_future(self.decoders(content))
        return used_samples(await unless_gone(request, asyncio.shield(decoding)), self.device.rate_hz)

    async def recognised(self, decoded: Decoded) -> Recognised:
        """Recognises a recording.

        Raises:
            ApiError: If too much audio waits.
        """
        seconds = len(decoded.samples) / self.device.rate_hz
        if decoded.is_silent:  # a model may recognise words in silence
            return Recognised(Transcript((), 0.0), seconds)
        waiting_s = self.device.waiting_s
        if waiting_s and waiting_s + seconds > self.limits.max_waiting_seconds:
            raise busy(f"{waiting_s:.0f} s of audio wait: send the request later", retry_s=self.device.delay_s)
        return await asyncio.wrap_future(self.device.recognise(decoded.samples, header_s=decoded.duration_s))

    def timed_out(self) -> ApiError:
        """Returns the error of a request that takes too long."""
        return unavailable("timeout", f"there is no result after {self.limits.request_seconds:g} s")

    def exposed(self) -> None:
        """Sets the figures that are computed when they are read."""
        self.metrics.open_requests.set(self.num_open)
        self.metrics.open_streams.set(self.num_streams)
        self.metrics.waiting_seconds.set(self.device.waiting_s)
        self.metrics.decoders.set(self.decoders.num_running)
        self.metrics.replaced_decoders.set(self.decoders.num_replaced)


async def unless_gone[T](request: Request, result: Awaitable[T]) -> T:
    """Returns a result, unless the client closes its connection before. The body must have been read."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work, watch = asyncio.ensure_future(result), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGone
        return work.result()
    finally:
        work.cancel()
        watch.cancel()

"""Streams over WebSockets: samples come as binary messages, and results go as JSON."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from jaxtyping import Int16
from starlette.websockets import WebSocket, WebSocketDisconnect

from asr_jax.audio.streaming import StreamResampler
from asr_jax.core.errors import UserError
from asr_jax.core.text_files import json_text
from asr_jax.inference.streaming import StreamResult
from asr_jax.serving.errors import ApiError, busy, wrong
from asr_jax.serving.segments import SegmentStream
from asr_jax.serving.service import Service
from asr_jax.transcripts.transcript import Transcript

RATES_HZ = range(1000, 384_001)
"""Sample rates of streams in Hz."""
PIECE_S = 0.5
"""Seconds of a stream after which the windows of others are computed."""
FIRST_S = 10.0
"""Longest time in seconds to the first message of a stream, which shows the token."""
MAX_UNKNOWN = 64
"""Largest number of sockets without a first message."""
CLOSED, POLICY, TOO_LARGE, FAILED, LATER = 1000, 1008, 1009, 1011, 1013
"""Codes at the end of a connection. Source: RFC 6455, section 7.4.1, and IANA's registry of close codes."""
CODES = {413: TOO_LARGE, 429: LATER, 503: LATER}
"""Codes by the status that an HTTP request would get; POLICY for others."""
END = {"type": "end"}
"""Message after the last samples."""
SHOWN = 100
"""Number of characters of a wrong message in its error."""
FeedStream = Callable[[Int16[np.ndarray, " S"], bool], Awaitable[list[StreamResult]]]


def stream_route(service: Service) -> Callable[[WebSocket], Awaitable[None]]:
    """Returns the handler of streams."""

    async def handle(socket: WebSocket) -> None:
        if service.num_unknown >= MAX_UNKNOWN:
            await socket.close()  # status 403; uvicorn logs an error for each answer with another one
            return
        try:
            await _answer(service, socket)
            await socket.close(CLOSED)
        except ApiError as error:
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await socket.send_text(json_text({"type": "error"} | error.body))
                await socket.close(CODES.get(error.status, POLICY))
        except WebSocketDisconnect:
            pass
        except Exception as error:
            print(f"error: a stream has failed: {error!r}", file=sys.stderr)
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await socket.close(FAILED)

    return handle


async def _answer(service: Service, socket: WebSocket) -> None:
    """Recognises one stream."""
    service.num_unknown += 1
    try:
        await socket.accept()
        _check_origin(socket)
        message = await _received(socket, min(FIRST_S, service.limits.upload_seconds))
    finally:
        service.num_unknown -= 1
    start = _object(message["text"]) if message.get("text") is not None else {}
    service.authorise(socket.headers, token=str(start.get("token", "")))
    service.check_open()
    rate_hz = start.get("rate_hz", service.device.rate_hz)
    if isinstance(rate_hz, bool) or not isinstance(rate_hz, int) or rate_hz not in RATES_HZ:
        raise wrong("rate_hz", f"rate_hz is {rate_hz!r}: expected {RATES_HZ[0]} to {RATES_HZ[-1]} Hz")
    if unknown := set(start) - {"type", "rate_hz", "token"}:
        raise wrong(min(unknown), f"Unknown field: {min(unknown)!r}", code="unknown_parameter")
    if start.get("type", "end") != "end":
        raise _wrong_message(message["text"])
    if service.num_streams >= service.limits.max_streams:
        raise busy(f"{service.num_streams} streams are open, the most of this server: open one later")
    service.num_streams += 1
    try:
        await _recognise(service, socket, message, rate_hz)
    finally:
        service.num_streams -= 1


async def _recognise(service: Service, socket: WebSocket, first: dict[str, Any], rate_hz: int) -> None:
    """Feeds the samples of all messages, beginning with the given one, and sends the results."""
    device, resampled = service.device, StreamResampler(rate_hz, service.device.rate_hz)
    piece, most = round(PIECE_S * device.rate_hz), service.limits.max_seconds * device.rate_hz
    feed, num, held, is_open, message = await _opened(service), 0, b"", True, first
    try:
        while is_open:
            text, content = message.get("text"), held + (message.get("bytes") or b"")
            if text is not None and message is not first and _object(text) != END:
                raise _wrong_message(text)
            is_open = text is None or _object(text).get("type") != "end"
            even = len(content) // 2 * 2
            content, held = content[:even], content[even:]
            samples = resampled(np.frombuffer(content, "<i2").astype(np.int16), is_last=not is_open)
            num += len(samples)
            is_too_long = num > most
            pieces = [samples[place : place + piece] for place in range(0, len(samples), piece)]
            for place, each in enumerate(pieces or [samples] * (not is_open)):
                is_last = (not is_open or is_too_long) and place >= len(pieces) - 1
                if is_last:
                    is_open = False
                for result in await feed(each, is_last):
                    await socket.send_text(json_text(result.to_json()))
            if is_too_long:
                raise ApiError(413, "audio_too_long", f"the stream has more than {service.limits.max_seconds:g} s")
            if is_open:
                message = await _received(socket, service.limits.upload_seconds)
    finally:
        if is_open:  # the client is gone, or an error has occurred
            with contextlib.suppress(Exception):
                await feed(np.zeros(0, np.int16), True)


async def _opened(service: Service) -> FeedStream:
    """Opens a stream, and returns the function that takes its samples."""
    device = service.device
    if device.why_no_streams:

        async def transcript(samples: Int16[np.ndarray, " S"]) -> Transcript:
            return (await asyncio.wrap_future(device.recognise(samples))).transcript

        segments = SegmentStream(
            transcript, rate_hz=device.rate_hz, longest_s=device.longest_s, endpoints=service.endpoints
        )
        return lambda samples, is_last: segments.feed(samples, is_last=is_last)
    try:
        stream = await asyncio.wrap_future(device.open_stream())
    except UserError as error:
        raise busy(str(error)) from None
    return lambda samples, is_last: asyncio.wrap_future(device.feed(stream, samples, is_last=is_last))


async def _received(socket: WebSocket, seconds: float) -> dict[str, Any]:
    """Waits some seconds for the next message."""
    try:
        async with asyncio.timeout(seconds):
            message = dict(await socket.receive())
    except TimeoutError:
        raise ApiError(408, "upload_timeout", f"no message has arrived for {seconds:g} s") from None
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", CLOSED))
    return message


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise wrong("message", 'expected binary messages of int16 samples, or JSON such as {"rate_hz": 16000}')
    return found


def _wrong_message(text: str) -> ApiError:
    return wrong("message", f"{text[:SHOWN]}: expected binary messages, and at the end {json_text(END)}")


def _check_origin(socket: WebSocket) -> None:
    """Refuses streams that a page of another server opens in a browser."""
    origin, host = socket.headers.get("origin"), socket.headers.get("host", "")
    if origin and origin.partition("://")[2] != host:
        raise ApiError(403, "wrong_origin", "browser pages of other sites may not open streams here")

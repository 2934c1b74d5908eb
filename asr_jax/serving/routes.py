"""Routes of the server over HTTP: transcriptions, models, health, readiness, figures and the page."""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from importlib.resources import files
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute

from asr_jax.serving.decoding import Decoded
from asr_jax.serving.errors import ApiError, no_model
from asr_jax.serving.formats import event, events, response
from asr_jax.serving.service import ClientGone, Service, unless_gone
from asr_jax.serving.streams import stream_route
from asr_jax.serving.uploads import discard, read_upload

TRANSCRIPTIONS = "/v1/audio/transcriptions"
ROUTES = f"POST {TRANSCRIPTIONS}, GET /v1/models, /health, /ready, /metrics and /, and the WebSocket /v1/stream"
"""Routes in the answer to other paths."""
WAITING_S = 10.0
"""Seconds between comments in a stream of events without a result, so that proxies keep the connection."""
CLIENT_GONE = 499
"""Status in the figures of requests whose client has closed the connection."""
PAGE = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "recorder.js": "text/javascript",
}
"""Files of the page with their media types."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "media-src blob:; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Headers of the page: it loads nothing from elsewhere, and is shown in no frame."""


def app_of(service: Service) -> Starlette:
    """Returns the application of a service."""

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    def route(path: str, handler: Callable[[Service, Request], Awaitable[Response]], method: str = "GET") -> Route:
        async def answered(request: Request) -> Response:
            found = await _answer(service, request, handler)
            service.metrics.requests.labels(path, found.status_code).inc()
            return found

        return Route(path, answered, methods=[method])

    routes = [
        route(TRANSCRIPTIONS, _transcribe, "POST"),
        route("/v1/models", _models),
        route("/v1/models/{model:path}", _model),
        route("/health", _health),
        route("/ready", _ready),
        route("/metrics", _metrics),
        route("/", _page),
        *(route(f"/{name}", _page) for name in PAGE),
        WebSocketRoute("/v1/stream", stream_route(service)),
    ]
    app = Starlette(routes=routes, lifespan=running, exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """Answers unknown paths and methods."""
    assert isinstance(error, HTTPException)
    code, message = "invalid_request", str(error.detail)
    if error.status_code == 404:
        code, message = "not_found", f"there is no {request.url.path:.100}: this server has {ROUTES}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        code, message = "method_not_allowed", f"{request.method} {request.url.path:.100}: expected {allowed}"
    found = ApiError(error.status_code, code, message, closes=True).response()
    found.headers.update(error.headers or {})
    return found


async def _answer(
    service: Service, request: Request, handler: Callable[[Service, Request], Awaitable[Response]]
) -> Response:
    """Calls a handler, and makes answers of its errors."""
    try:
        return await handler(service, request)
    except ApiError as error:
        if error.closes and error.code != "upload_timeout":
            await discard(request, service.limits)
        return error.response()
    except (ClientGone, ClientDisconnect):
        return Response(status_code=CLIENT_GONE)
    except Exception as error:
        return _failed(error).response()


def _failed(error: Exception) -> ApiError:
    """Prints an error of the server, and returns that of its request."""
    traceback.print_exception(error)
    message = f"the server failed at this request ({type(error).__name__}): its log has the reason"
    return ApiError(500, "internal_error", message, closes=True)


class Events(StreamingResponse):
    """Server-sent events of a request, which is open until they end."""

    def __init__(self, content: AsyncIterator[bytes], stack: ExitStack) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self._stack = stack

    async def __call__(self, *given: Any) -> None:
        with self._stack:
            await super().__call__(*given)


async def _transcribe(service: Service, request: Request) -> Response:
    """Answers a request for a transcription."""
    service.authorise(request.headers)
    service.check_open()
    service.check_decoders()
    limits, began = service.limits, time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(service.opened())
        stack.callback(lambda: service.metrics.latency.observe(time.monotonic() - began))
        upload = await read_upload(request, limits, model=service.model, language=service.language)
        try:
            async with asyncio.timeout(limits.request_seconds):
                decoded = await service.decoded(request, upload.content)
                if upload.stream:
                    return Events(_events(service, decoded), stack.pop_all())
                found = await unless_gone(request, service.recognised(decoded))
        except TimeoutError:
            raise service.timed_out() from None
        return response(found, upload, language=service.language)


async def _events(service: Service, decoded: Decoded) -> AsyncIterator[bytes]:
    """Yields the events of a recording, with comments while it is recognised."""
    result = asyncio.ensure_future(service.recognised(decoded))
    try:
        async with asyncio.timeout(service.limits.request_seconds):
            while not (await asyncio.wait({result}, timeout=WAITING_S))[0]:
                yield b": the recording is being recognised\n\n"
        for each in events(result.result()):
            yield each
    except TimeoutError:
        yield event(service.timed_out().body)
    except ApiError as error:
        yield event(error.body)
    except Exception as error:
        yield event(_failed(error).body)
    finally:
        result.cancel()


async def _models(service: Service, request: Request) -> Response:
    service.authorise(request.headers)
    return JSONResponse({"object": "list", "data": [_description(service)]})


async def _model(service: Service, request: Request) -> Response:
    service.authorise(request.headers)
    if request.path_params["model"] != service.model:
        raise no_model(request.path_params["model"], service.model)
    return JSONResponse(_description(service))


def _description(service: Service) -> dict[str, Any]:
    return {"id": service.model, "object": "model", "created": service.created, "owned_by": "asr_jax"}


async def _health(service: Service, _: Request) -> Response:
    """Answers whether the process works; a server that ends, or compiles, does."""
    if service.device.failure:
        return JSONResponse({"status": "failed"}, 503)
    return JSONResponse({"status": "ok"})


async def _ready(service: Service, _: Request) -> Response:
    """Answers whether the server takes requests, and which it takes."""
    service.check_open()
    service.check_decoders()
    streams = "none" if not service.limits.max_streams else "windows" if service.device.why_no_streams else "model"
    return JSONResponse(
        {
            "status": "ready",
            "model": service.model,
            "streams": streams,
            "needs_token": service.needs_token,
            "max_bytes": service.limits.max_bytes,
        }
    )


async def _metrics(service: Service, request: Request) -> Response:
    service.authorise(request.headers)
    service.exposed()
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _page(_: Service, request: Request) -> Response:
    name = request.url.path.strip("/") or "index.html"
    content = files(f"{__package__}.page").joinpath(name).read_bytes()
    return Response(content, media_type=PAGE[name], headers=HEADERS)

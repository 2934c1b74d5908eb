"""Bodies of requests: read within limits, kept in memory, and with fields that the server can honour."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, cast, get_args

from starlette.requests import ClientDisconnect, Request

from asr_jax.core.errors import nearest
from asr_jax.serving.errors import ApiError, no_model, wrong
from asr_jax.serving.forms import Form
from asr_jax.serving.limits import LimitOptions

ResponseFormat = Literal["json", "text", "srt", "vtt", "verbose_json"]
Granularity = Literal["word", "segment"]
DISCARDED, DISCARDING_S = 4, 5.0
"""Largest rest of a body that is read and discarded, as a multiple of the largest body, and the time in seconds for it.
A client that still sends would not read the answer."""
GRANULARITIES = "timestamp_granularities[]"
VALUES = {
    "file": (".*", ""),
    "model": (".*", ""),
    "prompt": ("", "no prompt: the model takes none"),
    "response_format": ("|".join(["", *get_args(ResponseFormat)]), f"one of {', '.join(get_args(ResponseFormat))}"),
    "temperature": (r"|0+(\.0*)?", "0, since the search does not sample"),
    GRANULARITIES: ("|".join(get_args(Granularity)), f"one of {', '.join(get_args(Granularity))}"),
    "stream": ("(?i:|true|false)", "true or false"),
    "chunking_strategy": ("|auto", "auto: the server chooses the windows of long audio"),
}
"""Fields with the pattern of their values, and its words. Source: "Create transcription" of OpenAI's API reference."""


@dataclass(frozen=True)
class Upload:
    """A request for a transcription."""

    content: bytes
    """Content of the file. Its name is not used."""
    response_format: ResponseFormat
    granularities: tuple[Granularity, ...]
    stream: bool
    """Whether the answer is a stream of server-sent events."""


async def read_upload(request: Request, limits: LimitOptions, *, model: str, language: str) -> Upload:
    """Reads the form of a request.

    Args:
        model: Name of the model that is served.
        language: Language of its texts as the server was given it; empty if it was not.

    Raises:
        ApiError: If the form is too large, arrives too slowly, is not a form, or has fields that cannot be honoured.
    """
    form = Form(request.headers.get("content-type", ""))
    try:
        async with asyncio.timeout(limits.upload_seconds):
            async for block in _limited(request, limits.max_bytes):
                form.add(block)
    except TimeoutError:
        message = f"the body did not arrive within {limits.upload_seconds:g} s"
        raise ApiError(408, "upload_timeout", message, closes=True) from None
    if not form.has_ended:
        raise form.wrong("it has no end")
    return _checked(form.fields, form.files, model=model, language=language)


async def _limited(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """Yields the body of a request up to a number of bytes."""
    message = f"the body has more than {most} bytes, the limit of this server: send smaller files"
    error, num = ApiError(413, "request_too_large", message, closes=True), 0
    if _declared(request) > most:
        raise error
    while not getattr(request.state, "is_read", False):
        received = await request.receive()
        if received["type"] == "http.disconnect":
            raise ClientDisconnect
        block = received.get("body", b"")
        num += len(block)
        request.state.is_read = not received.get("more_body", False)  # before the block, which may be no form
        if num > most:
            raise error
        yield block


def _declared(request: Request) -> int:
    """Returns the number of bytes of the body in its header; 0 if there is none."""
    given = request.headers.get("content-length", "")
    return int(given) if given.isascii() and given.isdigit() else 0


async def discard(request: Request, limits: LimitOptions) -> None:
    """Reads the rest of the body of a request without keeping it, for a short time and up to a size."""
    most, num = DISCARDED * limits.max_bytes, 0
    if getattr(request.state, "is_read", False) or _declared(request) > most:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARDING_S):
            while num <= most:
                message = await request.receive()
                num += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def _checked(fields: dict[str, list[str]], files: dict[str, bytes], *, model: str, language: str) -> Upload:
    """Returns a request if all of its fields can be honoured."""
    of_model = f"{language!r}, the language of the model" if language else "no language: the model has one"
    values_of = VALUES | {"language": ("|" + re.escape(language), of_model)}
    for name, values in fields.items():
        known = GRANULARITIES if name == GRANULARITIES.rstrip("[]") else name
        if known not in values_of:
            raise wrong(name, f"Unknown field: {name!r}{nearest(name, values_of)}", code="unknown_parameter")
        if len(values) > 1 and known != GRANULARITIES:
            raise wrong(name, f"{name} is given {len(values)} times: expected it once")
        pattern, expected = values_of[known]
        for value in values:
            if not re.fullmatch(pattern, value, re.DOTALL):
                raise wrong(name, f"{name} is {value!r:.100}: expected {expected}", code="unsupported_value")
    if "file" not in files:
        raise wrong("file", "expected an audio file in the field file", code="missing_required_parameter")
    if others := set(files) - {"file"}:
        raise wrong(min(others), f"{min(others)!r} is a file: expected the file in the field file")
    if "model" not in fields:
        raise wrong("model", f"expected the field model, such as {model}", code="missing_required_parameter")
    if fields["model"] != [model]:
        raise no_model(fields["model"][0], model)
    response_format, stream = (fields.get(name, [""])[0] for name in ("response_format", "stream"))
    granularities = [each for name, values in fields.items() if name.startswith("timestamp") for each in values]
    if granularities and response_format != "verbose_json":
        message = f"timestamp_granularities with response_format {response_format or 'json'}: expected verbose_json"
        raise wrong("timestamp_granularities", message)
    if stream.lower() == "true" and response_format not in ("", "json", "text"):
        message = f"stream with response_format {response_format}: expected json or text"
        raise wrong("stream", message, code="unsupported_value")
    return Upload(
        files["file"],
        cast(ResponseFormat, response_format or "json"),
        cast(tuple[Granularity, ...], tuple(granularities) or ("segment",)),
        stream.lower() == "true",
    )

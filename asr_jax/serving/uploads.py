"""Bodies of requests: read within limits, kept in memory, and with fields that the server can honour."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, cast, get_args

from starlette.requests import Request

from asr_jax.core.errors import nearest
from asr_jax.serving.errors import ApiError, wrong
from asr_jax.serving.forms import Form
from asr_jax.serving.limits import LimitOptions

ResponseFormat = Literal["json", "text", "srt", "vtt", "verbose_json"]
Granularity = Literal["word", "segment"]
DISCARDED, DISCARDING_S = 4, 5.0
"""Largest rest of a body that is read and discarded, as a multiple of the largest body, and the time in seconds for it.
A client that still sends would not read the answer."""
FIELDS = (
    "file", "model", "language", "prompt", "response_format", "temperature", "timestamp_granularities[]", "stream",
    "chunking_strategy",
)  # fmt: skip
"""Fields that are read. Source: "Create transcription" of OpenAI's API reference."""


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
    async for block in request.stream():
        num += len(block)
        if num > most:
            raise error
        yield block
    request.state.is_read = True


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
    for name, values in fields.items():
        known = name if name != "timestamp_granularities" else "timestamp_granularities[]"
        if known not in FIELDS:
            raise wrong(name, f"Unknown field: {name!r}{nearest(name, FIELDS)}", code="unknown_parameter")
        if len(values) > 1 and known != "timestamp_granularities[]":
            raise wrong(name, f"{name} is given {len(values)} times: expected it once")
    given = {name: values[-1] for name, values in fields.items()}
    if "file" not in files:
        raise wrong("file", "expected an audio file in the field file", code="missing_required_parameter")
    if others := set(files) - {"file"}:
        raise wrong(min(others), f"{min(others)!r} is a file: expected the file in the field file")
    if "model" not in given:
        raise wrong("model", f"expected the field model, such as {model}", code="missing_required_parameter")
    if given["model"] != model:
        message = f"The model {given['model']!r} does not exist: this server has {model!r}"
        raise ApiError(404, "model_not_found", message, param="model")
    if given.get("language", "") not in ("", language):
        has = (
            f"expected {language!r}, the language of the model"
            if language
            else "the model has one language: leave it out"
        )
        raise wrong("language", f"language is {given['language']!r}: {has}", code="unsupported_value")
    if given.get("prompt"):
        raise wrong("prompt", "The model takes no prompt: leave it out", code="unsupported_value")
    try:
        temperature = float(given.get("temperature", "0") or "0")
    except ValueError:
        raise wrong("temperature", f"temperature is {given['temperature']!r}: expected 0") from None
    if temperature:
        message = f"temperature is {temperature:g}: expected 0, since the search does not sample"
        raise wrong("temperature", message, code="unsupported_value")
    if given.get("chunking_strategy", "auto") not in ("", "auto"):
        raise wrong("chunking_strategy", "expected auto: the server chooses the windows of long audio")
    response_format = given.get("response_format") or "json"
    if response_format not in get_args(ResponseFormat):
        message = f"response_format is {response_format!r}: expected one of {', '.join(get_args(ResponseFormat))}"
        raise wrong("response_format", message, code="unsupported_value")
    granularities = [
        each for name, values in fields.items() if name.startswith("timestamp_granularities") for each in values
    ]
    if unknown := [each for each in granularities if each not in get_args(Granularity)]:
        raise wrong("timestamp_granularities", f"{unknown[0]!r}: expected word or segment")
    if granularities and response_format != "verbose_json":
        message = f"timestamp_granularities with response_format {response_format}: expected verbose_json"
        raise wrong("timestamp_granularities", message)
    stream = given.get("stream", "").lower()
    if stream not in ("", "true", "false"):
        raise wrong("stream", f"stream is {given['stream']!r}: expected true or false")
    if stream == "true" and response_format not in ("json", "text"):
        message = f"stream with response_format {response_format}: expected json or text"
        raise wrong("stream", message, code="unsupported_value")
    return Upload(
        files["file"],
        cast(ResponseFormat, response_format),
        cast(tuple[Granularity, ...], tuple(granularities) or ("segment",)),
        stream == "true",
    )

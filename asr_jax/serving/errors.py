"""Errors of requests, as OpenAI's error objects."""

import math
from typing import Any

from starlette.responses import JSONResponse

BUSY_S = 1.0
"""Time in seconds after which a client repeats a request that was refused for a passing reason."""


class ApiError(Exception):
    """A request that is refused.

    Source: `{"error": {"message", "type", "param", "code"}}` of OpenAI's API reference, "Error codes".
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_s: float | None = None,
        closes: bool = False,
    ) -> None:
        """Initialises.

        Args:
            status: Status code of HTTP.
            code: Name of the error for programs.
            param: Field of the request that is wrong. None: no single one.
            retry_s: Seconds after which the client may repeat the request. None: it should not.
            closes: Whether the body was not read, so that the connection is closed.
        """
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.retry_s, self.closes = retry_s, closes

    @property
    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        headers = {"connection": "close"} if self.closes else {}
        if self.retry_s is not None:
            headers["retry-after"] = str(max(math.ceil(self.retry_s), 1))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body, self.status, headers)


def wrong(param: str, message: str, *, code: str = "invalid_value") -> ApiError:
    """Returns the error of a field with a value that cannot be honoured."""
    return ApiError(400, code, message, param=param)


def no_model(asked: str, model: str) -> ApiError:
    """Returns the error of a request for a model that is not that of the server."""
    return ApiError(
        404, "model_not_found", f"there is no model {asked!r:.100}: this server has {model!r}", param="model"
    )


def unusable(reason: str) -> ApiError:
    """Returns the error of a file whose audio cannot be used.

    Args:
        reason: That of an `AudioError`, whose advice is for files of this machine.
    """
    what, _, advice = reason.rpartition("; ")
    message = f"the audio cannot be used: {reason}"
    if reason.startswith("not audio that libsndfile can read"):
        message = "the file is not audio in a known format: send FLAC, WAV, MP3, Ogg, M4A or WebM"
    elif advice == "copy the file again":
        message = f"the file is incomplete or damaged ({what}): send it again"
    return wrong("file", message, code="invalid_audio")


def busy(message: str, *, retry_s: float = BUSY_S, closes: bool = False) -> ApiError:
    """Returns the error of a request beyond a limit of the server."""
    return ApiError(429, "rate_limit_exceeded", message, retry_s=retry_s, closes=closes)


def unavailable(code: str, message: str, *, closes: bool = False) -> ApiError:
    """Returns the error of a request that another server, or this one later, may answer."""
    return ApiError(503, code, message, retry_s=BUSY_S, closes=closes)

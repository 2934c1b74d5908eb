"""Serves a run over HTTP: `python -m asr_jax.serve RUN|MODEL [--port 8000]`.

POST /v1/audio/transcriptions is that of OpenAI's API (json, text, srt, vtt, verbose_json). The WebSocket /v1/stream
recognises audio while it arrives. A page at / records, and shows words with their times and confidences. /health,
/ready and /metrics are for operators. Requests of any lengths are recognised in batches of few compiled shapes.

SIGTERM and Ctrl-C end the server: open requests are answered, and new ones get status 503 (documentation: serving).
"""

import errno
import importlib.util
import ipaddress
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from asr_jax.cli.recognition_options import ABOUT_DECODING, RecognitionOptions, decoding_in, load, parse_recognition
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.installation import installing
from asr_jax.core.settings import between, command_options
from asr_jax.core.text_files import read_text
from asr_jax.inference.batches import BatchOptions
from asr_jax.inference.endpoints import ENDPOINTS
from asr_jax.serving.limits import LimitOptions

PACKAGES = ("starlette", "uvicorn", "python_multipart", "websockets", "prometheus_client")


@command_options
class ServeOptions(LimitOptions, BatchOptions, RecognitionOptions):
    """Options of `asr_jax.serve`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a trained run, a checkpoint, or a published model."""
    host: Annotated[str, arg(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen at; 0.0.0.0: all addresses of this machine."""
    port: Annotated[int, between(0, 65535)] = 8000
    """Port to listen at; 0: any free one."""
    head: Annotated[str, arg(metavar="NAME")] = ""
    """Name of the recognising head. Default: the primary head."""
    name: Annotated[str, arg(metavar="NAME")] = ""
    """Name of the model in requests. Default: that of RUN."""
    language: Annotated[str, arg(metavar="CODE")] = ""
    """Language of the model, such as en, which requests may then state. Default: they may state none."""
    token_file: Annotated[Path | None, arg(metavar="FILE")] = None
    """File with a bearer token, which requests must then have."""


def main(arguments: Sequence[str]) -> None:
    options, flags = parse_recognition(
        ServeOptions, arguments, prog="python -m asr_jax.serve", about=(__doc__ or "") + ABOUT_DECODING
    )
    if missing := [name for name in PACKAGES if not importlib.util.find_spec(name)]:
        raise UserError(f"the server needs {', '.join(missing)}: {installing('serve')}")

    from asr_jax.serving.device_thread import DeviceThread
    from asr_jax.serving.metrics import Metrics
    from asr_jax.serving.server import serve
    from asr_jax.serving.service import Service

    token = read_token(options.token_file) if options.token_file else ""
    if not token and not is_of_this_machine(options.host):
        print(f"warning: {options.host} without --token-file: everyone in the network can use it", file=sys.stderr)
    trained = load(options.run, options, options)
    head = options.head or trained.model.recognising
    decoder = trained.decoder(decoding_in(trained.experiment.model, head, flags), head=head)
    metrics = Metrics()
    device = DeviceThread(trained, decoder, metrics, num_streams=options.max_streams, endpoints=ENDPOINTS)
    service = Service(
        device,
        metrics,
        limits=options,
        model=options.name or Path(trained.name).resolve().name,
        language=options.language,
        token=token,
        endpoints=ENDPOINTS,
    )
    try:
        serve(service, host=options.host, port=options.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {options.port} is in use: choose another --port") from None
        raise UserError(f"cannot listen at {options.host}, port {options.port}: {error.strerror}") from error
    if device.failure:
        raise RunError(f"the server has ended: {device.failure!r}")


def read_token(path: Path) -> str:
    """Returns the token in a file, without white space around it.

    Raises:
        UserError: If the file cannot be read, or has no token.
    """
    try:
        token = read_text(path).strip()
    except OSError as error:
        raise UserError(f"--token-file {path} cannot be read: {error.strerror}") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(f"--token-file {path} has no token: expected one word of ASCII, as by openssl rand -hex 32")
    return token


def is_of_this_machine(host: str) -> bool:
    """Whether an address is only reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

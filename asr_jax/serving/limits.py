"""Limits of a server: what a request may have, how many may wait, and for how long."""

from typing import Annotated

from tyro.conf import arg

from asr_jax.core.settings import NonNegativeInt, PositiveFloat, PositiveInt, command_options


@command_options
class LimitOptions:
    """Limits of the requests of a server."""

    max_bytes: Annotated[PositiveInt, arg(metavar="N")] = 25_000_000
    """Largest body of a request in bytes; larger ones get status 413."""
    max_seconds: Annotated[PositiveFloat, arg(metavar="S")] = 7200.0
    """Longest audio of a request or a stream in seconds; longer audio gets status 413."""
    max_requests: Annotated[PositiveInt, arg(metavar="N")] = 64
    """Largest number of requests at a time; further ones get status 429."""
    max_waiting_seconds: Annotated[PositiveFloat, arg(metavar="S")] = 14_400.0
    """Largest duration in seconds of the audio that waits to be recognised; requests beyond it get status 429."""
    max_streams: Annotated[NonNegativeInt, arg(metavar="N")] = 8
    """Largest number of streams at a time. The program of a model that streams has a row for each; 0: no streams."""
    request_seconds: Annotated[PositiveFloat, arg(metavar="S")] = 600.0
    """Longest time in seconds from the end of an upload to the answer; afterwards, the request gets status 503."""
    upload_seconds: Annotated[PositiveFloat, arg(metavar="S")] = 120.0
    """Longest time in seconds in which a body arrives, and longest time without a message of a stream."""
    drain_seconds: Annotated[PositiveFloat, arg(metavar="S")] = 60.0
    """Longest time in seconds that open requests have after SIGTERM."""
    decoders: Annotated[PositiveInt, arg(metavar="N")] = 2
    """Number of processes that decode audio files."""
    decoding_seconds: Annotated[PositiveFloat, arg(metavar="S")] = 60.0
    """Longest time in seconds, of the clock and of the processor, that the decoding of a file takes."""
    decoding_megabytes: Annotated[PositiveInt, arg(metavar="MB")] = 1024
    """Memory in megabytes that a decoding process may have in addition to that of its start."""

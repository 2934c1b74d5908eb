"""Process that decodes untrusted audio: `python -m asr_jax.serving.decoder_process LIMITS` (JSON), on pipes.

The process writes an empty line when it is ready. A request is a line of JSON (`num_bytes`, `is_little`) and the
content of a file; the answer is a line of JSON, followed by the samples as little-endian int16. The process has limits
of memory and processor time, and cannot write files.
"""

import contextlib
import json
import os
import resource
import sys
from typing import Any, BinaryIO

import numpy as np

from asr_jax.audio.io import AudioError, NamedAudio, Remarks, header, probe, stream_audio
from asr_jax.core.text_files import use_utf8

BLOCK_S = 10
"""Seconds that are decoded at once."""
VALUES_PER_S = 2 * 48_000
"""Samples times channels in a second of the largest usual audio. A file has at most so many for each second of the
limit, and more channels or a higher rate make that limit shorter."""
LITTLE_VALUES = 300 * VALUES_PER_S
"""Samples times channels of a file that is decoded within about a second."""
MUCH = "much_work"
"""Error of a file that has more than LITTLE_VALUES, if the request is for a file with little work."""


def decode(
    content: bytes, *, rate_hz: int, max_seconds: float, is_little: bool = False
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Decodes the content of an audio file.

    Args:
        rate_hz: Sample rate of the result in Hz.
        max_seconds: Longest duration in seconds: a file whose header has more is not decoded, and decoding ends there.
        is_little: Whether decoding also ends, in the same way, at LITTLE_VALUES.

    Returns:
        Fields of the answer, and blocks of int16 samples [S]. The fields are `error` and `message`; or `duration_s`
        (of the header), `is_silent` and `num_samples`.
    """
    audio, remarks = NamedAudio(content, "the file"), Remarks()
    blocks, num = list[np.ndarray](), 0
    try:
        said = header(audio)
        values_per_s = max(said.rate_hz * said.channels, 1)
        most_s = max_seconds * min(VALUES_PER_S / values_per_s, 1.0)
        of_audio = f" in {said.channels} channels at {said.rate_hz} Hz" if most_s < max_seconds else ""
        refused = {"error": "audio_too_long", "message": f"more than {most_s:g} s of audio{of_audio}"}
        if said.duration_s > most_s:
            return refused, []
        if is_little and (little_s := LITTLE_VALUES / values_per_s) < most_s:
            most_s, refused = little_s, {"error": MUCH}
        if said.duration_s > most_s:
            return refused, []
        for block in stream_audio(audio, rate_hz=rate_hz, remarks=remarks, block_s=BLOCK_S):
            blocks.append(block)
            num += len(block)
            if num > most_s * rate_hz:
                return refused, []
        duration_s = probe(audio).duration_s
    except AudioError as error:
        return {"error": "invalid_audio", "message": error.reason}, []
    except MemoryError:
        return {"error": "invalid_audio", "message": "decoding needs more memory than is allowed"}, []
    except Exception as error:  # of a library, for content that it does not expect
        return {"error": "invalid_audio", "message": f"it cannot be decoded ({type(error).__name__})"}, []
    return {"duration_s": duration_s, "is_silent": remarks.is_silent, "num_samples": num}, blocks


def limit_memory(megabytes: int) -> None:
    """Limits the memory of this process to that of its start and a number of megabytes, and forbids to write files."""
    with open("/proc/self/statm", "rb") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + megabytes * 1_000_000
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(kind, (0, 0))


def limit_time(seconds: float) -> None:
    """Limits the processor time of this process from now on. The system ends it by SIGXCPU."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def serve(read: BinaryIO, write: BinaryIO, *, seconds: float, **how: Any) -> None:
    """Answers requests until the pipe ends."""
    write.write(b"\n")
    write.flush()
    while line := read.readline():
        request = json.loads(line)
        content = read.read(request["num_bytes"])
        limit_time(seconds)
        fields, blocks = decode(content, is_little=request["is_little"], **how)
        write.write(json.dumps(fields).encode() + b"\n")
        for block in blocks:
            write.write(block.astype("<i2", copy=False).tobytes())
        write.flush()


if __name__ == "__main__":
    use_utf8()
    with contextlib.suppress(ImportError):
        import av  # noqa: F401  before memory is limited
    given = json.loads(sys.argv[1])
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # libraries write warnings about damaged files
    limit_memory(given.pop("megabytes"))
    serve(sys.stdin.buffer, sys.stdout.buffer, **given)

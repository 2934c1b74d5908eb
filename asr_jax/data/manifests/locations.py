"""Locations of signals as strings: a file, a part of its audio, or bytes of a file that contain another file.

A path alone is an audio file. A suffix selects a part of it:

- `PATH#seconds=12.5+3.25`: 3.25 s of audio from 12.5 s.
- `PATH#seconds=12.5+3.25~`: the same, for a segment that may end slightly after the audio.
- `PATH#seconds=12.5+`: all audio from 12.5 s.
- `PATH#channel=1`: the second channel.
- `PATH#bytes=512+20480`: 20,480 bytes from byte 512 (a member of a tar, a cell of a table).
- `PATH#features=120x80.text`: ready features, 120 frames of 80 values.
- `PATH#pipe=ffmpeg -i @ -f wav -`: the output of a command with the path in the place of @.

Several parts are joined by `&`. A file whose own name ends like this is `NAME#seconds=0.0+`.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from jaxtyping import Float32, Int16

from asr_jax.audio.io import (
    NOT_A_FILE,
    AudioError,
    AudioInfo,
    NamedAudio,
    PathLike,
    Remarks,
    is_stream,
    probe,
    read_audio,
    stream_audio,
)
from asr_jax.core.paths import at_home
from asr_jax.data.manifests import pipes
from asr_jax.data.manifests.remote import StorageError, content_of, is_url, why_not_read, without_query

IN_PIPES = " |@:,=+'"
"""Characters of commands that are written in locations as they are."""
URL = re.compile(r"(?:(file):(?=/(?!/))|([a-z][a-z0-9+.-]+)://)(.*)", re.IGNORECASE | re.DOTALL)
"""`scheme://rest`, or `file:/path`."""
DRIVE = re.compile(r"^[A-Za-z]:[\\/\x00-\x1f]")
"""Beginning of a path on a drive of Windows. In JSON, a single backslash with a letter is a control character."""
TO_POSIX = (
    """jq -c '.audio_path |= (gsub("\\\\\\\\";"/") | sub("^C:/data";"/data"))' IN.jsonl > OUT.jsonl; """
    r"sed 's|\\|/|g; s|C:/data|/data|g' IN.csv > OUT.csv"
)
"""Examples of commands that rewrite the paths of Windows in a manifest."""
_NUMBER = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?"
_SECONDS = rf"seconds={_NUMBER}\+(?:{_NUMBER}~?)?"
_PART = rf"(?:pipe=[^&#/]+|bytes=\d+\+\d+|name=[^&#/]+|channel=\d+|{_SECONDS}|features=\d+x\d+\.[a-z0-9]+)"
_PARTS = re.compile(rf"{_PART}(?:&{_PART})*")


PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ECONNRESET, errno.EHOSTDOWN, errno.ENETDOWN)
"""Errors of a local file, such as one of a network file system, that a repeated read may not have."""
UNPACKED = "unpacked.bytes"
"""Name of the cache file that contains bytes unpacked from tables."""
OF_THE_CACHE = (
    "; it was unpacked from a table into the cache, and is restored when the table is read again (for example by "
    "python -m asr_jax.plan)"
)


def local_path(path: str) -> str:
    """Resolves `~`, `~user`, `file://` and `file:/` at the beginning of a path. Others, and URLs, remain unchanged.

    Raises:
        ValueError: If the path is a URL of another scheme, such as s3:// or https://, that cannot be read here.
    """
    if found := URL.match(path):
        scheme = found[1] or found[2]
        if scheme.lower() != "file":
            if reason := why_not_read(path):
                raise ValueError(reason)
            return path
        path = unquote(found[3].removeprefix("localhost"))
    return at_home(path)


def local_location(text: str, *, allow_pipes: bool) -> str:
    """Resolves a location of a manifest or of a user: `~`, file:// and commands.

    Args:
        text: Location, or a command with `|` at its end, with or without a suffix. A file with this name comes first.
        allow_pipes: Whether commands are accepted that do more than decode a file.

    Raises:
        ValueError: If the path is a URL of another scheme, or a command that is not accepted.
    """
    is_file = os.path.exists(text)
    place = Location(text) if is_file else Location.parse(text)
    if place.command:
        place = replace(place, path=pipes.written(place.command, place.path), command="")
    if is_file or not pipes.is_pipe(place.path):
        return str(replace(place, path=local_path(place.path)))
    pipe = pipes.parsed(place.path, is_allowed=allow_pipes)
    if place.channel and pipe.channel is not None:
        raise ValueError(f"channel {place.channel} of the command {place.path!r}, whose output has one channel")
    channel = place.channel if pipe.channel is None else pipe.channel
    return str(replace(place, path=local_path(pipe.path), command=pipe.command, channel=channel))


def from_windows(location: str, roots: Sequence[str]) -> str:
    """Location with / in the place of the backslashes of Windows if only that file exists. Others remain unchanged.

    Args:
        location: Location as `local_location` returns it.
        roots: Folders that relative paths may start from.

    Raises:
        ValueError: If it is a path of Windows, and there is no such file.
    """
    place = Location.parse(location)
    is_windows = "\\" in place.path or DRIVE.match(place.path)
    if not is_windows or os.sep != "/" or place.command or is_url(place.path) or any(map(is_url, roots)):
        return location
    for path in (place.path, place.path.replace("\\", "/")):
        if any(os.path.exists(os.path.join(root, path)) for root in roots):
            return str(replace(place, path=path))
    if not place.path.isprintable():
        raise ValueError(
            "a path of Windows, whose backslashes JSON reads as control characters; write / or \\\\ for them"
        )
    raise ValueError(
        "a path of Windows, and no such file is here, also with / for each backslash; expected a path below the folder "
        f"of the manifest, or of this machine: {TO_POSIX}"
    )


@dataclass(frozen=True, slots=True)
class Location:
    """Location of a signal. `str` and `parse` are inverse to each other."""

    path: str
    first_byte: int = 0
    num_bytes: int | None = None
    """Number of bytes. None: the whole file."""
    name: str = ""
    """Name of the file in the bytes; its ending selects the decoder."""
    channel: int | None = None
    """Channel, from 0. None: the mean of all channels."""
    start_s: float = 0.0
    """Start of the part in seconds."""
    length_s: float | None = None
    """Length of the part in seconds. None: all audio from `start_s`."""
    may_overshoot: bool = False
    """Whether the part may end slightly after the audio, as segments of Kaldi do."""
    shape: tuple[int, int] | None = None
    """Frames and values per frame of ready features. None for audio."""
    form: str = ""
    """Format of features: f32 (little endian), npy, or text (numbers)."""
    command: str = ""
    """Command of a `pipes.Pipe` whose output is the audio. Empty: the file is the audio."""

    def __str__(self) -> str:
        parts = []
        if self.command:
            parts.append(f"pipe={quote(self.command, safe=IN_PIPES)}")
        if self.num_bytes is not None:
            parts.append(f"bytes={self.first_byte}+{self.num_bytes}")
        if self.name:
            parts.append(f"name={quote(self.name, safe='')}")
        if self.channel is not None:
            parts.append(f"channel={self.channel}")
        if self.start_s or self.length_s is not None:
            length = "" if self.length_s is None else f"{self.length_s!r}{'~' * self.may_overshoot}"
            parts.append(f"seconds={self.start_s!r}+{length}")
        if self.shape is not None:
            parts.append(f"features={self.shape[0]}x{self.shape[1]}.{self.form}")
        if not parts and Location.parse(self.path).path != self.path:  # the name of the file has such an ending
            parts = ["seconds=0.0+"]
        return f"{self.path}#{'&'.join(parts)}" if parts else self.path

    @classmethod
    def parse(cls, text: str) -> "Location":
        """Parses a string. One without a suffix as described above is a path, whatever characters it has."""
        path, mark, rest = text.rpartition("#")
        if not mark or not _PARTS.fullmatch(rest):
            return cls(text)
        fields = dict(part.split("=", 1) for part in rest.split("&"))
        first, num = fields["bytes"].split("+") if "bytes" in fields else ("0", None)
        seconds = fields.get("seconds", "")
        start_s, length_s = _span(seconds.removesuffix("~")) if seconds else (0.0, None)
        sizes, _, form = fields.get("features", "").partition(".")
        frames, _, values = sizes.partition("x")
        return cls(
            path=path,
            first_byte=int(first),
            num_bytes=None if num is None else int(num),
            name=unquote(fields.get("name", "")),
            channel=int(fields["channel"]) if "channel" in fields else None,
            start_s=start_s,
            length_s=length_s,
            may_overshoot=seconds.endswith("~"),
            shape=(int(frames), int(values)) if sizes else None,
            form=form,
            command=unquote(fields.get("pipe", "")),
        )

    def beside(self, folder: PathLike) -> "Location":
        """Joins a relative path to the folder.

        `..` is kept, because after a link the operating system resolves it in the folder that the link leads to.
        """
        return replace(self, path=os.path.join(folder, self.path))

    def content(self) -> bytes:
        """Bytes at the location.

        Raises:
            AudioError: If the file is missing, unreadable or too short, or the command fails; a StorageError if a
                repeated read may succeed.
        """
        if self.command:
            return pipes.output(self.command, self.path)
        if is_url(self.path):
            return content_of(self.path, self.first_byte, self.num_bytes)
        try:
            if is_stream(self.path):
                raise AudioError(self.path, NOT_A_FILE)
            with open(self.path, "rb") as file:
                file.seek(self.first_byte)
                content = file.read(-1 if self.num_bytes is None else self.num_bytes)
        except FileNotFoundError:
            raise AudioError(
                self.path, "no such file" + OF_THE_CACHE * (os.path.basename(self.path) == UNPACKED)
            ) from None
        except OSError as error:
            kind = StorageError if error.errno in PASSING else AudioError
            raise kind(self.path, error.strerror or str(error)) from None
        if self.num_bytes is not None and len(content) < self.num_bytes:
            raise AudioError(
                str(self), f"truncated: it has {len(content)} of {self.num_bytes} bytes; copy the file again"
            )
        return content

    def file(self, content: bytes | None = None) -> PathLike | NamedAudio:
        """Argument of `read_audio` and `probe`: the path, or the bytes with their name."""
        if content is None and self.num_bytes is None and not self.command and not is_url(self.path):
            return self.path
        is_whole_url = is_url(self.path) and self.num_bytes is None
        name = self.name or (without_query(self.path) if is_whole_url else str(self))  # its ending selects the decoder
        return NamedAudio(self.content() if content is None else content, name)

    def info(self, content: bytes | None = None) -> AudioInfo:
        """Duration, rate and channels of the audio. For a part, the duration of the part.

        Raises:
            AudioError: If the audio cannot be read, or ends before the part.
        """
        info = probe(self.file(content))
        if self.start_s and self.start_s >= info.duration_s:
            raise AudioError(
                str(self),
                f"the audio ends at {info.duration_s:.2f} s, before the part that starts at {self.start_s:g} s",
            )
        length_s = info.duration_s - self.start_s if self.length_s is None else self.length_s
        return AudioInfo(length_s, info.rate_hz, info.channels)

    def audio(
        self, *, rate_hz: int, speed: float = 1.0, content: bytes | None = None, remarks: Remarks | None = None
    ) -> Int16[np.ndarray, " S"]:
        """Samples, as `read_audio` returns them.

        Args:
            remarks: Takes the remarks on the audio. None: they are not wanted.
        """
        return read_audio(self.file(content), rate_hz=rate_hz, speed=speed, remarks=remarks, **self._selection)

    def audio_blocks(self, *, rate_hz: int, remarks: Remarks | None = None) -> Iterator[Int16[np.ndarray, " S"]]:
        """Yields the samples of `audio`, some seconds at a time, as `stream_audio`."""
        return stream_audio(self.file(), rate_hz=rate_hz, remarks=remarks, **self._selection)

    @property
    def _selection(self) -> dict[str, Any]:
        """Arguments of `stream_audio` that select the part and the channel."""
        return {name: getattr(self, name) for name in ("start_s", "length_s", "may_overshoot", "channel")}

    def features(self, content: bytes | None = None) -> Float32[np.ndarray, "T F"]:
        """Ready features.

        Raises:
            AudioError: If they cannot be read, are not finite, or have another shape than the location.
        """
        assert self.shape is not None, f"{self} is not a location of ready features"
        content = self.content() if content is None else content
        try:
            return _shaped(_READERS[self.form](content), *self.shape)
        except (ValueError, KeyError, TypeError, EOFError, MemoryError) as error:
            raise AudioError(str(self), f"invalid features ({self.form}): {error}") from None


_READERS: dict[str, Callable[[bytes], Float32[np.ndarray, "..."]]] = {
    "f32": lambda content: np.frombuffer(content, "<f4"),
    "npy": lambda content: np.lib.format.read_array(BytesIO(content), allow_pickle=False).astype(np.float32),
    "text": lambda content: np.array(content.replace(b",", b" ").split(), np.float32),
}


def _span(text: str) -> tuple[float, float | None]:
    found = re.fullmatch(rf"({_NUMBER})\+({_NUMBER})?", text)
    assert found is not None, text
    return float(found[1]), None if found[2] is None else float(found[2])


def _shaped(values: Float32[np.ndarray, "..."], rows: int, cols: int) -> Float32[np.ndarray, "T F"]:
    """Reshapes values to `rows` × `cols`. Raises a ValueError if they have another number, or are not finite."""
    if values.size != rows * cols or (values.ndim == 2 and values.shape != (rows, cols)):
        shape = " × ".join(map(str, values.shape))
        raise ValueError(f"{shape} values; expected {rows} frames × {cols} = {rows * cols}")
    if not np.isfinite(values).all():
        raise ValueError(f"not finite: {int((~np.isfinite(values)).sum())} values are NaN or infinite")
    return values.reshape(rows, cols)

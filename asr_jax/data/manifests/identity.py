"""Identity of recordings: what an output was made of, so that the name alone does not say that a work is done."""

import functools
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from asr_jax.core.paths import MISSING, State, digest_of, state_of
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.progress import in_threads
from asr_jax.data.manifests.remote import is_url, state_of_url
from asr_jax.data.manifests.utterances import Rejected, Utterance


@dataclass(frozen=True)
class Identity:
    """Signal, and text if there is one, of a recording.

    Two recordings are the same if path and state of their files are equal, or otherwise the bytes.
    """

    path: str
    """Absolute path or URL; empty for audio that the command itself has unpacked."""
    state: State
    """State of the file; MISSING for a URL, for unpacked audio, and if there is no file."""
    rest: str
    """Part of the file, and digest of the text; for a URL also its state, and for unpacked audio the digest of its
    bytes."""
    first_byte: int = 0
    num_bytes: int | None = None

    @property
    def exists(self) -> bool:
        """Whether there is something to be the same as."""
        return self.state != MISSING or not self.path or is_url(self.path)

    def to_json(self) -> dict[str, Any]:
        """Fields, with the digest of the bytes."""
        return asdict(self) | {"state": list(self.state), "digest": self._digest()}

    def is_of(self, before: Mapping[str, Any]) -> bool:
        """Returns whether the fields from `to_json` are those of the same recording."""
        if before.get("rest") != self.rest:
            return False
        fields = ("path", "first_byte", "num_bytes")
        if all(before.get(name) == getattr(self, name) for name in fields) and before.get("state") == [*self.state]:
            return True
        digest = before.get("digest") and self._digest()
        return bool(digest) and before["digest"] == digest

    def _digest(self) -> str:
        """Digest of the bytes; empty if there is no local file."""
        return "" if self.state == MISSING else digest_of(self.path, self.first_byte, self.num_bytes)


def identities(
    entries: Iterable[Utterance | Rejected], *, with_texts: bool = False, own: Path | None = None
) -> dict[str, Identity]:
    """Returns the identity of each recording by its id.

    Args:
        with_texts: Whether texts belong to the identity.
        own: Folder of audio that the command itself has unpacked, whose paths and times are others in each call.
    """
    listed = list(entries)
    return {entry.id: each for entry, each in zip(listed, _of(listed, with_texts, own), strict=True)}


def digest_of_recordings(entries: Iterable[Utterance | Rejected], *, own: Path | None = None) -> str:
    """Digest of the ids, locations, states and texts of recordings."""
    listed = list(entries)
    found = [(entry.id, each) for entry, each in zip(listed, _of(listed, True, own), strict=True)]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def _of(entries: Sequence[Utterance | Rejected], with_texts: bool, own: Path | None) -> list[Identity]:
    work = functools.partial(_identity, with_texts=with_texts, own=own)
    return in_threads(work, entries, "states of audio")


def _identity(entry: Utterance | Rejected, *, with_texts: bool, own: Path | None) -> Identity:
    place = Location.parse(entry.location)
    rest = [str(replace(place, path="", first_byte=0, num_bytes=None))]
    if with_texts and isinstance(entry, Utterance):
        rest.append(hashlib.sha256(repr((entry.text, entry.labels)).encode()).hexdigest())
    if own and Path(place.path).is_relative_to(own):
        rest.append(digest_of(place.path, place.first_byte, place.num_bytes))
        return Identity("", MISSING, " ".join(rest))
    if is_url(place.path):
        return Identity(place.path, MISSING, " ".join([*rest, state_of_url(place.path)]))
    path = os.path.abspath(place.path)
    return Identity(path, state_of(path), " ".join(rest), place.first_byte, place.num_bytes)

"""Identity of recordings. Outputs store it, so that a later command sees whether they are of the same recordings."""

import functools
import hashlib
import os
from collections.abc import Iterable, Mapping
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
        """Whether there is a recording. False for a local file that is missing."""
        return self.state != MISSING or not self.path or is_url(self.path)

    def to_json(self) -> dict[str, Any]:
        """Fields, with the digest of the bytes."""
        return asdict(self) | {"state": [*self.state], "digest": self._digest()}

    def is_of(self, before: Mapping[str, Any]) -> bool:
        """Returns whether the fields from `to_json` are those of the same recording."""
        now = asdict(self) | {"state": [*self.state]}
        if all(before.get(name) == value for name, value in now.items()):
            return True
        has_same_rest = before.get("rest") == self.rest and bool(before.get("digest"))
        return has_same_rest and before["digest"] == self._digest()

    def _digest(self) -> str:
        """Digest of the bytes; empty if there is no local file."""
        return "" if self.state == MISSING else digest_of(self.path, self.first_byte, self.num_bytes)


def identities(
    entries: Iterable[Utterance | Rejected], *, with_texts: bool = False, own: Path | None = None
) -> list[tuple[str, Identity]]:
    """Returns the id and the identity of each recording.

    Args:
        own: Folder in which the command itself unpacks audio. Paths and times there differ in each call, and only the
            bytes count.
    """
    return in_threads(functools.partial(_identity, with_texts=with_texts, own=own), list(entries), "states of audio")


def digest_of_recordings(entries: Iterable[Utterance | Rejected], *, own: Path | None = None) -> str:
    """Digest of the ids, locations, states and texts of recordings."""
    digest = hashlib.sha256()
    for each in identities(entries, with_texts=True, own=own):
        digest.update(repr(each).encode())
    return digest.hexdigest()[:16]


def _identity(entry: Utterance | Rejected, *, with_texts: bool, own: Path | None) -> tuple[str, Identity]:
    place = Location.parse(entry.location)
    rest = [str(replace(place, path="", first_byte=0, num_bytes=None))]
    if with_texts and isinstance(entry, Utterance):
        rest.append(hashlib.sha256(repr((entry.text, entry.labels)).encode()).hexdigest())
    if own and Path(place.path).is_relative_to(own):
        rest.append(digest_of(place.path, place.first_byte, place.num_bytes))
        return entry.id, Identity("", MISSING, " ".join(rest))
    if is_url(place.path):
        return entry.id, Identity(place.path, MISSING, " ".join([*rest, state_of_url(place.path)]))
    path = os.path.abspath(place.path)
    return entry.id, Identity(path, state_of(path), " ".join(rest), place.first_byte, place.num_bytes)

"""Files in tars that a manifest names, which training reads from there."""

import os
import tarfile
from collections.abc import Iterable

from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.fields import InvalidEntry

Spans = dict[str, tuple[int, int]]
"""First byte and number of bytes of each file in a tar."""


class Tars:
    """The tars of a manifest, whose files are listed when they are first needed."""

    def __init__(self) -> None:
        self._spans: dict[str, Spans] = {}

    def find(self, path: str, names: Iterable[str]) -> Location | None:
        """Location of the first of the names that a tar has; None if it has none of them or does not exist.

        Raises:
            InvalidEntry: If the tar cannot be read.
        """
        if path not in self._spans:
            self._spans[path] = _spans(path)
        name = next((name for name in names if name in self._spans[path]), None)
        return None if name is None else Location(path, *self._spans[path][name], name=os.path.basename(name))


def _spans(path: str) -> Spans:
    try:
        with tarfile.open(path, "r:") as tar:
            return {member.name.removeprefix("./"): (member.offset_data, member.size) for member in tar}
    except FileNotFoundError:
        return {}
    except (tarfile.TarError, OSError) as error:
        raise InvalidEntry(f"{path}: not a complete tar ({error}); copy it again") from None

"""File for bytes that are contained in tables and lines of JSON, from which training reads single utterances."""

import contextlib
import os
import uuid
from dataclasses import replace
from types import TracebackType
from typing import BinaryIO

import numpy as np
from jaxtyping import Float32

from asr_jax.data.manifests.locations import Location


class Held:
    """The bytes that were added last, in memory."""

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.content: bytes | None = None
        """None: there are none."""

    def add(self, content: bytes | memoryview, name: str) -> Location:
        """Takes the content of a file. The ending of `name` selects its decoder."""
        self.content = bytes(content)
        return Location(self.path, first_byte=0, num_bytes=len(content), name=name)

    def add_features(self, values: Float32[np.ndarray, "T F"]) -> Location:
        """Takes ready features."""
        return replace(self.add(values.astype("<f4").tobytes(), ""), shape=values.shape, form="f32")


class Unpacked(Held):
    """File that bytes are appended to.

    It is created by the first bytes, and gets its name when the block ends without an error.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        # The name is unique, because another process may read the same data.
        self._partial = f"{path}.{uuid.uuid4().hex}.partial"
        self._file: BinaryIO | None = None
        self.num_bytes = 0

    def add(self, content: bytes | memoryview, name: str) -> Location:
        first = self.num_bytes
        if self._file is None:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            self._file = open(self._partial, "xb")  # noqa: SIM115  closed by __exit__
        self._file.write(content)
        self.num_bytes += len(content)
        return Location(self.path, first_byte=first, num_bytes=len(content), name=name)

    def __enter__(self) -> "Unpacked":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            if error is None:
                os.replace(self._partial, self.path)
            else:
                with contextlib.suppress(OSError):
                    os.remove(self._partial)

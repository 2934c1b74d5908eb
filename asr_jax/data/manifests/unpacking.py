"""Bytes that lie in tables and lines of JSON, written out once, so that training reads each utterance by itself."""

import contextlib
import os
import uuid
from types import TracebackType
from typing import BinaryIO

import numpy as np
from jaxtyping import Float32

from asr_jax.data.manifests.locations import Location


class Unpacked:
    """A file that bytes are put into one after the other. It is made when the first ones come, and has its name when
    the block ends without an error.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # A name of its own: another process may read the same data.
        self._partial = f"{path}.{uuid.uuid4().hex}.partial"
        self._file: BinaryIO | None = None
        self.num_bytes = 0

    def add(self, content: bytes | memoryview, name: str) -> Location:
        """Puts a file's content in. `name`: what the file is called; its ending tells how it is decoded."""
        first = self.num_bytes
        if self._file is None:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            self._file = open(self._partial, "xb")  # noqa: SIM115  closed by __exit__
        self._file.write(content)
        self.num_bytes += len(content)
        return Location(self.path, first_byte=first, num_bytes=len(content), name=name)

    def add_features(self, values: Float32[np.ndarray, "T F"]) -> Location:
        """Puts ready features in."""
        where = self.add(values.astype("<f4").tobytes(), "")
        return Location(
            self.path, first_byte=where.first_byte, num_bytes=where.num_bytes, shape=values.shape, form="f32"
        )

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

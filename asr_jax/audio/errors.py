"""The error for audio files that cannot be used."""

import os


class AudioError(ValueError):
    """An audio file that cannot be used; `reason` is one line without the path."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(str(path), reason)
        self.path = str(path)
        self.reason = " ".join(reason.split())

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"

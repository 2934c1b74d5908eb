"""Files that are whole or not there, however a process ends."""

import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file under another name, flushes it to the disk and renames it: a reader never sees a part of what one
    writer wrote."""
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
